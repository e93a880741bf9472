"""Feature sweep: depth moves to where descriptors match along the ray, and is unchanged without evidence."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, world_points
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.inputs.matching import Matches, MatchFeatures, to_pixels
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.stereo.sweep import sweep_features
from page4d.stereo.views import ViewPrediction
from tests.stereo.synthetic_rigs import FINER, KINDS, PATCH, true_cameras

SIZE = (64, 80)
SPATIAL_FREQUENCY = 16
"""Of the descriptors."""

FACTOR = 1.3
"""Error of the initial depth."""


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], SceneRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(15, 16)))


def describe(points: Tensor, side: int) -> Tensor:
    """Describe squares of an image by the position of the surface in their middle: nearby points are similar.

    The middle is the mean of the four pixels around it. Distances far from the origin are compressed.
    """
    at = slice(side // 2 - 1, None, side), slice(side // 2, None, side)
    around = [points[:, :, :, row, column] for row in at for column in at]
    places = torch.stack(around).mean(dim=0).flatten(3, 4)
    unit = places.norm(dim=-1, keepdim=True).flatten(1).median(dim=1).values.reshape(-1, 1, 1, 1, 1)
    places = places / (unit + places.norm(dim=-1, keepdim=True))
    random = torch.Generator().manual_seed(0)
    waves = torch.randn(3, 64, generator=random, dtype=points.dtype) * SPATIAL_FREQUENCY
    phase = torch.rand(64, generator=random, dtype=points.dtype) * 2 * torch.pi
    return torch.nn.functional.normalize((places @ waves + phase).cos(), dim=-1)


@pytest.fixture(scope="module")
def views(truth: GroundTruth) -> list[ViewPrediction]:
    points = world_points(truth.depth.double(), true_cameras(truth))
    none = torch.zeros(2, 2, 3, len(KINDS), 80)
    matches = Matches(
        expected=torch.stack([none] * 2, dim=-1),
        confidence=none,
        targets=KINDS,
        features=MatchFeatures(
            patches=40 * describe(points, PATCH),
            cells=describe(points, PATCH // FINER),
            unseen=torch.tensor(28.0).double(),
            finer=FINER,
        ),
    )
    output = NetworkOutput(depth=truth.depth, dynamic=truth.dynamic.float(), matches=matches)
    return [ViewPrediction(output=output.of_view(view), patch_size=PATCH) for view in range(3)]


def with_output(view: ViewPrediction, **changes) -> ViewPrediction:
    return replace(view, output=replace(view.output, **changes))


def with_features(view: ViewPrediction, **changes) -> ViewPrediction:
    features = replace(view.matches.features, **changes)
    return with_output(view, matches=replace(view.matches, features=features))


def flat_cameras(truth: GroundTruth) -> Cameras:
    """Return the true cameras as [B, T*V]."""
    cameras = true_cameras(truth)
    return replace(
        cameras, world_to_camera=cameras.world_to_camera.flatten(1, 2), intrinsics=cameras.intrinsics.flatten(1, 2)
    )


def depth_of(views: list[ViewPrediction]) -> Tensor:
    return torch.stack([view.patch_depth for view in views], dim=2).flatten(1, 2)


def errors(depth: Tensor, views: list[ViewPrediction]) -> Tensor:
    """Return |log| of the ratio of depths to their true values, of patches with known depth."""
    true = depth_of(views)
    return (depth / true).log().abs()[(true > 0) & true.isfinite()]


@pytest.mark.parametrize("factor", [FACTOR, 1 / FACTOR])
def test_depth_is_found_where_descriptors_match(truth: GroundTruth, views: list[ViewPrediction], factor: float):
    initial = depth_of(views) * factor
    before, after = errors(initial, views), errors(sweep_features(views, flat_cameras(truth), initial), views)
    assert after.median() < 0.25 * before.median()
    assert (after < 0.1).float().mean() > 0.6  # some patches are visible in one view only


def test_depth_is_unchanged_without_matching_descriptors(truth: GroundTruth, views: list[ViewPrediction]):
    dissimilar = [with_features(view, unseen=torch.tensor(400.0).double()) for view in views]
    without = [with_output(view, matches=replace(view.matches, features=None)) for view in views]
    initial = depth_of(views) * FACTOR
    for some in (dissimilar, without):
        torch.testing.assert_close(sweep_features(some, flat_cameras(truth), initial), initial)


def test_the_sweep_is_independent_of_the_unit_of_length(truth: GroundTruth, views: list[ViewPrediction]):
    cameras, initial = flat_cameras(truth), depth_of(views) * FACTOR
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    scaled = sweep_features(views, replace(cameras, world_to_camera=pose), initial * 50)
    torch.testing.assert_close(scaled / 50, sweep_features(views, cameras, initial))


def test_scenes_of_a_batch_are_independent(truth: GroundTruth, views: list[ViewPrediction]):
    cameras, initial = flat_cameras(truth), depth_of(views) * FACTOR
    first = []
    for view in views:
        own = view.matches.features
        one = with_features(view, patches=own.patches[:1], cells=own.cells[:1])
        first.append(with_output(one, depth=view.output.depth[:1], dynamic=view.output.dynamic[:1]))
    found = sweep_features(first, cameras[:1], initial[:1])
    torch.testing.assert_close(found, sweep_features(views, cameras, initial)[:1])


def test_results_are_independent_of_the_chunk_size(monkeypatch, truth: GroundTruth, views: list[ViewPrediction]):
    initial = depth_of(views) * FACTOR
    whole = sweep_features(views, flat_cameras(truth), initial)
    monkeypatch.setattr("page4d.stereo.sweep._MAX_PAIRS", 100)
    torch.testing.assert_close(sweep_features(views, flat_cameras(truth), initial), whole)


def test_smaller_views_are_padded_and_compared(truth: GroundTruth, views: list[ViewPrediction]):
    """The last view without its lowest rows is matched with the others as before."""
    rows, last = 6, views[2]
    own = last.matches.features
    lower = with_output(
        with_features(
            last, patches=own.patches[..., : rows * 10, :], cells=own.cells[..., : rows * FINER * 10 * FINER, :]
        ),
        depth=last.output.depth[..., : rows * PATCH, :],
        dynamic=last.output.dynamic[..., : rows * PATCH, :],
    )
    initial = depth_of(views) * FACTOR
    cut = torch.unflatten(sweep_features([*views[:2], lower], flat_cameras(truth), initial), 1, (2, 3))
    whole = torch.unflatten(sweep_features(views, flat_cameras(truth), initial), 1, (2, 3))
    padding = cut[:, :, 2, rows * 10 :]
    torch.testing.assert_close(padding, torch.unflatten(initial, 1, (2, 3))[:, :, 2, rows * 10 :])
    ratio = cut[:, :, 2, : rows * 10] / whole[:, :, 2, : rows * 10]
    assert (ratio.log().abs() < 0.02).float().mean() > 0.8


def test_moving_patches_are_not_compared_between_instants(truth: GroundTruth, views: list[ViewPrediction]):
    in_time = tuple(kind for kind in KINDS if not kind.at_same_instant)
    assert in_time
    moving = [
        with_output(
            view, matches=replace(view.matches, targets=in_time), dynamic=torch.ones_like(view.output.dynamic)
        )
        for view in views
    ]
    initial = depth_of(views) * FACTOR
    torch.testing.assert_close(sweep_features(moving, flat_cameras(truth), initial), initial)


def test_patch_centers_are_in_pixels(views: list[ViewPrediction]):
    assert views[0].patch_centers[0].tolist() == pytest.approx([PATCH / 2, PATCH / 2], abs=1e-4)
    assert views[0].patch_centers[-1].tolist() == pytest.approx([SIZE[1] - PATCH / 2, SIZE[0] - PATCH / 2], abs=1e-4)
    torch.testing.assert_close(to_pixels(torch.zeros(1, 2), views[0].grid, PATCH), torch.tensor([[40.0, 32.0]]))
