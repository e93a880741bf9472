"""Distances and normals of point clouds: hand-computed, by brute force and against Open3D."""

import numpy as np
import pytest

from page4d.evaluation.scores import Neighbours, Surface, score_points
from page4d.installation import open3d_or_none


def plane(height: float, number: int = 15) -> np.ndarray:
    """A square grid of points with a spacing of 1."""
    x, y = np.meshgrid(np.arange(number, dtype=np.float64), np.arange(number, dtype=np.float64))
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, height)], axis=1)


def everything(points: np.ndarray) -> np.ndarray:
    return np.arange(len(points))


def test_parallel_planes_have_their_distance_and_equal_normals() -> None:
    found = Surface(plane(0.0)).nearest(Surface(plane(0.25)), everything(plane(0.0)))
    np.testing.assert_allclose(found.distance, 0.25)
    np.testing.assert_allclose(found.cosine, 1.0)


def test_perpendicular_planes_have_perpendicular_normals() -> None:
    upright = plane(7.0)[:, [0, 2, 1]] + np.array([0.0, 0.0, 20.0])
    found = Surface(plane(0.0)).nearest(Surface(upright), everything(plane(0.0)))
    np.testing.assert_allclose(found.cosine, 0.0, atol=1e-9)


def test_nearest_neighbours_equal_those_of_brute_force() -> None:
    random = np.random.default_rng(0)
    here, there = random.normal(size=(80, 3)), random.normal(size=(120, 3))
    found = Surface(here).nearest(Surface(there), np.arange(0, 80, 3))
    expected = np.linalg.norm(here[::3, None] - there[None], axis=-1).min(axis=1)
    np.testing.assert_allclose(found.distance, expected, rtol=1e-12)


def test_normals_are_those_of_open3d() -> None:
    open3d = open3d_or_none()
    if open3d is None:
        pytest.skip("Open3D, the referee, cannot be loaded")
    points = np.random.default_rng(1).normal(size=(400, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points))
    cloud.estimate_normals()
    cosine = np.abs((Surface(points).normals(everything(points)) * np.asarray(cloud.normals)).sum(-1))
    np.testing.assert_allclose(cosine, 1.0, atol=1e-9)


def test_scores_equal_hand_computed_values() -> None:
    accuracy = Neighbours(distance=np.array([0.0, 0.1, 0.5]), cosine=np.array([1.0, 0.5, np.nan]))
    completeness = Neighbours(distance=np.array([0.2, 0.3]), cosine=np.array([0.8, 0.6]))
    scores = score_points(accuracy, completeness, threshold=0.25)
    assert (scores.accuracy, scores.accuracy_median) == pytest.approx((0.2, 0.1))
    assert (scores.completeness, scores.completeness_median) == pytest.approx((0.25, 0.25))
    assert (scores.overall_mean, scores.overall_sum) == pytest.approx((0.225, 0.45))
    assert (scores.precision, scores.recall) == pytest.approx((2 / 3, 1 / 2))
    assert scores.f_score == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))
    assert (scores.normal_accuracy, scores.normal_completeness) == pytest.approx((0.75, 0.7))
    assert scores.normal_consistency == pytest.approx(0.725)


def test_an_empty_prediction_has_zero_recall() -> None:
    empty, full = Surface(np.zeros((0, 3))), Surface(plane(0.0, 4))
    scores = score_points(
        empty.nearest(full, np.zeros(0, dtype=int)), full.nearest(empty, np.arange(16)), threshold=1.0
    )
    assert (scores.points, scores.accuracy, scores.precision) == (0, None, None)
    assert (scores.completeness, scores.recall, scores.f_score) == (None, 0.0, None)
