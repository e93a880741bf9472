"""Mask bias: layers, streams, signs and query rows."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from page4d.networks.config import Step
from page4d.networks.config_parts import BiasRows, MaskConfig, Streams
from page4d.networks.heads.motion import external_log_odds
from page4d.networks.layers.attention import attend
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import MaskBias, Stream

MASK = PRESETS["mv-tiny"].mask


def bias_of(config: MaskConfig) -> MaskBias:
    """Return a fixed bias: lambdas 1 and 3 across views, 2 and 5 (clamped to 4) within views, two special tokens."""
    bias = MaskBias(config, num_special=2).requires_grad_(False)
    bias.lambda_pose.fill_(1.0)
    bias.lambda_geo.fill_(3.0)
    bias.lambda_pose_t.fill_(2.0)
    bias.lambda_geo_t.fill_(5.0)
    return bias


WEIGHTS = {
    (Stream.POSE, Step.VIEW): -1.0,
    (Stream.POSE, Step.GLOBAL): -1.0,
    (Stream.POSE, Step.TIME): -2.0,
    (Stream.POSE, Step.FRAME): -2.0,
    (Stream.GEOMETRY, Step.VIEW): 3.0,
    (Stream.GEOMETRY, Step.TIME): 4.0,
}


@pytest.mark.parametrize(("where", "weight"), list(WEIGHTS.items()), ids=str)
def test_signs_and_keys_in_two_streams(where: tuple[Stream, Step], weight: float) -> None:
    """Keys of special tokens are 0; a sequence concatenates its images."""
    mask = torch.rand(1, 2, 3, 4)
    stream, step = where
    bias = bias_of(MASK)(mask, stream, step)
    assert bias.row is None
    images = {Step.FRAME: 1, Step.VIEW: 3, Step.TIME: 2, Step.GLOBAL: 6}[step]
    keys = bias.key.reshape(6 // images, images, 6)
    assert not keys[..., :2].any()
    by_view = keys[..., 2:].transpose(0, 1) if step is Step.TIME else keys[..., 2:]
    torch.testing.assert_close(by_view.reshape(2, 3, 4), weight * mask[0])
    special = bias_of(replace(MASK, bias_rows=BiasRows.SPECIAL))(mask, stream, step)
    torch.testing.assert_close(special.key, bias.key)
    assert torch.equal(special.row.reshape(-1, 6), torch.tensor([1.0, 1, 0, 0, 0, 0]).expand(6, -1))


@pytest.mark.parametrize(("step", "pose", "geometry"), [(Step.VIEW, -1.0, 3.0), (Step.TIME, -2.0, 4.0)])
def test_in_one_stream_special_tokens_use_the_pose_bias_and_patches_the_geometry_bias(
    step: Step, pose: float, geometry: float
) -> None:
    mask = torch.rand(1, 2, 3, 4)
    bias = bias_of(replace(MASK, streams=Streams.SINGLE))(mask, Stream.SHARED, step)
    expected = torch.tensor([pose, pose, geometry, geometry, geometry, geometry])
    assert torch.equal(bias.row.reshape(-1, 6), expected.expand(6, -1))
    keys = bias.key.reshape(-1, 6)
    assert not keys[:, :2].any()
    torch.testing.assert_close(keys[:, 2:].sum(), mask.sum())


@pytest.mark.parametrize("stream", [Stream.POSE, Stream.GEOMETRY])
def test_an_entirely_static_mask_has_little_effect(stream: Stream) -> None:
    """External probabilities are at least 0.02: at the limit of lambda, attention changes by at most exp(0.08)."""
    bias = bias_of(MASK)
    for weight in bias.parameters():
        weight.fill_(MASK.lambda_limit)
    external = external_log_odds(torch.zeros(1, 1, 3, 28, 28), 14, MASK.external_floor).sigmoid().flatten(3)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 18, 18, generator=generator, dtype=torch.float64).unbind(0)
    shares = torch.eye(18, dtype=torch.float64).expand(1, 2, 18, 18)
    biased = attend(query, key, shares, bias(external.double(), stream, Step.VIEW))
    plain = attend(query, key, shares)
    change = (biased / plain).log().abs().max()
    assert 0.02 < change <= 0.08 + 1e-6


def runs(network: ViewTimeNetwork) -> tuple[Counter, Counter]:
    """Count the calls of every trunk block in one forward pass, and those with a bias."""
    calls, biased, handles = Counter(), Counter(), []

    def counter(name: str) -> Callable:
        def count(_: torch.nn.Module, arguments: tuple) -> None:
            calls[name] += 1
            biased[name] += arguments[2] is not None

        return count

    for step in network.config.schedule:
        for layer, block in enumerate(network.aggregator.blocks[step]):
            handles.append(block.register_forward_pre_hook(counter(f"{step}.{layer}")))
    with torch.no_grad():
        network(torch.rand(1, 2, 2, 3, 28, 28).double(), torch.rand(1, 2, 2, 28, 28).double())
    for handle in handles:
        handle.remove()
    return calls, biased


@pytest.mark.parametrize("streams", list(Streams))
def test_only_the_named_layers_are_biased(randomized: Callable, streams: Streams) -> None:
    network = randomized(mask=replace(MASK, streams=streams))
    network.aggregator.mask_bias.requires_grad_(False)
    for parameter in network.aggregator.mask_bias.parameters():
        parameter.fill_(1.0)
    calls, biased = runs(network)
    states = 2 if streams is Streams.DUAL else 1
    for layer in range(network.config.depth):
        for step in network.config.schedule:
            assert calls[f"{step}.{layer}"] == (1 if layer < MASK.layers[0] else states)
            assert biased[f"{step}.{layer}"] == (states if layer in MASK.layers else 0)


def test_equal_streams_run_as_one(randomized: Callable) -> None:
    network = randomized()
    calls, biased = runs(network)
    assert set(calls.values()) == {1}
    assert set(biased.values()) == {0}
    with torch.no_grad():
        network.aggregator.mask_bias.lambda_geo.fill_(0.5)
    calls, biased = runs(network)
    assert calls["time.3"] == calls["view.3"] == 2
    assert biased["view.1"] == 1  # geometry only
    assert biased["time.1"] == 0  # its lambda is still 0


def test_streams_that_no_head_reads_do_not_run(randomized: Callable) -> None:
    for left_out in ({"camera_head": None}, {"depth_head": None, "point_head": None}):
        network = randomized(**left_out)
        network.aggregator.mask_bias.requires_grad_(False)
        for parameter in network.aggregator.mask_bias.parameters():
            parameter.fill_(1.0)
        assert set(runs(network)[0].values()) == {1}
