"""Scores of depth, confidence and point clouds as sums over pixels or points, which add up exactly.

Predicted depth is aligned with the truth in scale and shift, one protocol per function. Point clouds have accuracy,
completeness, F-score and normal consistency of nearest neighbours.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial import cKDTree
from torch import Tensor

from page4d.choices import DepthAlignment
from page4d.signals import deferred_signals

DELTA = 1.25
"""Threshold of the depth ratio; its square and cube are the wider thresholds."""

MIN_DEPTH = 1e-5
"""Lower bound of predictions in the logarithmic error."""

STEPS = 100
"""Number of shares of removed pixels: 0, 1 % ... 99 %."""


def sum_depth_errors(
    prediction: Float[Tensor, "*batch H W"], truth: Float[Tensor, "*batch H W"], counted: Bool[Tensor, "*batch H W"]
) -> Float[Tensor, "8 ..."]:
    """Compare depth maps of equal unit and size at the counted pixels, where the truth must be positive.

    Returns the number of pixels, the sums of |p - g| / g, (p - g)^2 / g, (p - g)^2 and (log p - log g)^2, and the
    numbers of pixels with max(p / g, g / p) below 1.25, 1.25^2 and 1.25^3.

    Source: PAGE-4D `eval/eval/video_depth/tools.py` and evaluation.md. Unlike in the public code, negative
    predictions (after a shift) never count as close, although max(p / g, g / p) is below 1.25.
    """
    predicted, true = prediction.double(), torch.where(counted, truth, 1.0).double()
    difference = torch.where(counted, predicted - true, 0.0)
    positive = predicted > 0
    ratio = torch.where(positive, torch.maximum(predicted / true, true / predicted), torch.inf)
    log_ratio = torch.where(counted, predicted.clamp_min(MIN_DEPTH).log() - true.log(), 0.0)
    values = [counted, difference.abs() / true, difference.square() / true, difference.square(), log_ratio.square()]
    values += [counted & (ratio < DELTA**power) for power in (1, 2, 3)]
    return torch.stack([value.sum((-2, -1)).double() for value in values])


def counted_pixels(truth: Float[Tensor, "*batch H W"], max_depth: float | None = None) -> Bool[Tensor, "*batch H W"]:
    """Return the pixels with known truth: above 0, and below `max_depth` if given."""
    known = truth > 0
    return known if max_depth is None else known & (truth < max_depth)


@dataclass(frozen=True, kw_only=True)
class Sparsification:
    """Mean error of the remaining pixels when those of lowest confidence, or of largest error, are removed first.

    Source: Ilg et al., "Uncertainty estimates and multi-hypotheses networks for optical flow", ECCV 2018, section 4.
    """

    by_confidence: Float[Tensor, " steps"]
    by_error: Float[Tensor, " steps"]

    @property
    def ause(self) -> float:
        """Area under the sparsification error (AUSE): between the two curves, in units of the error; 0 is best."""
        return float((self.by_confidence - self.by_error).mean())

    @property
    def ordering(self) -> float | None:
        """1 - AUSE / AUSE of a random order: 1 is the ideal order, 0 a random one, negative values are worse.

        None if all errors are equal.
        """
        random = float((self.by_error[0] - self.by_error).mean())
        return 1 - self.ause / random if random > 1e-12 * float(self.by_error[0]) else None


def sparsify(errors: Float[Tensor, " N"], confidence: Float[Tensor, " N"]) -> Sparsification:
    """Compute the curves by confidence and by error; ties of confidence take the expectation over random orders."""
    errors = errors.double()
    levels, level, number = torch.unique(confidence, return_inverse=True, return_counts=True)
    mean = torch.zeros(len(levels), dtype=errors.dtype).index_add_(0, level, errors) / number
    removed = torch.arange(STEPS) * len(errors) // STEPS
    return Sparsification(
        by_confidence=_means_of_rest(mean.repeat_interleave(number), removed),
        by_error=_means_of_rest(errors.sort(descending=True).values, removed),
    )


def _means_of_rest(ordered: Float[Tensor, " N"], removed: Tensor) -> Float[Tensor, " steps"]:
    total = torch.cat([ordered.flip(0).cumsum(0).flip(0), ordered.new_zeros(1)])
    return total[removed] / (len(ordered) - removed)


_MIN_SCALE = 1e-3
_EPSILON = 1e-8
_WEISZFELD_STEPS = 10
_ADAM_STEPS = 1000
_ADAM_RATE = 1e-4
_ADAM_TOLERANCE = 1e-6
_TOLERANCE = 1e-12
_SAME_SUM = 1e-9

Pixels = Float[Tensor, " N"]
Fit = tuple[Tensor, Tensor]


DEFINITIONS = {
    DepthAlignment.SCALE: f"scale of least absolute error ({_WEISZFELD_STEPS} Weiszfeld steps, published)",
    DepthAlignment.SCALE_SHIFT: "scale and shift of least absolute error, exact",
    DepthAlignment.SCALE_SHIFT_SQUARES: "scale and shift of least squared error",
    DepthAlignment.SCALE_SHIFT_ADAM: f"scale and shift by {_ADAM_STEPS} Adam steps on the absolute error (published)",
    DepthAlignment.METRIC: "as predicted",
    DepthAlignment.MEDIAN: "ratio of the medians",
}
"""Estimator of each alignment.

`scale` follows the published code, whose ten iterations do not converge: a pixel with a residual near 0 gets almost
all of the weight, so rounding may change the third digit of the scale. `scale-shift` is exact.

Source: PAGE-4D `eval/eval/video_depth/tools.py` for `scale`, `median` and `scale-shift-adam`.
"""


@dataclass(frozen=True)
class DepthFit:
    """Affine map `scale * depth + shift`; NaN where there was no pixel to fit."""

    scale: Float[Tensor, ""]
    shift: Float[Tensor, ""]

    def apply(self, depth: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Align depth."""
        return self.scale * depth + self.shift


def align_depth(prediction: Pixels, truth: Pixels, alignment: DepthAlignment) -> DepthFit:
    """Fit a map to pixels with known depth."""
    if not len(truth):
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=truth.device)
        return DepthFit(nothing, nothing)
    return DepthFit(*_FITS[alignment](prediction.double(), truth.double()))


def _fit_median(prediction: Pixels, truth: Pixels) -> Fit:
    # torch returns the lower of two middle values, as in the public code.
    return truth.median() / prediction.median(), truth.new_zeros(())


def _fit_scale(prediction: Pixels, truth: Pixels) -> Fit:
    scale = truth.mean() / prediction.mean()
    for _ in range(_WEISZFELD_STEPS):
        weighted = prediction / ((scale * prediction - truth).abs() + _EPSILON)
        scale = (weighted @ truth) / (weighted @ prediction)
    return scale.clamp_min(_MIN_SCALE), truth.new_zeros(())


def _fit_squares(prediction: Pixels, truth: Pixels) -> Fit:
    centred = prediction - prediction.mean()
    variance = centred.square().sum()
    if variance <= (torch.finfo(prediction.dtype).eps * prediction.norm()) ** 2:
        return _fit_median(prediction, truth)
    scale = (centred * (truth - truth.mean())).sum() / variance
    return scale, truth.mean() - scale * prediction.mean()


def _fit_adam(prediction: Pixels, truth: Pixels) -> Fit:
    scale, shift = _fit_median(prediction, truth)
    scale.requires_grad_()
    shift.requires_grad_()
    optimizer = torch.optim.Adam([scale, shift], lr=_ADAM_RATE)
    before = torch.inf
    for _ in range(_ADAM_STEPS):
        with torch.no_grad():
            residual = scale * prediction + shift - truth
            loss, sign = float(residual.abs().sum()), residual.sign()
            scale.grad, shift.grad = (sign * prediction).sum(), sign.sum()
        optimizer.step()
        if abs(before - loss) < _ADAM_TOLERANCE:
            break
        before = loss
    return scale.detach(), shift.detach()


def _fit_deviations(prediction: Pixels, truth: Pixels) -> Fit:
    """Minimise the sum of absolute deviations over the scale, in which it is convex: the best shift is a median."""
    scale, _ = _fit_squares(prediction, truth)
    width = scale.abs() / 16 or 1.0

    def deviations(step: float) -> float:
        residual = truth - (scale + step * width) * prediction
        return float((residual - residual.median()).abs().sum())

    with suppress(RuntimeError):  # no slope around the start, so it is one of the best
        found = minimize_scalar(deviations, (-1.0, 1.0), tol=_TOLERANCE)
        if found.fun < (1 - _SAME_SUM) * deviations(0.0):  # else rounding chose it, as for equal predictions
            scale = scale + found.x * width
    return scale, (truth - scale * prediction).median()


_FITS: dict[DepthAlignment, Callable[[Tensor, Tensor], Fit]] = {
    DepthAlignment.SCALE: _fit_scale,
    DepthAlignment.SCALE_SHIFT: _fit_deviations,
    DepthAlignment.SCALE_SHIFT_SQUARES: _fit_squares,
    DepthAlignment.SCALE_SHIFT_ADAM: _fit_adam,
    DepthAlignment.METRIC: lambda prediction, _: (prediction.new_ones(()), prediction.new_zeros(())),
    DepthAlignment.MEDIAN: _fit_median,
}

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
        return axes[..., 0]


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
    near, far = mean(to_truth), mean(to_prediction)
    precision, recall = mean(to_truth < threshold), mean(to_prediction < threshold)
    normals = mean(accuracy.cosine), mean(completeness.cosine)
    total = None if near is None or far is None else near + far
    balanced = None
    if precision is not None and recall is not None:
        balanced = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return PointScores(
        points=len(to_truth),
        accuracy=near,
        accuracy_median=median(to_truth),
        completeness=far,
        completeness_median=median(to_prediction),
        overall_mean=None if total is None else total / 2,
        overall_sum=total,
        precision=precision,
        recall=recall,
        f_score=balanced,
        normal_accuracy=normals[0],
        normal_completeness=normals[1],
        normal_consistency=None if normals[0] is None or normals[1] is None else (normals[0] + normals[1]) / 2,
    )


def mean(values: NDArray[Any] | Sequence[float]) -> float | None:
    """Return the mean of the values that are numbers, None without any."""
    known = np.asarray(values)[~np.isnan(values)]
    return finite(known.mean()) if len(known) else None


def median(values: Any) -> float | None:
    """Return the median, None without values."""
    return finite(np.median(values)) if len(values) else None


def finite(value: Any) -> float | None:
    """Return a finite number, else None."""
    return float(value) if math.isfinite(value) else None
