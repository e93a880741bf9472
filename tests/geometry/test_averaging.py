"""Robust averages: equivariance, outliers, and exactness without noise."""

import pytest
import torch
from torch import Tensor

from page4d.geometry.alignment import (
    DegenerateGeometryError,
    align_cameras_robust,
    baseline_ratio,
    geometric_median,
    median_camera,
    median_rotation,
)
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector, mean_rotation, rotation_angle
from page4d.geometry.statistics import central_weighted_median
from page4d.geometry.transforms import camera_centers, rigid
from tests.geometry.geometry_samples import close, intrinsics, normal, rotations, similarities, transforms


def noisy(truth: Tensor, count: int, seed: int, size: float = 0.01) -> Tensor:
    """Return K noisy samples [K, *batch] of rotations."""
    return truth @ matrix_from_rotation_vector(size * normal(count, *truth.shape[:-2], 3, seed=seed))


def test_the_median_of_equal_samples_is_the_sample() -> None:
    point, turn = normal(4, 3, seed=1), rotations(4, seed=2)
    close(geometric_median(point[:, None].expand(4, 7, 3)), point)
    close(median_rotation(turn[:, None].expand(4, 7, 3, 3)), turn, factor=10)
    close(median_rotation(turn[:, None]), turn, factor=10)


def test_the_median_of_points_has_the_smallest_sum_of_distances() -> None:
    points = normal(5, 9, 3, seed=3)
    found = geometric_median(points)
    cost = (points - found[:, None]).norm(dim=-1).sum(-1)
    for seed in range(20):
        other = found + 1e-3 * normal(5, 3, seed=seed)
        assert bool(((points - other[:, None]).norm(dim=-1).sum(-1) > cost - 1e-9).all())


def test_averages_are_equivariant_to_similarities() -> None:
    move = similarities(seed=4)
    points, turns = normal(11, 3, seed=5), noisy(rotations(seed=6), 11, seed=7, size=0.3)
    close(geometric_median(move.apply(points)), move.apply(geometric_median(points)), factor=1e4)
    left, right = rotations(2, seed=8)
    close(median_rotation(left @ turns @ right), left @ median_rotation(turns) @ right, factor=1e4)
    poses = rigid(turns, points)[:, None]
    lens = intrinsics(11, 1, seed=9)
    average, moved = (
        median_camera(Cameras(world_to_camera=pose, intrinsics=lens, image_size=(30, 40)))
        for pose in (poses, move.apply_to_cameras(poses))
    )
    close(moved.world_to_camera, move.apply_to_cameras(average.world_to_camera), factor=1e4)


@pytest.mark.parametrize("seed", range(5))
def test_the_median_camera_tolerates_20_percent_outliers(seed: int) -> None:
    truth, lens = transforms(2, seed=seed), intrinsics(2, seed=seed)
    turns = noisy(truth[:, :3, :3], 30, seed=seed + 1)
    centers = camera_centers(truth) + 0.01 * normal(30, 2, 3, seed=seed + 2)
    turns[:6], centers[:6] = rotations(6, 2, seed=seed + 3), 10 + 5 * normal(6, 2, 3, seed=seed + 4)
    shaken = lens * torch.exp(0.01 * normal(30, 2, 1, 1, seed=seed + 5))
    shaken[..., 2, 2], shaken[:6, :, 0, 0] = 1, 500
    poses = rigid(turns, -(turns @ centers[..., None])[..., 0])
    found = median_camera(Cameras(world_to_camera=poses, intrinsics=shaken, image_size=(30, 40)))
    assert float((found.centers - camera_centers(truth)).norm(dim=-1).max()) < 0.012
    assert float(rotation_angle(found.world_to_camera[:, :3, :3], truth[:, :3, :3]).max()) < 0.012
    assert float((found.intrinsics[:, 0, 0] / lens[:, 0, 0] - 1).abs().max()) < 0.01
    mean = mean_rotation(turns.transpose(0, 1))
    assert float(rotation_angle(mean, truth[:, :3, :3]).max()) > 0.05, (
        "the mean must fail for the test to be meaningful"
    )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_robust_alignment_recovers_an_exact_similarity(count: int) -> None:
    move, source = similarities(seed=count), transforms(count, seed=count + 1)
    found = align_cameras_robust(source, move.apply_to_cameras(source))
    close(found.matrix(), move.matrix(), factor=1e4)
    kept = align_cameras_robust(source, move.apply_to_cameras(source), scale=2 * move.scale)
    assert float(kept.scale) == 2 * float(move.scale)


def test_robust_alignment_ignores_one_outlier_of_five_cameras() -> None:
    move, source = similarities(seed=3), transforms(5, seed=4)
    target = move.apply_to_cameras(source)
    target[2] = transforms(seed=5)
    found = align_cameras_robust(source, target)
    good = [0, 1, 3, 4]
    close(found.apply_to_cameras(source)[good], target[good], factor=1e8)


def test_coincident_cameras_leave_the_scale_undetermined() -> None:
    source = rigid(rotations(3, seed=1), torch.zeros(3, 3, dtype=torch.float64))
    with pytest.raises(DegenerateGeometryError, match="scale is undetermined"):
        align_cameras_robust(source, source)
    assert baseline_ratio(torch.zeros(1, 3), torch.zeros(1, 3)) is None


def test_the_weighted_median_splits_the_weight_in_half() -> None:
    values = torch.tensor([3.0, 1.0, 2.0, 10.0])
    assert float(central_weighted_median(values, torch.tensor([1.0, 1.0, 1.0, 1.0]))) == 2.5
    assert float(central_weighted_median(values, torch.tensor([1.0, 5.0, 1.0, 1.0]))) == 1.0
    assert float(central_weighted_median(values[:1], torch.tensor([2.0]))) == 3.0
