"""Full attention equals the networks that it degenerates to."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.choices import FullAttention
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL, Schedule
from page4d.networks.config_parts import SparseConfig
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS

MASK = PRESETS["mv-tiny"].mask
EXACT = {"rtol": 0, "atol": 1e-12}


def capture(times: int, views: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    images = torch.rand(2, times, views, 3, 28, 42, generator=generator, dtype=torch.float64)
    return images, torch.rand(2, times, views, 28, 42, generator=generator, dtype=torch.float64)


def predict(network: ViewTimeNetwork, *inputs: Tensor, **options: object) -> NetworkOutput:
    with torch.no_grad():
        return network(*inputs, **options)


def rescheduled(
    network: ViewTimeNetwork, schedule: Schedule, randomized: Callable, **changes: object
) -> ViewTimeNetwork:
    """Return a network with the same weights and another schedule."""
    other = randomized(schedule=schedule, **changes)
    names = {f"blocks.{old}.": f"blocks.{new}." for old, new in zip(network.config.schedule, schedule, strict=True)}
    state = {}
    for name, value in network.state_dict().items():
        for old, new in names.items():
            if old in name:
                name = name.replace(old, new)
                break
        state[name] = value
    other.load_state_dict(state)
    return other


def with_lambdas(network: ViewTimeNetwork) -> ViewTimeNetwork:
    with torch.no_grad():
        for parameter in network.aggregator.mask_bias.parameters():
            parameter.fill_(1.5)
    return network


@pytest.mark.parametrize("mode", [FullAttention.ALWAYS, FullAttention.ONE_VIEW])
def test_full_attention_of_one_view_equals_frame_and_global(randomized: Callable, mode: FullAttention):
    images, external = capture(3, 1)
    network = with_lambdas(randomized(full_attention=mode, mask=MASK))
    other = with_lambdas(rescheduled(network, FRAME_GLOBAL, randomized, mask=MASK))
    ours, theirs = predict(network, images, external), predict(other, images, external)
    for name in ("pose_encoding", "depth", "points", "dynamic", "world_to_camera", "intrinsics"):
        one, two = getattr(ours, name), getattr(theirs, name)
        torch.testing.assert_close(one / two.abs().max(), two / two.abs().max(), **EXACT, msg=name)
    assert [pose.shape for pose in ours.pose_encoding_iterations] == [(2, 3, 1, 9)] * 2


def test_full_attention_of_several_views_by_mode(randomized: Callable):
    images, external = capture(2, 3)
    always, once = (randomized(full_attention=mode) for mode in (FullAttention.ALWAYS, FullAttention.ONE_VIEW))
    other = rescheduled(always, FRAME_GLOBAL, randomized)
    torch.testing.assert_close(
        predict(always, images, external).depth, predict(other, images, external).depth, rtol=1e-11, atol=0
    )
    assert torch.equal(predict(once, images, external).depth, predict(randomized(), images, external).depth)


def test_full_attention_supports_memory_and_keypoints(randomized: Callable):
    images, _ = capture(3, 1)
    network = randomized(full_attention="one-view", sparse=SparseConfig(layers=(3,), strategy="memory"))
    conditioning = Conditioning(keypoints=torch.rand(2, 3, 1, 2, 3, dtype=torch.float64), times=torch.rand(2, 3))
    first = predict(network, images, conditioning=conditioning)
    second = predict(network, images, conditioning=replace(conditioning, memory=first.memory))
    assert second.depth.shape == (2, 3, 1, 28, 42)
    assert first.memory.keys() == second.memory.keys()
