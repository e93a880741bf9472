"""Networks of Depth Anything 3 with a metric network, and the alignment of their depth to metres."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from page4d.errors import UsageError, WeightsError
from page4d.geometry.camera import decode_pose
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.config import NetworkConfig
from page4d.networks.metric import align_to_metric, metric_depth, scale_to_metric
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import SKY_THRESHOLD, NetworkOutput, farthest_depth
from page4d.weights import load
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.families.table import recognize
from page4d.weights.loading import LoadedNetwork
from tests.keymaps import converted, converted_network, recorded_config
from tests.networks.small_networks import SMALL_DA3, SMALL_DA3_METRIC, SMALL_DA3_NESTED, randomized_network
from tests.networks.test_every_option import assert_same, inputs, numbers
from tests.weights.checkpoints import checkpoint

Parts = tuple[ViewTimeNetwork, ViewTimeNetwork, ViewTimeNetwork]


@pytest.fixture(scope="module")
def parts() -> Parts:
    """Return a nested network and its two networks with the same parameters."""
    nested = randomized_network(SMALL_DA3_NESTED).requires_grad_(False)
    state = nested.state_dict()
    anyview, metric = build_network(SMALL_DA3).double(), build_network(SMALL_DA3_METRIC).double()
    prefix = "metric_network."
    anyview.load_state_dict({name: value for name, value in state.items() if not name.startswith(prefix)})
    metric.load_state_dict(
        {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    )
    return nested, anyview.eval().requires_grad_(False), metric.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def given() -> dict[str, Tensor]:
    return inputs(SMALL_DA3)


def cameras_of(given: Mapping[str, Tensor]) -> Conditioning:
    return Conditioning(world_to_camera=given["world_to_camera"], intrinsics=given["intrinsics"])


@pytest.mark.parametrize("known", [False, True])
def test_it_equals_its_two_networks_aligned(parts: Parts, given: dict[str, Tensor], known: bool) -> None:
    """Known cameras are an input of the any-view network alone, and the metres follow from its own intrinsics."""
    nested, anyview, metric = parts
    conditioning = cameras_of(given) if known else NO_CONDITIONING
    out, alone = (network(given["images"], conditioning=conditioning) for network in (nested, anyview))
    single = metric(given["images"])
    (expected,) = scale_to_metric([alone], [single], 300.0)
    assert_same(out, numbers(expected), 1e-9)
    in_metres = metric_depth(single.depth, alone.intrinsics, 300)
    factor = align_to_metric(alone.depth, alone.depth_confidence, in_metres, single.sky).scale
    assert factor.shape == out.metric_scale.shape == (2,)
    assert (factor - 1).abs().min() > 0.01
    moved = alone.world_to_camera[..., :3, 3] * factor[:, None, None, None]
    torch.testing.assert_close(out.world_to_camera[..., :3, 3], moved)
    torch.testing.assert_close(out.sky, single.sky)
    decoded = decode_pose(out.pose_encoding.flatten(1, 2), given["images"].shape[-2:], nested.camera_head.min_tangent)
    torch.testing.assert_close(decoded.world_to_camera, out.world_to_camera.flatten(1, 2))


def test_views_of_different_sizes_have_one_factor(parts: Parts, given: dict[str, Tensor]) -> None:
    images = [given["images"][:, :, 0], given["images"][:, :, 1, :, :, :24]]
    out, alone, single = (network(images) for network in parts)
    pairs = list(zip(alone.views, single.views, strict=True))
    maps = [
        [view.depth for view, _ in pairs],
        [view.depth_confidence for view, _ in pairs],
        [metric_depth(one.depth, view.intrinsics, 300) for view, one in pairs],
        [one.sky for _, one in pairs],
    ]
    rows = [torch.cat([part.flatten(1) for part in of_views], dim=1)[:, None, None, None] for of_views in maps]
    factor = align_to_metric(*rows).scale[:, None, None, None, None]
    for view, (before, _) in zip(out.views, pairs, strict=True):
        solid = view.sky < SKY_THRESHOLD
        torch.testing.assert_close(view.depth[solid], (before.depth * factor)[solid])
        moved = before.world_to_camera[..., :3, 3] * factor[..., 0]
        torch.testing.assert_close(view.world_to_camera[..., :3, 3], moved)


def test_heads_keep_full_precision() -> None:
    half = LoadedNetwork(SMALL_DA3_NESTED, torch.bfloat16).state_dict()
    assert half["metric_network.encoder.blocks.0.attn.qkv.weight"].dtype is torch.bfloat16
    assert half["metric_network.depth_head.out_conv1.weight"].dtype is torch.float32


@dataclass(frozen=True)
class Source:
    """A small nested checkpoint, and the tensors that its two networks have after conversion."""

    config: NetworkConfig
    weights: dict[str, Tensor]
    expected: dict[str, Tensor]
    images: Tensor


@pytest.fixture(scope="module")
def source(golden: Callable) -> Source:
    """Return one of recorded checkpoints of its two networks."""
    recorded, single = checkpoint("da3_b"), golden("da3mono_b")
    metric = replace(recorded_config("da3mono_b"), metric_focal=300.0)
    networks = {"model.da3.": recorded.weights, "model.da3_metric.": single.part("weights/")}
    _, expected = converted(recorded.weights, recorded.config)
    _, of_metric = converted(single.part("weights/"), metric)
    return Source(
        config=replace(recorded.config, metric_network=metric),
        weights={
            f"{prefix}{name.removeprefix('model.')}": value
            for prefix, weights in networks.items()
            for name, value in weights.items()
        },
        expected=expected | {f"metric_network.{name}": value for name, value in of_metric.items()},
        images=recorded.images[:, None],
    )


def test_a_file_is_converted_to_both_networks(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({**source.weights, "model.da3.gs_head.projects.0.weight": torch.zeros(2)}, path)
    conversion = plan_conversion([path], ConvertSettings(configs=(source.config,)))
    write_conversion(conversion, tmp_path / "network.safetensors")
    network = load(tmp_path / "network.safetensors", "cpu")
    state = network.state_dict()
    assert state.keys() == source.expected.keys()
    assert all(torch.equal(state[name], value) for name, value in source.expected.items())
    assert network.config.metric_network.metric_focal == 300
    with torch.no_grad():
        assert network(source.images).depth.isfinite().all()


def test_one_of_its_two_networks_alone_is_refused(source: Source) -> None:
    assert recognize(source.weights, "x") == "da3-nested"
    for prefix in ("model.da3.", "model.da3_metric."):
        with pytest.raises(WeightsError, match=r"holds no known network|none is named 'model\.da3_metric"):
            recognize([name for name in source.weights if not name.startswith(prefix)], "x")


@pytest.fixture(scope="module")
def network(golden: Callable) -> ViewTimeNetwork:
    """Return the recorded network for metres."""
    loaded = golden("da3mono_b")
    return converted_network(loaded.part("weights/"), replace(recorded_config("da3mono_b"), metric_focal=300.0))


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


def test_the_quantile_of_many_pixels_is_that_of_every_nth(monkeypatch: pytest.MonkeyPatch) -> None:
    depth = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    in_sky = torch.arange(len(depth)) < 20
    monkeypatch.setattr("page4d.networks.output._MAX_PIXELS", 2000)
    assert farthest_depth(depth, in_sky) == torch.quantile(depth[20::3], 0.99)


@pytest.fixture(scope="module")
def recorded(golden: Callable) -> dict[str, Tensor]:
    return golden("da3_ops").tensors


def given_maps(recorded: dict[str, Tensor]) -> list[Tensor]:
    """Return depth, confidence, metric depth of the network's cameras, and sky, all [1, 1, 3, 14, 21]."""
    named = {name: recorded[f"input/nested_{name}"] for name in ("depth", "depth_conf", "metric_depth", "sky")}
    named["metric_depth"] = metric_depth(named["metric_depth"], recorded["input/nested_intrinsics"], 300)
    return [value[:, None] for value in named.values()]


def test_metric_depth_equals_the_reference(recorded: dict[str, Tensor], agrees: Callable):
    agrees(given_maps(recorded)[2][:, 0], recorded["output/nested_metric_depth"])


def test_alignment_equals_the_reference(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, metric, sky = given_maps(recorded)
    aligned = align_to_metric(depth, confidence, metric, sky)
    agrees(aligned.depth[:, 0], recorded["output/nested_depth"])
    agrees(aligned.confidence[:, 0], recorded["output/nested_depth_conf"])
    agrees(aligned.scale, recorded["output/nested_scale"])
    agrees(depth[:, 0] * aligned.scale, recorded["output/nested_aligned_depth"])


def test_depth_cameras_and_rays_are_scaled_together(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, _, sky = given_maps(recorded)
    poses = torch.eye(4).repeat(1, 1, 3, 1, 1)
    poses[..., :3, :] = recorded["input/nested_extrinsics"][:, None]
    rays = torch.randn(1, 1, 3, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    output = NetworkOutput(
        depth=depth,
        depth_confidence=confidence,
        world_to_camera=poses.double(),
        intrinsics=recorded["input/nested_intrinsics"][:, None].double(),
        ray_map=rays,
    )
    single = NetworkOutput(depth=recorded["input/nested_metric_depth"][:, None], sky=sky)
    (found,) = scale_to_metric([output], [single], 300)
    agrees(found.depth[:, 0], recorded["output/nested_depth"])
    agrees(found.depth_confidence[:, 0], recorded["output/nested_depth_conf"])
    agrees(found.world_to_camera[:, 0, :, :3].float(), recorded["output/nested_extrinsics"])
    scale = recorded["output/nested_scale"]
    agrees(found.ray_map, torch.cat([rays[..., :3], rays[..., 3:] * scale], dim=-1))
    assert torch.equal(output.world_to_camera, poses.double())
    with pytest.raises(UsageError, match="no cameras"):
        scale_to_metric([single], [single], 300)
    with pytest.raises(UsageError, match="no depth or no sky"):
        scale_to_metric([output], [output], 300)


def test_scenes_are_aligned_separately(recorded: dict[str, Tensor], agrees: Callable):
    one = given_maps(recorded)
    two = [torch.cat([value, value]) for value in one]
    two[2][1] *= 3
    agrees(align_to_metric(*two).scale, recorded["output/nested_scale"] * torch.tensor([1.0, 3.0]))


def test_sky_is_at_most_200_m_away_and_small_values_do_not_count(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, metric, sky = given_maps(recorded)
    far = align_to_metric(depth, confidence, 1e4 * metric, sky)
    assert far.depth[sky >= 0.3].unique().tolist() == [200.0]
    tiny = torch.rand(depth.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    for changed, value in ((0, 9e-4), (2, 9e-3)):
        parts = [depth, confidence, metric.clone(), sky]
        parts[changed] = torch.where(tiny, value, parts[changed])
        used = (parts[0] > 1e-3) & (parts[2] > 1e-2) & (sky < 0.3)
        used &= confidence >= torch.quantile(confidence[sky < 0.3], 0.5)
        expected = (parts[2][used] @ parts[0][used]) / (parts[0][used] @ parts[0][used])
        agrees(align_to_metric(*parts).scale, expected[None])


def test_a_scene_of_sky_keeps_its_unit(recorded: dict[str, Tensor]):
    depth, confidence, metric, sky = given_maps(recorded)
    aligned = align_to_metric(depth, confidence, metric, torch.ones_like(sky))
    assert torch.equal(aligned.depth, depth)
    assert aligned.scale.tolist() == [1.0]
