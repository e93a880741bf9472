"""The single-image networks of Depth Anything 3: metres, independence of images, sky, presets."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.networks.conditioning import Conditioning
from page4d.networks.config_parts import CameraHeadConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import farthest_depth
from page4d.networks.presets import PRESETS
from page4d.weights.loading import LoadedNetwork
from tests.keymaps import converted_network
from tests.networks.test_recorded_tensors import mono_settings


@pytest.fixture(scope="module")
def network(golden: Callable) -> ViewTimeNetwork:
    """Return the recorded network for metres."""
    loaded = golden("da3mono_b")
    return converted_network(loaded.part("weights/"), mono_settings(loaded.meta, metric_focal=300))


@pytest.fixture
def images() -> Tensor:
    """Two times and three views in a batch of two."""
    return torch.rand(2, 2, 3, 3, 42, 56, generator=torch.Generator().manual_seed(0))


def test_metres_follow_from_the_focal_length(network: ViewTimeNetwork, images: Tensor, agrees: Callable) -> None:
    lens = torch.eye(3, dtype=torch.float64).expand(2, 2, 3, 3, 3).clone()
    lens[..., 0, 0] = torch.arange(12).reshape(2, 2, 3) * 10 + 50
    lens[..., 1, 1] = 90
    alone = network(images)
    metric = network(images, conditioning=Conditioning(intrinsics=lens))
    factor = (lens[..., 0, 0] + 90) / 2 / 300
    agrees(metric.depth, alone.depth * factor.float()[..., None, None])
    agrees(metric.sky, alone.sky)


def test_every_image_is_predicted_alone(network: ViewTimeNetwork, images: Tensor, agrees: Callable) -> None:
    """Views of other sizes, chunks of images and other images in the batch change nothing."""
    together = network(images)
    agrees(network(images, limits=ForwardLimits(max_images=5)).depth, together.depth)
    agrees(network(images[1:, :1, 2:]).sky, together.sky[1:, :1, 2:])
    mixed = network([images[:, :, 0], images[:, :, 1, :, :28], images[:, :, 2]])
    agrees(mixed.views[2].depth, together.depth[:, :, 2:])
    assert mixed.on_canvas((42, 56)).sky.shape == (2, 2, 3, 42, 56)


def test_half_precision_and_gradients(network: ViewTimeNetwork, images: Tensor) -> None:
    exact = network(images[:1, :1])
    half = LoadedNetwork(network.config, torch.bfloat16)
    half.load_state_dict(network.state_dict())
    with torch.no_grad():
        close = half(images[:1, :1])
    assert (close.depth / exact.depth).log().abs().mean() < 0.05
    trained = build_network(network.config)
    out = trained(images[:1, :1])
    (out.depth.mean() + out.sky.mean()).backward()
    assert [name for name, value in trained.named_parameters() if value.grad is None] == []


def test_the_quantile_of_many_pixels_is_that_of_every_nth(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    in_sky = torch.arange(len(depth)) < 20
    monkeypatch.setattr("page4d.networks.output._MAX_PIXELS", 2000)
    assert farthest_depth(depth, in_sky) == torch.quantile(depth[20::3], 0.99)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth_head": None}, "depth 0, with levels (4, 11, 17, 23) of the encoder"),
        ({"encoder": DinoV2Config(num_registers=0)}, "depth 0, with levels () of the encoder"),
        ({"num_registers": 4}, "depth 0 with special tokens"),
        ({"camera_token": True, "camera_head": CameraHeadConfig()}, "parts other than a depth head"),
        ({"ray_head": True}, "parts other than a depth head"),
    ],
)
def test_without_a_trunk_only_levels_are_read(changes: dict, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        replace(PRESETS["da3-mono"], **changes)


def test_levels_beyond_the_encoder_are_refused() -> None:
    with pytest.raises(UsageError, match="levels"):
        DinoV2Config(levels=(0, 24))
