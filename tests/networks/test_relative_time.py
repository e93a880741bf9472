"""Relative time encodings: dependence on time differences only, and no effect at initialisation."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.choices import TimeEncoding
from page4d.networks.conditioning import Conditioning
from page4d.networks.layers.attention import attend, fold_bias
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import RelativeTime, time_factors

MASK = PRESETS["mv-tiny"].mask
EXACT = {"rtol": 0, "atol": 1e-12}
ENCODINGS = [TimeEncoding.ALIBI, TimeEncoding.ROPE]
TIMES = {
    "whole": [0.0, 1, 2, 3],
    "uneven": [0.0, 0.7, 2.9, 3.05],
    "unordered": [2.0, 5.5, -1.25, 0.5],
    "repeated": [1.0, 1.0, 4.0, 4.0],
    "one": [3.0],
}


def encoded(randomized: Callable, encoding: TimeEncoding, gate: float, **changes: object) -> ViewTimeNetwork:
    network = randomized(time_encoding=encoding, **{"mask": None, **changes})
    with torch.no_grad():
        network.aggregator.time.gates.fill_(gate)
    return network


def images_of(times: int = 4, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(batch, times, 2, 3, 28, 42, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", list(TIMES))
def test_products_of_factors_are_time_differences(name: str) -> None:
    times = torch.tensor([TIMES[name]], dtype=torch.float64)
    slopes = torch.tensor([0.5, 0.25], dtype=torch.float64)
    query, key = time_factors(times, slopes)
    ours = query @ key.transpose(-1, -2)
    distance = (times[:, :, None] - times[:, None, :]).abs()
    theirs = -slopes[:, None, None] * distance[:, None]
    difference = ours - theirs  # constant per query: no effect on the attention
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference), **EXACT)


def test_folded_biases_equal_dense_ones() -> None:
    """One slope per head, uneven times, and a learned key bias in the same fold."""
    relative = RelativeTime(replace(PRESETS["mv-tiny"], time_encoding="alibi")).double()
    with torch.no_grad():
        relative.gates.fill_(1.3)
    times = torch.tensor([TIMES["uneven"]], dtype=torch.float64)
    bias = relative.bias(0, times, (3, 5), None)
    query, key, value = torch.randn(3, 3, 2, 20, 8, dtype=torch.float64).unbind(0)
    added = torch.randn(3, 20, dtype=torch.float64)
    bias = replace(bias, key=added)
    distance = (times[0, :, None] - times[0, None, :]).abs().repeat_interleave(5, 0).repeat_interleave(5, 1)
    slopes = 1.3 * torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)
    logits = query @ key.transpose(-1, -2) / 8**0.5 + added[:, None, None] - slopes[:, None, None] * distance
    expected = logits.softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, bias), expected, **EXACT)
    torch.testing.assert_close(attend(query, key, value, bias, max_queries=7), expected, **EXACT)
    assert fold_bias(query, key, value, bias)[0].shape[-1] == 16  # 8, the key bias in 2, four instants in 4, padding
    part = attend(query[1:], key[1:], value[1:], bias.of_groups(slice(1, None)))
    torch.testing.assert_close(part, expected[1:], **EXACT)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_gate_of_zero_has_no_effect(randomized: Callable, encoding: TimeEncoding) -> None:
    network = encoded(randomized, encoding, 0.0)
    plain = randomized(mask=None)
    plain.load_state_dict({k: v for k, v in network.state_dict().items() if "time.gates" not in k})
    with torch.no_grad():
        expected = plain(images_of())
        learning = network(images_of())
        network.requires_grad_(False)
        fixed = network(images_of())
    assert torch.equal(fixed.depth, expected.depth)
    torch.testing.assert_close(learning.depth, expected.depth, rtol=1e-12, atol=0)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_predictions_depend_on_time_differences_only(randomized: Callable, encoding: TimeEncoding) -> None:
    network = encoded(randomized, encoding, 0.6)
    images = images_of(batch=2)
    times = torch.tensor([TIMES["uneven"], TIMES["whole"]], dtype=torch.float64)
    with torch.no_grad():
        one = network(images, conditioning=Conditioning(times=times))
        shifted = network(images, conditioning=Conditioning(times=times + 17.3))
        stretched = network(images, conditioning=Conditioning(times=2 * times))
        second = network(images[1:])
        order = [0, 2, 3, 1]
        permuted = network(images[:, order], conditioning=Conditioning(times=times[:, order]))
    torch.testing.assert_close(one.depth, shifted.depth, rtol=1e-10, atol=0)
    assert (one.depth - stretched.depth).abs().max() > 1e-5
    torch.testing.assert_close(one.depth[1:], second.depth, rtol=1e-11, atol=0)  # times count from 0 by default
    torch.testing.assert_close(one.depth[:, order], permuted.depth, rtol=1e-11, atol=0)


def test_alibi_is_symmetric_in_time_and_rope_is_not(randomized: Callable) -> None:
    times = torch.tensor([TIMES["uneven"]], dtype=torch.float64)
    for encoding, same in ((TimeEncoding.ALIBI, True), (TimeEncoding.ROPE, False)):
        network = encoded(randomized, encoding, 0.6)
        with torch.no_grad():
            forward = network(images_of(), conditioning=Conditioning(times=times))
            backward = network(images_of(), conditioning=Conditioning(times=-times))
        assert torch.allclose(forward.depth, backward.depth, rtol=1e-11, atol=0) == same


def test_negative_alibi_gates_have_no_effect(randomized: Callable) -> None:
    with torch.no_grad():
        zero = encoded(randomized, TimeEncoding.ALIBI, 0.0)(images_of())
        negative = encoded(randomized, TimeEncoding.ALIBI, -2.0)(images_of())
    assert torch.equal(zero.depth, negative.depth)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_time_encodings_combine_with_masks_and_limits(randomized: Callable, encoding: TimeEncoding) -> None:
    network = encoded(randomized, encoding, 0.4, mask=MASK)
    external = torch.rand(2, 4, 2, 28, 42, dtype=torch.float64)
    with torch.no_grad():
        network.aggregator.mask_bias.lambda_pose_t.fill_(2.0)
        network.aggregator.mask_bias.lambda_geo_t.fill_(1.0)
        whole = network(images_of(batch=2), external)
        limited = network(images_of(batch=2), external, limits=ForwardLimits(max_tokens=50, max_queries=9))
        network.aggregator.mask_bias.lambda_geo_t.fill_(0.0)
        other = network(images_of(batch=2), external)
    torch.testing.assert_close(whole.depth, limited.depth, rtol=1e-10, atol=0)
    assert not torch.equal(whole.depth, other.depth)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_gates_of_zero_get_a_gradient(randomized: Callable, encoding: TimeEncoding) -> None:
    network = encoded(randomized, encoding, 0.0)
    network(images_of()).depth.square().mean().backward()
    assert network.aggregator.time.gates.grad.abs().min() > 0
