"""Alignment of predictions to the metric depth of single images: recorded numbers, and which pixels count."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.networks.metric import align_to_metric, metric_depth, scale_to_metric
from page4d.networks.output import NetworkOutput


@pytest.fixture(scope="module")
def recorded(golden: Callable) -> dict[str, Tensor]:
    return golden("da3_ops").tensors


def inputs(recorded: dict[str, Tensor]) -> list[Tensor]:
    """Return depth, confidence, metric depth of the network's cameras, and sky, all [1, 1, 3, 14, 21]."""
    named = {name: recorded[f"input/nested_{name}"] for name in ("depth", "depth_conf", "metric_depth", "sky")}
    named["metric_depth"] = metric_depth(named["metric_depth"], recorded["input/nested_intrinsics"], 300)
    return [value[:, None] for value in named.values()]


def test_metric_depth_equals_the_reference(recorded: dict[str, Tensor], agrees: Callable):
    agrees(inputs(recorded)[2][:, 0], recorded["output/nested_metric_depth"])


def test_alignment_equals_the_reference(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, metric, sky = inputs(recorded)
    aligned = align_to_metric(depth, confidence, metric, sky)
    agrees(aligned.depth[:, 0], recorded["output/nested_depth"])
    agrees(aligned.confidence[:, 0], recorded["output/nested_depth_conf"])
    agrees(aligned.scale, recorded["output/nested_scale"])
    agrees(depth[:, 0] * aligned.scale, recorded["output/nested_aligned_depth"])


def test_depth_cameras_and_rays_are_scaled_together(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, _, sky = inputs(recorded)
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
    one = inputs(recorded)
    two = [torch.cat([value, value]) for value in one]
    two[2][1] *= 3
    agrees(align_to_metric(*two).scale, recorded["output/nested_scale"] * torch.tensor([1.0, 3.0]))


def test_sky_is_at_most_200_m_away_and_small_values_do_not_count(recorded: dict[str, Tensor], agrees: Callable):
    depth, confidence, metric, sky = inputs(recorded)
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
    depth, confidence, metric, sky = inputs(recorded)
    aligned = align_to_metric(depth, confidence, metric, torch.ones_like(sky))
    assert torch.equal(aligned.depth, depth)
    assert aligned.scale.tolist() == [1.0]
