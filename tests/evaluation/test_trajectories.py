"""Trajectory errors against evo, and alignment of degenerate rigs."""

import numpy as np
import pytest
import torch

from page4d.evaluation.cameras import (
    RigAlignment,
    absolute_errors,
    align_rig,
    baseline_ratios,
    focal_errors,
    relative_errors,
    root_mean_square,
)
from page4d.geometry.transforms import invert_rigid, is_constant, rigid
from tests.evaluation.rigs import disturbed, random_rig, random_similarity

evo_metrics = pytest.importorskip("evo.core.metrics", reason="evo is the reference")
evo_trajectory = pytest.importorskip("evo.core.trajectory", reason="evo is the reference")


def path(world_to_camera: torch.Tensor) -> object:
    return evo_trajectory.PosePath3D(poses_se3=list(invert_rigid(world_to_camera).numpy()))


def rmse(metric: object, true: object, predicted: object) -> float:
    metric.process_data((true, predicted))
    return metric.get_statistic(evo_metrics.StatisticsType.rmse)


@pytest.mark.parametrize("seed", range(3))
def test_trajectory_errors_equal_those_of_evo(seed: int) -> None:
    true = random_rig(seed, 20)
    predicted = random_similarity(seed).apply_to_cameras(disturbed(true, seed + 10, 0.2))
    rig = align_rig(predicted, true)
    assert rig.method is RigAlignment.CENTERS
    aligned = rig.transform.apply_to_cameras(predicted)
    distance, rotation = absolute_errors(aligned, true)
    step, step_deg = relative_errors(aligned, true)
    goal, guess = path(true), path(predicted)
    guess.align(goal, correct_scale=True)
    relation = evo_metrics.PoseRelation
    every_frame = {"delta": 1, "delta_unit": evo_metrics.Unit.frames, "all_pairs": True}
    expected = [
        rmse(evo_metrics.APE(relation.translation_part), goal, guess),
        rmse(evo_metrics.APE(relation.rotation_angle_deg), goal, guess),
        rmse(evo_metrics.RPE(relation.translation_part, **every_frame), goal, guess),
        rmse(evo_metrics.RPE(relation.rotation_angle_deg, **every_frame), goal, guess),
    ]
    found = [root_mean_square(errors) for errors in (distance, rotation, step, step_deg)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_rig_is_aligned_over_all_views_and_instants_at_once() -> None:
    true = random_rig(0, 3 * 5)
    predicted = random_similarity(1).apply_to_cameras(disturbed(true, 2, 0.1))
    goal, guess = path(true), path(predicted)
    rotation, translation, scale = guess.align(goal, correct_scale=True)
    found = align_rig(predicted, true).transform
    np.testing.assert_allclose(found.rotation.numpy(), rotation, atol=1e-9)
    np.testing.assert_allclose(found.translation.numpy(), translation, atol=1e-9)
    assert float(found.scale) == pytest.approx(scale, abs=1e-9)


def placed(centers: list[list[float]]) -> torch.Tensor:
    """Cameras at given positions with random rotations."""
    rotation = random_rig(7, len(centers))[:, :3, :3]
    places = torch.tensor(centers, dtype=torch.float64)
    return rigid(rotation, -(rotation @ places[..., None])[..., 0])


@pytest.mark.parametrize(
    ("centers", "reason"),
    [
        ([[0, 0, 0], [1, 0, 0]], "the true camera centres are collinear"),
        ([[0, 0, 0], [1, 1, 0], [2, 2, 0], [5, 5, 1e-4]], "the true camera centres are collinear"),
    ],
)
def test_collinear_cameras_are_aligned_by_their_orientations(centers: list[list[float]], reason: str) -> None:
    true = placed(centers)
    rig = align_rig(random_similarity(3).apply_to_cameras(true), true)
    assert (rig.method, rig.reason) == (RigAlignment.ORIENTATIONS, reason)
    aligned = rig.transform.apply_to_cameras(random_similarity(3).apply_to_cameras(true))
    torch.testing.assert_close(aligned, true, atol=1e-9, rtol=0)


def test_coincident_cameras_take_the_scale_of_the_depth() -> None:
    true = placed([[1, 2, 3]] * 4)
    predicted = random_similarity(4, scale=0.5).apply_to_cameras(true)
    rig = align_rig(predicted, true, depth_scale=2.0)
    assert (rig.method, rig.reason) == (RigAlignment.ORIENTATIONS_WITHOUT_SCALE, "all true camera centres coincide")
    assert float(rig.transform.scale) == 2.0
    torch.testing.assert_close(rig.transform.apply_to_cameras(predicted), true, atol=1e-9, rtol=0)


def test_coincident_predicted_cameras_are_reported() -> None:
    true = random_rig(5, 6)
    rig = align_rig(torch.eye(4, dtype=torch.float64).repeat(6, 1, 1), true)
    assert rig.reason == "all predicted camera centres coincide"
    distance, _ = absolute_errors(rig.transform.apply_to_cameras(torch.eye(4).double().repeat(6, 1, 1)), true)
    centers = invert_rigid(true)[:, :3, 3]
    torch.testing.assert_close(distance, (centers - centers.mean(0)).norm(dim=-1), atol=1e-9, rtol=0)


def test_relative_errors_of_static_cameras_are_the_motion_of_the_predicted_ones() -> None:
    true = random_rig(6, 1).expand(4, 4, 4)
    assert is_constant(true)
    assert not is_constant(random_rig(6, 4))
    step, step_deg = relative_errors(true, true)
    assert float(step.max()) < 1e-12
    assert float(step_deg.max()) < 1e-6
    moved = true.clone()
    moved[2:, 0, 3] += 0.25
    assert relative_errors(moved, true)[0].tolist() == pytest.approx([0.0, 0.25, 0.0], abs=1e-12)


def test_baseline_ratios_exclude_coincident_cameras() -> None:
    true = placed([[0, 0, 0], [1, 0, 0], [1, 0, 0]])
    predicted = placed([[0, 0, 0], [3, 0, 0], [2, 0, 0]])
    assert baseline_ratios(predicted, true).tolist() == pytest.approx([3.0, 2.0])


def test_focal_errors_are_averaged_over_both_axes() -> None:
    true = torch.diag(torch.tensor([100.0, 200.0, 1.0]))
    predicted = torch.diag(torch.tensor([110.0, 160.0, 1.0]))
    assert float(focal_errors(predicted, true)) == pytest.approx((0.1 + 0.2) / 2)
