"""Relative poses of two views: errors, decomposition, RANSAC and refinement."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.rig.epipolar import (
    Array,
    RelativePose,
    decompose_essential,
    estimate_pose,
    in_front,
    normalized_points,
    refine_pose,
    relative_pose_of,
    sampson_errors,
)
from page4d.rig.records import Lens, direction_angle_deg, rotation_angle_deg


def inverse(pose: RelativePose) -> RelativePose:
    return RelativePose(rotation=pose.rotation.T, direction=-pose.rotation.T @ pose.direction)


def two_views(angle_deg: float = 70.0, num_points: int = 300, seed: int = 0) -> tuple[RelativePose, Array, Array]:
    """Return a pose and normalised points of both views of a cloud at distance 4, seen under `angle_deg`."""
    points = np.random.default_rng(seed).normal(size=(num_points, 3)) * [0.6, 0.8, 0.6] + [0, 0, 4]
    axis = np.array([0.1, 1.0, 0.05])
    rotation = Rotation.from_rotvec(np.radians(angle_deg) * axis / np.linalg.norm(axis)).as_matrix()
    translation = np.array([0.1, -0.2, 4.2]) - rotation @ [0, 0, 4]
    other = points @ rotation.T + translation
    direction = translation / np.linalg.norm(translation)
    return (
        RelativePose(rotation=rotation, direction=direction),
        points[:, :2] / points[:, 2:],
        other[:, :2] / other[:, 2:],
    )


def disturbed(pose: RelativePose, angle_deg: float) -> RelativePose:
    """Rotate rotation and direction by about `angle_deg`."""
    turn = Rotation.from_rotvec(np.radians(angle_deg) * np.array([0.5, -0.6, 0.62])).as_matrix()
    return RelativePose(rotation=turn @ pose.rotation, direction=turn.T @ pose.direction)


def angle_between(first: RelativePose, second: RelativePose) -> float:
    return max(
        rotation_angle_deg(first.rotation, second.rotation), direction_angle_deg(first.direction, second.direction)
    )


@pytest.mark.parametrize("angle_deg", [8.0, 49.0, 110.0, 174.0])
def test_true_poses_have_no_error_and_are_recovered_from_the_essential_matrix(angle_deg: float) -> None:
    pose, first, second = two_views(angle_deg)
    np.testing.assert_allclose(sampson_errors(pose.essential, first, second), 0, atol=1e-14)
    assert in_front(pose, first, second).all()
    ones = np.ones(len(first))
    assert angle_between(decompose_essential(-3 * pose.essential, first, second, ones), pose) < 1e-6
    assert angle_between(decompose_essential(pose.essential.T, second, first, ones), inverse(pose)) < 1e-6


def test_the_error_is_the_distance_to_the_constraint() -> None:
    """To first order, points moved by the Sampson correction satisfy the constraint, and no shorter move does."""
    pose, first, second = two_views()
    rng = np.random.default_rng(1)
    noisy = first + rng.normal(size=first.shape) * 1e-4
    noisy_second = second + rng.normal(size=second.shape) * 1e-4
    errors = sampson_errors(pose.essential, noisy, noisy_second)
    assert np.std(errors) == pytest.approx(1e-4, rel=0.1), "one of the four coordinates' noise remains"
    inverse = np.linalg.inv(np.array([[1500.0, 0, 960], [0, 1500, 540], [0, 0, 1]]))
    fundamental = inverse.T @ pose.essential @ inverse
    scaled = [1500 * points + [960, 540] for points in (noisy, noisy_second)]
    np.testing.assert_allclose(sampson_errors(fundamental, *scaled), 1500 * errors, rtol=1e-6)


@pytest.mark.parametrize("angle_deg", [49.0, 110.0, 174.0])
def test_refinement_reaches_the_exact_pose_from_ten_degrees(angle_deg: float) -> None:
    pose, first, second = two_views(angle_deg)
    refined = refine_pose(disturbed(pose, 10), first, second, np.ones(len(first)), scale=0.05)
    assert angle_between(refined, pose) < 1e-4


def test_refinement_tolerates_outliers_and_ignores_points_without_weight() -> None:
    pose, first, second = two_views()
    rng = np.random.default_rng(2)
    second[:90] += rng.normal(size=(90, 2)) * 0.2
    second[90:200] = rng.normal(size=(110, 2))
    weights = np.ones(len(first))
    weights[90:200] = 0
    refined = refine_pose(disturbed(pose, 3), first, second, weights, scale=0.0003)
    assert angle_between(refined, pose) < 0.05


def test_refinement_is_the_same_for_exchanged_views() -> None:
    pose, first, second = two_views()
    rng = np.random.default_rng(3)
    first, second = (points + rng.normal(size=points.shape) * 3e-3 for points in (first, second))
    weights = rng.uniform(0.2, 1, len(first))
    forward = refine_pose(disturbed(pose, 5), first, second, weights, scale=0.003)
    backward = refine_pose(inverse(disturbed(pose, 5)), second, first, weights, scale=0.003)
    assert angle_between(forward, inverse(backward)) < 1e-2


@pytest.mark.parametrize("angle_deg", [49.0, 110.0, 174.0])
def test_ransac_finds_the_pose_among_outliers_and_repeats_its_result(angle_deg: float) -> None:
    pose, first, second = two_views(angle_deg)
    rng = np.random.default_rng(4)
    second = second + rng.normal(size=second.shape) * 1e-3
    second[:150] = rng.normal(size=(150, 2)) * 0.3
    estimates = [estimate_pose(first, second, threshold=0.0045, seed=seed) for seed in (5, 5)]
    refined = refine_pose(estimates[0], first, second, np.ones(len(first)), scale=0.003)
    assert angle_between(refined, pose) < 1
    np.testing.assert_array_equal(estimates[0].essential, estimates[1].essential)


@pytest.mark.parametrize("num_points", [0, 4, 300])
def test_ransac_answers_none_or_a_pose_for_degenerate_points(num_points: int) -> None:
    same = np.full((num_points, 2), 0.1)
    estimate = estimate_pose(same, same, threshold=0.0045)
    assert estimate is None or np.isfinite(estimate.essential).all()
    assert num_points > 8 or estimate is None


def test_points_behind_a_camera_are_not_in_front() -> None:
    pose, first, second = two_views()
    mirrored = RelativePose(rotation=pose.rotation, direction=-pose.direction)
    assert not in_front(mirrored, first, second).any()


def test_relative_poses_of_cameras_and_of_coincident_cameras() -> None:
    pose, _, _ = two_views()
    first, second = np.eye(4), np.eye(4)
    second[:3, :3], second[:3, 3] = pose.rotation, 2.5 * pose.direction
    assert angle_between(relative_pose_of(first, second), pose) < 1e-6
    assert relative_pose_of(first, first) is None


def test_normalisation_inverts_the_intrinsics() -> None:
    lens = Lens(intrinsics=np.array([[900.0, 3, 310], [0, 880, 250], [0, 0, 1]]), image_size=(480, 640))
    points = np.random.default_rng(0).normal(size=(5, 2))
    pixels = np.concatenate([points, np.ones((5, 1))], axis=1) @ lens.intrinsics.T
    np.testing.assert_allclose(normalized_points(pixels[:, :2], lens), points, atol=1e-12)
