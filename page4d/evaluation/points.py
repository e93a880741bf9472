"""Point cloud metrics: accuracy, completeness, F-score and normal consistency of nearest neighbours."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from page4d.signals import deferred_signals

NORMAL_NEIGHBOURS = 30
"""Neighbours that a normal is estimated from, as in Open3D's `estimate_normals()`."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Distance of each query point to its nearest neighbour in the other cloud, and |cos| between their normals."""

    distance: Float[np.ndarray, " N"]
    cosine: Float[np.ndarray, " N"]


class Surface:
    """Point cloud with a k-d tree for nearest neighbours and normals."""

    def __init__(self, points: Float[np.ndarray, "M 3"]) -> None:
        self.points = np.ascontiguousarray(points, dtype=np.float64)
        self._tree = cKDTree(self.points, compact_nodes=False, balanced_tree=False)

    def nearest(self, other: "Surface", chosen: Int[np.ndarray, " N"]) -> Neighbours:
        """Return the nearest neighbours in `other` of the chosen points, at infinite distance if it is empty."""
        if not len(other.points):
            return Neighbours(distance=np.full(len(chosen), np.inf), cosine=np.full(len(chosen), np.nan))
        with deferred_signals():  # SciPy's threads write into freed memory if an exception leaves the query
            found = other._tree.query(self.points[chosen], workers=-1)
        distance, index = (np.asarray(part) for part in found)
        cosine = np.abs((self.normals(chosen) * other.normals(index)).sum(-1)).clip(0.0, 1.0)
        return Neighbours(distance=distance, cosine=cosine)

    def normals(self, chosen: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N 3"]:
        """Return the normal, up to sign, at every chosen point: the direction of least variance of its neighbours.

        Clouds of fewer than three points have no normals (NaN).
        """
        neighbours = min(NORMAL_NEIGHBOURS, len(self.points))
        if neighbours < 3:
            return np.full((len(chosen), 3), np.nan)
        with deferred_signals():
            _, index = self._tree.query(self.points[chosen], k=neighbours, workers=-1)
        around = self.points[index]
        centred = around - around.mean(axis=1, keepdims=True)
        _, axes = np.linalg.eigh(centred.transpose(0, 2, 1) @ centred)
        least: NDArray[np.float64] = axes[..., 0]
        return least


@dataclass(frozen=True, kw_only=True)
class PointScores:
    """Scores of a cloud in units of the truth; None where no point was counted.

    Accuracy is the mean distance from predicted to true points, completeness from true to predicted ones. The Chamfer
    distance is reported as their mean (`overall_mean`, DA3) and their sum (`overall_sum`, PAGE-4D).
    `normal_consistency` is the mean over both directions.
    """

    points: int
    accuracy: float | None
    accuracy_median: float | None
    completeness: float | None
    completeness_median: float | None
    overall_mean: float | None
    overall_sum: float | None
    precision: float | None
    recall: float | None
    f_score: float | None
    normal_accuracy: float | None
    normal_completeness: float | None
    normal_consistency: float | None


def score_points(accuracy: Neighbours, completeness: Neighbours, threshold: float) -> PointScores:
    """Summarise the nearest neighbours of both directions; precision and recall count distances below `threshold`."""
    to_truth, to_prediction = accuracy.distance, completeness.distance
    near, far = _mean(to_truth), _mean(to_prediction)
    precision, recall = _mean(to_truth < threshold), _mean(to_prediction < threshold)
    normals = _mean(accuracy.cosine), _mean(completeness.cosine)
    total = None if near is None or far is None else near + far
    balanced = None
    if precision is not None and recall is not None:
        balanced = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return PointScores(
        points=len(to_truth),
        accuracy=near,
        accuracy_median=_median(to_truth),
        completeness=far,
        completeness_median=_median(to_prediction),
        overall_mean=None if total is None else total / 2,
        overall_sum=total,
        precision=precision,
        recall=recall,
        f_score=balanced,
        normal_accuracy=normals[0],
        normal_completeness=normals[1],
        normal_consistency=None if normals[0] is None or normals[1] is None else (normals[0] + normals[1]) / 2,
    )


def _mean(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return _finite(known.mean()) if len(known) else None


def _median(values: NDArray[Any]) -> float | None:
    return _finite(np.median(values)) if len(values) else None


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
