"""Point clouds against truth: distances and normals of nearest neighbours, both ways."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.spatial import cKDTree

NORMAL_NEIGHBOURS = 30
"""Points whose principal plane gives a normal, as Open3D's `estimate_normals()`."""


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Of every point that was asked about: its distance to the nearest point there, and |cos| between the normals."""

    distance: Float[np.ndarray, " N"]
    cosine: Float[np.ndarray, " N"]


class Surface:
    """A cloud that can be asked for nearest points and for normals."""

    def __init__(self, points: Float[np.ndarray, "M 3"]) -> None:
        self.points = np.ascontiguousarray(points, dtype=np.float64)
        self._tree = cKDTree(self.points, compact_nodes=False, balanced_tree=False)

    def nearest(self, other: "Surface", chosen: Int[np.ndarray, " N"]) -> Nearest:
        """Find the nearest point in `other` of every chosen point of this cloud: infinitely far where it is empty."""
        if not len(other.points):
            return Nearest(distance=np.full(len(chosen), np.inf), cosine=np.full(len(chosen), np.nan))
        found = other._tree.query(self.points[chosen], workers=-1)
        distance, index = (np.asarray(part) for part in found)
        cosine = np.abs((self.normals(chosen) * other.normals(index)).sum(-1)).clip(0.0, 1.0)
        return Nearest(distance=distance, cosine=cosine)

    def normals(self, chosen: Int[np.ndarray, " N"]) -> Float[np.ndarray, "N 3"]:
        """Return the direction of least spread of the points around every chosen point, with either sign.

        Fewer than three points have no plane: their cosine with anything is NaN.
        """
        neighbours = min(NORMAL_NEIGHBOURS, len(self.points))
        if neighbours < 3:
            return np.full((len(chosen), 3), np.nan)
        _, index = self._tree.query(self.points[chosen], k=neighbours, workers=-1)
        around = self.points[index]
        centred = around - around.mean(axis=1, keepdims=True)
        _, axes = np.linalg.eigh(centred.transpose(0, 2, 1) @ centred)
        least: NDArray[np.float64] = axes[..., 0]
        return least


@dataclass(frozen=True, kw_only=True)
class PointScores:
    """A cloud against the truth, in units of the truth; None where no point was counted.

    Accuracy is the distance from predicted to true points, completeness from true to predicted ones. The two
    conventions of "overall" are DA3's mean of both and PAGE-4D's sum. `normal_consistency` is the mean of both ways.
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


def score_points(accuracy: Nearest, completeness: Nearest, threshold: float) -> PointScores:
    """Summarise what was found both ways; precision, recall and F count distances below `threshold`."""
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
