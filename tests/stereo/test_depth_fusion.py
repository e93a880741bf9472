"""Depth-map fusion: consistent depth on surfaces that several views show, unchanged depth elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.records import GroundTruth
from page4d.stereo.consensus import fuse_depth
from tests.stereo.synthetic_rigs import scaled_depth, true_cameras, views_without_matches

SIZE = (64, 80)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], SceneRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))


def errors(truth: GroundTruth, depth: list[Tensor]) -> Tensor:
    """Return |log| of the ratio of depth to its true value, NaN in the background."""
    return torch.where(truth.depth > 0, (torch.stack(depth, dim=2) / truth.depth).log().abs(), torch.nan)


def fused(truth: GroundTruth, depth: list[Tensor], confidence: tuple[float, ...] = (2.0, 2.0, 2.0)) -> list[Tensor]:
    corrections = fuse_depth(views_without_matches(depth, confidence), true_cameras(truth), depth)
    return [own * correction.exp() for own, correction in zip(depth, corrections, strict=True)]


def test_true_depth_is_preserved(truth: GroundTruth) -> None:
    error = errors(truth, fused(truth, scaled_depth(truth, (1.0, 1.0, 1.0))))
    assert error.nanmedian() < 2e-3
    assert error.nanmean() < 0.015  # depth at edges is interpolated between two surfaces


def test_a_wrong_view_approaches_the_others(truth: GroundTruth) -> None:
    depth = scaled_depth(truth, (1.1, 1.0, 1.0))
    before, after = errors(truth, depth)[:, :, 0], errors(truth, fused(truth, depth))[:, :, 0]
    assert after.nanmean() < 0.7 * before.nanmean()


def test_confident_views_dominate(truth: GroundTruth) -> None:
    depth = scaled_depth(truth, (1.1, 1.0, 1.0))
    follows, leads = (
        errors(truth, fused(truth, depth, confidence)) for confidence in ((1.0, 5.0, 5.0), (5.0, 1.0, 1.0))
    )
    assert follows[:, :, 0].nanmean() < 0.6 * leads[:, :, 0].nanmean()
    assert follows[:, :, 1:].nanmean() < 0.6 * leads[:, :, 1:].nanmean()


def test_distant_surfaces_are_not_fused(truth: GroundTruth) -> None:
    depth = scaled_depth(truth, (3.0, 1.0, 1.0))
    assert errors(truth, fused(truth, depth))[:, :, 1:].nanmean() < 0.03


def test_single_views_and_views_without_overlap_are_unchanged(truth: GroundTruth) -> None:
    depth, cameras = scaled_depth(truth, (1.1, 1.0, 1.0)), true_cameras(truth)
    single = fuse_depth(views_without_matches(depth[:1]), cameras[:, :, :1], depth[:1])
    assert single[0].eq(0).all()
    pose = cameras.world_to_camera.clone()
    pose[:, :, 1] = torch.diag(torch.tensor([-1.0, 1, -1, 1], dtype=torch.float64)) @ pose[:, :, 0]  # faces backwards
    pose[:, :, 2, :3, 3] += 1e4
    separate = fuse_depth(views_without_matches(depth), replace(cameras, world_to_camera=pose), depth)
    assert torch.stack(separate).eq(0).all()


def test_fusion_is_independent_of_the_unit_and_of_the_order_of_instants(truth: GroundTruth) -> None:
    depth, cameras = scaled_depth(truth, (1.1, 1.0, 0.95)), true_cameras(truth)
    corrections = torch.stack(fuse_depth(views_without_matches(depth), cameras, depth))
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = [50 * own for own in depth]
    in_other_unit = fuse_depth(views_without_matches(scaled), replace(cameras, world_to_camera=pose), scaled)
    assert ((corrections - torch.stack(in_other_unit)).abs() < 1e-3).float().mean() > 0.999
    reverse = [own.flip(1) for own in depth]
    flipped = replace(cameras, world_to_camera=cameras.world_to_camera.flip(1), intrinsics=cameras.intrinsics.flip(1))
    reversed_corrections = torch.stack(fuse_depth(views_without_matches(reverse), flipped, reverse))
    assert torch.equal(reversed_corrections.flip(2), corrections)


def test_views_of_different_sizes_are_fused(truth: GroundTruth) -> None:
    """The last view without its lowest rows: the overlap with the rest is fused as before."""
    rows, depth = 48, scaled_depth(truth, (1.1, 1.0, 0.95))
    whole = fuse_depth(views_without_matches(depth), true_cameras(truth), depth)
    cut = [*depth[:2], depth[2][..., :rows, :]]
    found = fuse_depth(views_without_matches(cut), true_cameras(truth), cut)
    assert found[2].shape[-2:] == (rows, SIZE[1])
    for one, other in zip(found, (whole[0], whole[1], whole[2][..., :rows, :]), strict=True):
        assert ((one - other).abs() < 0.02).float().mean() > 0.75
