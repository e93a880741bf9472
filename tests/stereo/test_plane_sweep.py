"""Plane sweep: depth moves to the best NCC of windows, independently of exposure, unit and chunk size."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.conditioning import Conditioning, ViewGroups
from page4d.networks.config_parts import MatchTarget
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.records import GroundTruth
from page4d.stereo.descriptors import DenseDescriptors
from page4d.stereo.refine import run_refinement
from page4d.stereo.state import StaticDepth
from page4d.stereo.sweep import sweep_planes
from page4d.stereo.views import ViewPrediction
from tests.stereo.synthetic_rigs import (
    FINER,
    KINDS,
    PATCH,
    filled_depth,
    refined,
    scaled_depth,
    true_cameras,
    true_matches,
    views_without_matches,
)

SIZE = (64, 80)
FACTOR = 1.2
"""Error of the initial depth."""


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], SceneRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(10, 11)))


@pytest.fixture(scope="module")
def cameras(truth: GroundTruth) -> Cameras:
    return true_cameras(truth)


def views_of(
    truth: GroundTruth, num_views: int = 3, kinds: tuple[MatchTarget, ...] = KINDS, confidence: float = 1.0
) -> list[ViewPrediction]:
    return views_without_matches(truth.depth.unbind(2)[:num_views], [confidence] * num_views, kinds)


def images_of(truth: GroundTruth) -> list[Tensor]:
    return list(truth.images.unbind(2))


def initial(truth: GroundTruth, factor: float = FACTOR) -> list[Tensor]:
    return scaled_depth(truth, (factor,) * 3)


def errors(truth: GroundTruth, corrections: Sequence[Tensor], factor: float = FACTOR) -> Tensor:
    """Return |log| of the ratio of corrected depth to its true value, where this is known."""
    error = torch.stack(list(corrections), dim=2) + torch.tensor(factor).log()
    return error.abs()[truth.depth > 0]


@pytest.mark.parametrize("factor", [FACTOR, 1 / FACTOR])
def test_depth_is_found_where_windows_correlate(truth: GroundTruth, cameras: Cameras, factor: float):
    error = errors(truth, sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth, factor)), factor)
    assert error.median() < 0.3 * torch.tensor(FACTOR).log()
    assert (error < 0.05).float().mean() > 0.5  # some windows are visible in one view only, some are flat


def test_true_depth_is_preserved(truth: GroundTruth, cameras: Cameras):
    corrections = sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth, 1.0))
    assert errors(truth, corrections, 1.0).median() < 0.03


def test_confident_depth_moves_less(truth: GroundTruth, cameras: Cameras):
    low, high = (
        torch.stack(sweep_planes(views_of(truth, confidence=confidence), images_of(truth), cameras, initial(truth)))
        for confidence in (1.0, 8.0)
    )
    assert high.abs().median() < 0.5 * low.abs().median()


def test_windows_weigh_less_along_estimated_rays(truth: GroundTruth, cameras: Cameras):
    known, estimated = (
        torch.stack(sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth), cameras_are_known))
        for cameras_are_known in (True, False)
    )
    assert 0 < estimated.abs().mean() < known.abs().mean()


def test_depth_is_independent_of_exposure_and_offset(truth: GroundTruth, cameras: Cameras):
    images = images_of(truth)
    darker = [images[0], 0.6 * images[1] + 0.1, images[2]]
    before, after = (sweep_planes(views_of(truth), some, cameras, initial(truth)) for some in (images, darker))
    apart = torch.stack(after) - torch.stack(before)
    assert apart.abs().median() < 2e-3
    assert (apart.abs() < 0.05).float().mean() > 0.9  # darker windows are closer to the minimum variance


def test_flat_images_and_single_views_give_no_evidence(truth: GroundTruth, cameras: Cameras):
    flat = [torch.full_like(image, 0.5) for image in images_of(truth)]
    single = sweep_planes(views_of(truth, 1), images_of(truth)[:1], cameras[:, :, :1], initial(truth)[:1])
    in_time = views_of(truth, kinds=(MatchTarget.NEXT_TIME,))
    for corrections in (
        sweep_planes(views_of(truth), flat, cameras, initial(truth)),
        sweep_planes(in_time, images_of(truth), cameras, initial(truth)),
        single,
    ):
        assert torch.stack(corrections).abs().max() < 1e-5


def test_depth_is_independent_of_the_unit_of_length(truth: GroundTruth, cameras: Cameras):
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled_cameras = replace(cameras, world_to_camera=pose)
    corrections = sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth))
    scaled = sweep_planes(views_of(truth), images_of(truth), scaled_cameras, [50 * depth for depth in initial(truth)])
    assert (torch.stack(scaled) - torch.stack(corrections)).abs().median() < 1e-4


def test_results_are_independent_of_the_chunk_size(truth: GroundTruth, cameras: Cameras, monkeypatch):
    whole = sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth))
    monkeypatch.setattr("page4d.stereo.sweep._MAX_SAMPLES", 5 * 2 * SIZE[0] * SIZE[1])
    parts = sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth))
    torch.testing.assert_close(parts, whole)


def test_views_of_different_sizes_are_compared(truth: GroundTruth, cameras: Cameras):
    """The last view without its lowest rows: the depth of the rest is found as before."""
    rows, views, images, depths = 48, views_of(truth), images_of(truth), initial(truth)
    whole = sweep_planes(views, images, cameras, depths)
    output = views[2].output
    low = replace(output, depth=output.depth[..., :rows, :], depth_confidence=output.depth_confidence[..., :rows, :])
    cut = sweep_planes(
        [*views[:2], replace(views[2], output=low)],
        [*images[:2], images[2][..., :rows, :]],
        cameras,
        [*depths[:2], depths[2][..., :rows, :]],
    )
    assert cut[2].shape[-2:] == (rows, SIZE[1])
    for one, other in zip(cut, (whole[0], whole[1], whole[2][..., :rows, :]), strict=True):
        assert ((one - other).abs() < 0.02).float().mean() > 0.75


def test_only_regions_are_swept(truth: GroundTruth, cameras: Cameras):
    """The middle of a region has the depth of the whole sweep, the rest of the image none."""
    whole = sweep_planes(views_of(truth), images_of(truth), cameras, initial(truth))
    rows, columns = slice(8, 56), slice(16, 72)
    found = sweep_planes(
        views_of(truth), images_of(truth), cameras, initial(truth), regions=[[(rows, columns)], [], [(rows, columns)]]
    )
    for view in (0, 2):
        middle = (..., slice(16, 48), slice(24, 64))
        assert ((found[view] - whole[view])[middle].abs() < 0.02).float().mean() > 0.9
        found[view][..., rows, columns] = 0
    assert not torch.stack(found).any()


def test_refined_depth_of_known_cameras_is_more_accurate_with_images(truth: GroundTruth):
    matches = true_matches(truth)
    noise = 0.07 * torch.randn(matches.expected.shape, generator=torch.Generator().manual_seed(0))  # about 3 px
    known = truth.depth > 0
    output = NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        depth=filled_depth(truth) * torch.linspace(0.85, 1.15, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=replace(matches, expected=matches.expected + noise, confidence=0.4 * matches.confidence),
    )
    conditioning = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)

    def error(found: NetworkOutput) -> float:
        ratio = (found.depth / truth.depth).log()[known]
        return float((ratio - ratio.median()).abs().mean())

    without = refined(output, conditioning=conditioning)
    with_images = refined(output, conditioning=conditioning, images=truth.images)
    assert error(with_images) < 0.9 * error(without) < 0.9 * error(output)
    for name in ("world_to_camera", "intrinsics", "depth_confidence"):
        assert torch.equal(getattr(with_images, name), getattr(without, name))
    rig = RigOutput(
        outputs=tuple(output.of_view(view) for view in range(3)), groups=ViewGroups(members=((0,), (1,), (2,)))
    )
    separate = run_refinement(rig, PATCH, FINER, conditioning, images_of(truth)).output
    torch.testing.assert_close(torch.cat([view.depth for view in separate.views], dim=2), with_images.depth)


def test_known_static_depth_is_kept_and_open_pixels_are_as_accurate(truth: GroundTruth):
    output = NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        depth=filled_depth(truth) * torch.linspace(0.85, 1.15, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 2.0),
        matches=true_matches(truth),
    )
    known = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)
    is_open = torch.zeros_like(truth.depth, dtype=torch.bool)
    is_open[:, :, :2, 16:48, 24:64] = True  # nothing in the last view

    def depth_of(static: list[StaticDepth] | None, descriptors: DenseDescriptors | None = None) -> Tensor:
        options = {"static": static, "descriptors": descriptors}
        found = run_refinement(RigOutput.of(output), PATCH, FINER, known, truth.images, **options)
        return found.output.outputs[0].depth * found.rig_scale[:, None, None, None, None]

    maps = zip(is_open.unbind(2), filled_depth(truth).unbind(2), strict=True)
    static = [StaticDepth(torch.where(mask, 0.0, depth), mask) for mask, depth in maps]
    partly, whole = depth_of(static), depth_of(None)
    compared = is_open & (truth.depth > 0)
    errors = [(depth / truth.depth).log()[compared].abs().mean() for depth in (partly, whole, output.depth)]
    assert errors[0] < min(1.05 * errors[1], 0.9 * errors[2])
    torch.testing.assert_close(partly[~is_open].float(), filled_depth(truth)[~is_open])
    closed = [one._replace(is_open=torch.zeros_like(one.is_open)) for one in static]
    unused = DenseDescriptors(network=None, sha256="")  # it would fail
    torch.testing.assert_close(depth_of(closed, unused)[~is_open], partly[~is_open])
