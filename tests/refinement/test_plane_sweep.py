"""Depth of pixels looked for along rays is where windows of images are alike, whatever their exposure and unit."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.ground_truth import GroundTruth
from page4d.models.conditioning import Conditioning
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Matches
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.refinement.matched_view import MatchedView
from page4d.refinement.plane_sweep import look_closer
from page4d.refinement.refine import refine
from page4d.synthetic.sampler import ShotRequest, sample_truth
from page4d.training.supervised.matching_losses import centered
from page4d.training.supervised.targets import targets_of
from page4d.training.supervised.true_matches import true_correspondences
from tests.refinement.silent_views import PATCH, silent_views, true_cameras, wrong_depth

SIZE, KINDS = (64, 80), tuple(MatchTarget)
WRONG = 1.2
"""Factor by which the depths that are given are wrong."""


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], ShotRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))


@pytest.fixture(scope="module")
def cameras(truth: GroundTruth) -> Cameras:
    return true_cameras(truth)


def views_of(
    truth: GroundTruth, num_views: int = 3, kinds: tuple[MatchTarget, ...] = KINDS, confidence: float = 1.0
) -> list[MatchedView]:
    return silent_views(truth.depth.unbind(2)[:num_views], [confidence] * num_views, kinds)


def images_of(truth: GroundTruth) -> list[Tensor]:
    return list(truth.images.unbind(2))


def given(truth: GroundTruth, wrong: float = WRONG) -> list[Tensor]:
    """Return depths that are wrong by a factor."""
    return wrong_depth(truth, (wrong,) * 3)


def errors(truth: GroundTruth, corrections: Sequence[Tensor], wrong: float = WRONG) -> Tensor:
    """Return |log| of the factors that corrected depths are wrong by, where there is anything."""
    left = torch.stack(list(corrections), dim=2) + torch.tensor(wrong).log()
    return left.abs()[truth.depth > 0]


@pytest.mark.parametrize("wrong", [WRONG, 1 / WRONG])
def test_depth_is_found_where_windows_look_alike(truth: GroundTruth, cameras: Cameras, wrong: float) -> None:
    found = look_closer(views_of(truth), images_of(truth), cameras, given(truth, wrong))
    left = errors(truth, found, wrong)
    assert left.median() < 0.3 * torch.tensor(WRONG).log()
    assert (left < 0.05).float().mean() > 0.5  # some is seen by one view only, and some is flat


def test_right_depth_stays(truth: GroundTruth, cameras: Cameras) -> None:
    found = look_closer(views_of(truth), images_of(truth), cameras, given(truth, 1.0))
    assert errors(truth, found, 1.0).median() < 0.03


def test_what_a_network_is_sure_of_moves_the_least(truth: GroundTruth, cameras: Cameras) -> None:
    unsure, sure = (
        torch.stack(look_closer(views_of(truth, confidence=confidence), images_of(truth), cameras, given(truth)))
        for confidence in (1.0, 8.0)
    )
    assert sure.abs().median() < 0.5 * unsure.abs().median()


def test_what_rays_that_were_found_show_counts_less(truth: GroundTruth, cameras: Cameras) -> None:
    known, found = (
        torch.stack(look_closer(views_of(truth), images_of(truth), cameras, given(truth), cameras_are_known))
        for cameras_are_known in (True, False)
    )
    assert 0 < found.abs().mean() < 0.95 * known.abs().mean()


def test_exposure_and_offset_of_a_view_do_not_matter(truth: GroundTruth, cameras: Cameras) -> None:
    images = images_of(truth)
    darker = [images[0], 0.6 * images[1] + 0.1, images[2]]
    before, after = (look_closer(views_of(truth), some, cameras, given(truth)) for some in (images, darker))
    apart = torch.stack(after) - torch.stack(before)
    assert apart.abs().median() < 2e-3
    assert (apart.abs() < 0.05).float().mean() > 0.9  # darker windows are nearer to flat ones


def test_flat_images_and_views_alone_tell_nothing(truth: GroundTruth, cameras: Cameras) -> None:
    flat = [torch.full_like(image, 0.5) for image in images_of(truth)]
    one = cameras[:, :, :1]
    alone = look_closer(views_of(truth, 1), images_of(truth)[:1], one, given(truth)[:1])
    between = views_of(truth, kinds=(MatchTarget.NEXT_TIME,))
    for found in (
        look_closer(views_of(truth), flat, cameras, given(truth)),
        look_closer(between, images_of(truth), cameras, given(truth)),
        alone,
    ):
        assert torch.stack(found).abs().max() < 1e-5


def test_other_units_change_nothing(truth: GroundTruth, cameras: Cameras) -> None:
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = replace(cameras, world_to_camera=pose)
    here = look_closer(views_of(truth), images_of(truth), cameras, given(truth))
    there = look_closer(views_of(truth), images_of(truth), scaled, [50 * depth for depth in given(truth)])
    assert (torch.stack(there) - torch.stack(here)).abs().median() < 1e-4


def test_a_few_depths_at_a_time_say_the_same(
    truth: GroundTruth, cameras: Cameras, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = look_closer(views_of(truth), images_of(truth), cameras, given(truth))
    monkeypatch.setattr("page4d.refinement.plane_sweep._AT_ONCE", 5 * 2 * SIZE[0] * SIZE[1])
    parts = look_closer(views_of(truth), images_of(truth), cameras, given(truth))
    torch.testing.assert_close(parts, whole)


def test_views_of_other_sizes_are_compared(truth: GroundTruth, cameras: Cameras) -> None:
    """The last view without its lowest rows: what the others see of the rest is found as before."""
    rows = 48
    images, depths = images_of(truth), given(truth)
    cut = [images[0], images[1], images[2][..., :rows, :]], [depths[0], depths[1], depths[2][..., :rows, :]]
    views = views_of(truth)
    whole = look_closer(views, images, cameras, depths)
    output = views[2].output
    low = replace(output, depth=output.depth[..., :rows, :], depth_confidence=output.depth_confidence[..., :rows, :])
    found = look_closer([views[0], views[1], replace(views[2], output=low)], cut[0], cameras, cut[1])
    assert found[2].shape[-2:] == (rows, SIZE[1])
    for one, other in zip(found, (whole[0], whole[1], whole[2][..., :rows, :]), strict=True):
        assert ((one - other).abs() < 0.02).float().mean() > 0.75


def test_refined_depth_of_known_cameras_comes_closer_if_images_are_given(truth: GroundTruth) -> None:
    true = true_correspondences(targets_of(truth), PATCH, KINDS)
    expected = centered(true.position, (8, 10))
    noise = 0.07 * torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))  # some 3 px
    matches = Matches(likelihoods=None, expected=expected + noise, confidence=0.4 * true.seen.float(), targets=KINDS)
    known = truth.depth > 0
    output = NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        depth=torch.where(known, truth.depth, 60) * torch.linspace(0.85, 1.15, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=matches,
    )
    conditioning = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)

    def error(said: NetworkOutput) -> float:
        slip = (said.depth / truth.depth).log()[known]
        return float((slip - slip.median()).abs().mean())

    without, better = refine(output, PATCH, 2, conditioning), refine(output, PATCH, 2, conditioning, truth.images)
    assert error(better) < 0.9 * error(without) < 0.9 * error(output)
    for name in ("world_to_camera", "intrinsics", "depth_confidence"):
        assert torch.equal(getattr(better, name), getattr(without, name))
    mixed = MixedOutput(
        views=tuple(output.of_view(view) for view in range(3)),
        matches=tuple(matches.of_view(view) for view in range(3)),
    )
    apart = refine(mixed, PATCH, 2, conditioning, images_of(truth))
    torch.testing.assert_close(torch.cat([view.depth for view in apart.views], dim=2), better.depth)
