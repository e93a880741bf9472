"""The single-image networks of Depth Anything 3 reproduce recorded numbers of the public network."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import CameraHeadConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import farthest_depth, fill_sky
from page4d.networks.presets import PRESETS
from page4d.networks.profile.network import profile_network
from page4d.weights.conversion.accounting import target_name
from page4d.weights.conversion.convert import tensor_shapes
from page4d.weights.families.da3 import DA3_MONO_PUBLISHED, DA3MonoSettings, da3_mono_keys, read_da3_mono
from page4d.weights.families.table import recognize
from page4d.weights.loading import HalfPrecisionNetwork
from page4d.weights.store import TensorSpec
from tests.keymaps import converted
from tests.models.test_recorded_tensors import Recorder, assert_all

SHARED = Path(__file__).parents[3] / "shared" / "golden"


@dataclass(frozen=True)
class Case:
    """A network with recorded weights, images and tensors."""

    network: ViewTimeNetwork
    images: Tensor
    part: Callable[[str], dict[str, Tensor]]


@pytest.fixture(scope="module", params=["b", "a", "c"])
def case(request: pytest.FixtureRequest, golden: Callable) -> Case:
    loaded = golden(f"da3mono_{request.param}")
    settings = DA3MonoSettings.model_validate(loaded.meta | {"model": "da3-mono", "encoder": encoder(loaded.meta)})
    config, state = converted(loaded.part("weights/"), settings)
    network = build_network(config).eval().requires_grad_(False)
    network.load_state_dict(state)
    return Case(network, loaded.tensors["input/images"], loaded.part)


def encoder(meta: dict) -> dict:
    return {name: meta["encoder"][name] for name in ("embed_dim", "depth", "num_heads", "out_layers")}


def test_all_recorded_tensors(case: Case, agrees: Callable) -> None:
    recorder = Recorder(case.network, case.images)
    encoded, normalised = recorder.of("encoder"), recorder.into("encoder")
    grid, leading = encoded.grid, case.images.shape[:2]
    mids = {
        "encoder_pos_embed": case.network.encoder.position_table(grid),
        "tokens_in": case.network.encoder.embed(normalised),
        **{f"level_{place}": level.unflatten(0, leading) for place, level in enumerate(encoded.levels)},
        **{f"depth_head_project_{index}": recorder.of(f"depth_head.projects.{index}") for index in range(4)},
        "depth_head_level4": recorder.of("depth_head.fusions.3"),
        "depth_head_fused": recorder.of("depth_head.fused_conv"),
    }
    assert_all(mids, case.part("mid/"), agrees)
    out = recorder.output
    found = {
        "depth": out.depth[:, 0],
        "sky": out.sky[:, 0],
        "depth_sky_filled": fill_sky(out.depth, out.sky)[:, 0],
    }
    assert_all(found, case.part("output/"), agrees)
    assert out.depth_confidence is None
    assert out.world_to_camera is None


@pytest.fixture(scope="module")
def small(golden: Callable) -> Case:
    """Return the recorded network for metres, and images of two times and three views in a batch of two."""
    loaded = golden("da3mono_b")
    settings = DA3MonoSettings(model="da3-mono", encoder=encoder(loaded.meta), metric_focal=300)
    config, state = converted(loaded.part("weights/"), settings)
    network = build_network(config).eval().requires_grad_(False)
    network.load_state_dict(state)
    images = torch.rand(2, 2, 3, 3, 42, 56, generator=torch.Generator().manual_seed(0))
    return Case(network, images, loaded.part)


def test_metres_follow_from_the_focal_length(small: Case, agrees: Callable) -> None:
    lens = torch.eye(3, dtype=torch.float64).expand(2, 2, 3, 3, 3).clone()
    lens[..., 0, 0] = torch.arange(12).reshape(2, 2, 3) * 10 + 50
    lens[..., 1, 1] = 90
    alone = small.network(small.images)
    metric = small.network(small.images, conditioning=Conditioning(intrinsics=lens))
    factor = (lens[..., 0, 0] + 90) / 2 / 300
    agrees(metric.depth, alone.depth * factor.float()[..., None, None])
    agrees(metric.sky, alone.sky)


def test_every_image_is_predicted_alone(small: Case, agrees: Callable) -> None:
    """Views of other sizes, chunks of images and other images in the batch change nothing."""
    together = small.network(small.images)
    chunked = small.network(small.images, limits=ForwardLimits(max_images=5))
    agrees(chunked.depth, together.depth)
    agrees(small.network(small.images[1:, :1, 2:]).sky, together.sky[1:, :1, 2:])
    views = [small.images[:, :, 0], small.images[:, :, 1, :, :28], small.images[:, :, 2]]
    mixed = small.network(views)
    agrees(mixed.views[2].depth, together.depth[:, :, 2:])
    assert mixed.on_canvas((42, 56)).sky.shape == (2, 2, 3, 42, 56)


def test_half_precision_and_gradients(small: Case) -> None:
    exact = small.network(small.images[:1, :1])
    half = HalfPrecisionNetwork(small.network.config, torch.bfloat16)
    half.load_state_dict(small.network.state_dict())
    with torch.no_grad():
        close = half(small.images[:1, :1])
    assert (close.depth / exact.depth).log().abs().mean() < 0.05
    trained = build_network(small.network.config)
    out = trained(small.images[:1, :1])
    (out.depth.mean() + out.sky.mean()).backward()
    assert [name for name, value in trained.named_parameters() if value.grad is None] == []


def test_stages_of_the_profile_cover_all_parameters(small: Case) -> None:
    config = small.network.config
    profile = profile_network(config, times=2, views=3, size=(42, 56))
    assert sum(stage.parameters for stage in profile.stages) == sum(map(torch.numel, small.network.parameters()))
    assert {stage.part for stage in profile.stages} == {"encoding", "heads"}
    assert profile.stages[-1].name == "sky"


def test_the_presets_equal_the_public_networks() -> None:
    for name, preset in (("da3mono-large", "da3-mono"), ("da3metric-large", "da3-metric")):
        shapes = tensor_shapes(PRESETS[preset])
        assert (len(shapes), sum(map(prod, shapes.values()))) == (406, 334_171_394)
        path = SHARED / f"manifest_{name.replace('-', '_')}.json"
        if not path.exists():
            continue
        entries = json.loads(path.read_text())
        entries = entries.get("tensors", entries)
        specs = {key: TensorSpec(shape=tuple(shape), dtype=torch.float32) for key, (shape, _) in entries.items()}
        assert recognize(specs, name).value == DA3_MONO_PUBLISHED[name].model
        assert read_da3_mono(specs, DA3_MONO_PUBLISHED[name]) == PRESETS[preset]
        assert {target_name(key, da3_mono_keys()): spec.shape for key, spec in specs.items()} == shapes


def test_sky_is_filled_only_with_enough_pixels_of_both_kinds() -> None:
    depth = torch.arange(1.0, 25.0).reshape(1, 1, 2, 3, 4)
    sky = torch.zeros(1, 1, 2, 3, 4)
    sky[..., 0, :, :] = 0.3
    filled = fill_sky(depth, sky)
    expected = torch.quantile(depth[0, 0, 1], 0.99)
    assert torch.equal(filled[0, 0, 1], depth[0, 0, 1])
    assert filled[0, 0, 0].unique().tolist() == pytest.approx([float(expected)])
    few = torch.where(depth <= 10, 1.0, 0.29)
    assert torch.equal(fill_sky(depth, few), depth)
    assert torch.equal(fill_sky(depth, torch.where(depth <= 14, 1.0, 0.0)), depth)
    assert torch.equal(fill_sky(torch.cat([depth, 2 * depth]), torch.cat([sky, 0 * sky]))[1], 2 * depth[0])


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


def test_configurations_are_read_again() -> None:
    assert NetworkConfig.from_json(PRESETS["da3-metric"].to_json()) == PRESETS["da3-metric"]
    with pytest.raises(UsageError, match="levels"):
        DinoV2Config(levels=(0, 24))
