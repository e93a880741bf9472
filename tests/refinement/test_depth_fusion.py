"""Views agree on surfaces that they see in common, and keep what they alone see."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.ground_truth import GroundTruth
from page4d.refinement.depth_fusion import agree
from page4d.synthetic.sampler import ShotRequest, sample_truth
from tests.refinement.silent_views import silent_views, true_cameras, wrong_depth

SIZE = (64, 80)


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], ShotRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))


def errors(truth: GroundTruth, depth: list[Tensor]) -> Tensor:
    """Return |log| of depth by the true one, with nothing where there is none."""
    return torch.where(truth.depth > 0, (torch.stack(depth, dim=2) / truth.depth).log().abs(), torch.nan)


def corrected(
    truth: GroundTruth, depth: list[Tensor], confidence: tuple[float, ...] = (2.0, 2.0, 2.0)
) -> list[Tensor]:
    found = agree(silent_views(depth, confidence), true_cameras(truth), depth)
    return [own * correction.exp() for own, correction in zip(depth, found, strict=True)]


def test_true_depth_stays(truth: GroundTruth) -> None:
    depth = wrong_depth(truth, (1.0, 1.0, 1.0))
    left = errors(truth, corrected(truth, depth))
    assert left.nanmedian() < 2e-3
    assert left.nanmean() < 0.015  # pixels next to edges are shown between two surfaces


def test_a_view_that_is_wrong_comes_closer_to_the_others(truth: GroundTruth) -> None:
    depth = wrong_depth(truth, (1.1, 1.0, 1.0))
    before, after = errors(truth, depth)[:, :, 0], errors(truth, corrected(truth, depth))[:, :, 0]
    assert after.nanmean() < 0.7 * before.nanmean()


def test_the_surer_views_are_followed(truth: GroundTruth) -> None:
    depth = wrong_depth(truth, (1.1, 1.0, 1.0))
    followed, led = (errors(truth, corrected(truth, depth, sure)) for sure in ((1.0, 5.0, 5.0), (5.0, 1.0, 1.0)))
    assert followed[:, :, 0].nanmean() < 0.6 * led[:, :, 0].nanmean()
    assert followed[:, :, 1:].nanmean() < 0.6 * led[:, :, 1:].nanmean()


def test_what_is_far_apart_is_another_surface(truth: GroundTruth) -> None:
    depth = wrong_depth(truth, (3.0, 1.0, 1.0))
    assert errors(truth, corrected(truth, depth))[:, :, 1:].nanmean() < 0.03


def test_a_view_alone_and_views_that_see_nothing_in_common_stay(truth: GroundTruth) -> None:
    depth = wrong_depth(truth, (1.1, 1.0, 1.0))
    alone = agree(silent_views(depth[:1]), true_cameras(truth)[:, :, :1], depth[:1])
    assert alone[0].eq(0).all()
    cameras = true_cameras(truth)
    away = cameras.world_to_camera.clone()
    away[:, :, 1] = torch.diag(torch.tensor([-1.0, 1, -1, 1], dtype=torch.float64)) @ away[:, :, 0]  # looks back
    away[:, :, 2, :3, 3] += 1e4
    found = agree(silent_views(depth), replace(cameras, world_to_camera=away), depth)
    assert torch.stack(found).eq(0).all()


def test_other_units_and_the_order_of_times_change_nothing(truth: GroundTruth) -> None:
    depth, cameras = wrong_depth(truth, (1.1, 1.0, 0.95)), true_cameras(truth)
    here = torch.stack(agree(silent_views(depth), cameras, depth))
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = [50 * own for own in depth]
    there = torch.stack(agree(silent_views(scaled), replace(cameras, world_to_camera=pose), scaled))
    assert ((here - there).abs() < 1e-3).float().mean() > 0.999
    turned = [own.flip(1) for own in depth]
    back = replace(cameras, world_to_camera=cameras.world_to_camera.flip(1), intrinsics=cameras.intrinsics.flip(1))
    assert torch.equal(torch.stack(agree(silent_views(turned), back, turned)).flip(2), here)


def test_views_of_other_sizes_agree(truth: GroundTruth) -> None:
    """The last view without its lowest rows: what the others see of the rest is as before."""
    rows, depth = 48, wrong_depth(truth, (1.1, 1.0, 0.95))
    whole = agree(silent_views(depth), true_cameras(truth), depth)
    cut = [*depth[:2], depth[2][..., :rows, :]]
    found = agree(silent_views(cut), true_cameras(truth), cut)
    assert found[2].shape[-2:] == (rows, SIZE[1])
    for one, other in zip(found, (whole[0], whole[1], whole[2][..., :rows, :]), strict=True):
        assert ((one - other).abs() < 0.02).float().mean() > 0.75
