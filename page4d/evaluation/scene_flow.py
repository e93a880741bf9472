"""Scene flow metrics: errors of the displacements of points over one frame interval."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

MOVING_LIMIT = 0.002
"""True displacement per frame interval in metres above which a pixel counts as moving."""

ANGLE_LIMIT = 0.01
"""True displacement in metres above which directions are compared."""

GOOD_SHARE = 0.2
"""Relative error below which a displacement counts as good."""

SORTED_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the pixels with the smallest standard deviation, whose mean errors are reported."""

_SMALLEST_NORM = 1e-4
"""Addition to the true displacement in metres in relative errors, as published."""


@dataclass(frozen=True, kw_only=True)
class FlowScores:
    """Scene flow metrics of a set of pixels; errors are Euclidean norms.

    `epe` (EPE3D) and `epe_median` are errors of the displacement, `acc_strict` (Acc3DS) and `acc_relaxed` (Acc3DR)
    the shares with an error below 5 cm or 5 %, and below 10 cm or 10 %, `outliers` (Outliers3D) the share above 30 cm
    or 10 %. `good` is the share below 20 % of the true displacement. `angle_deg` is the median angle to the true
    direction where the truth moves by more than 1 cm; a displacement of 0 has an angle of 90 degrees.
    `velocity_median` is the median error of the velocity, per second.

    Source: Gu et al. (2019), HPLFlowNet, evaluation_utils.py: `evaluate_3d`, also that of Puy et al. (2020), FLOT.
    """

    epe: float
    epe_median: float
    acc_strict: float
    acc_relaxed: float
    outliers: float
    good: float
    angle_deg: float | None
    velocity_median: float


@dataclass(frozen=True, kw_only=True)
class SigmaScores:
    """Quality of standard deviations: `within_two` is the share of errors of at most two of them.

    `epe_of_best` has the mean error of the displacement of the pixels with the smallest ones, by share in %.
    """

    within_two: float
    epe_of_best: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class PixelMotion:
    """Velocities of N pixels with known truth and prediction, in the true world and per second.

    `view` is the index of the view in the output.
    """

    predicted: Float[np.ndarray, "N 3"]
    true: Float[np.ndarray, "N 3"]
    sigma: Float[np.ndarray, " N"]
    view: Float[np.ndarray, " N"]

    def __getitem__(self, chosen: Bool[np.ndarray, " N"]) -> "PixelMotion":
        """Select pixels."""
        return PixelMotion(**{name: value[chosen] for name, value in vars(self).items()})

    def __len__(self) -> int:
        """Return the number of pixels."""
        return len(self.sigma)


def score_flow(
    predicted: Float[np.ndarray, "N 3"], true: Float[np.ndarray, "N 3"], interval: float
) -> FlowScores | None:
    """Score predicted velocities by the displacements over `interval` seconds; None without pixels."""
    if not len(true):
        return None
    error, way = (np.linalg.norm(values, axis=-1) * interval for values in (predicted - true, true))
    relative = error / (way + _SMALLEST_NORM)
    return FlowScores(
        epe=float(error.mean()),
        epe_median=float(np.median(error)),
        acc_strict=float(((error < 0.05) | (relative < 0.05)).mean()),
        acc_relaxed=float(((error < 0.1) | (relative < 0.1)).mean()),
        outliers=float(((error > 0.3) | (relative > 0.1)).mean()),
        good=float((error < GOOD_SHARE * way).mean()),
        angle_deg=_median_angle(predicted[way > ANGLE_LIMIT], true[way > ANGLE_LIMIT]),
        velocity_median=float(np.median(error)) / interval,
    )


def score_sigma(motion: PixelMotion, interval: float) -> SigmaScores | None:
    """Score the standard deviations of predicted velocities; None without pixels."""
    if not len(motion):
        return None
    error = np.linalg.norm(motion.predicted - motion.true, axis=-1)
    ordered = error[np.argsort(motion.sigma, kind="stable")]
    return SigmaScores(
        within_two=float((error <= 2 * motion.sigma).mean()),
        epe_of_best={
            f"{share:.0%}".rstrip("%"): float(ordered[: max(1, round(share * len(error)))].mean()) * interval
            for share in SORTED_SHARES
        },
    )


def _median_angle(predicted: Float[np.ndarray, "N 3"], true: Float[np.ndarray, "N 3"]) -> float | None:
    if not len(true):
        return None
    norms = np.linalg.norm(predicted, axis=-1) * np.linalg.norm(true, axis=-1)
    cosine = np.where(norms > 0, (predicted * true).sum(-1) / np.where(norms > 0, norms, 1.0), 0.0)
    return float(np.degrees(np.median(np.arccos(cosine.clip(-1.0, 1.0)))))
