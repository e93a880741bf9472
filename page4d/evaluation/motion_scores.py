"""Scene flow metrics over one frame interval, and metrics of trajectories in world coordinates.

Trajectories are not scaled, their start is excluded, and means are over tracks.

Source: Rajic et al. (2025), MVTracker, mvtracker/evaluation/metrics.py: `compute_metrics`, `compute_tapvid_metrics`.
There, tracks do not end, and the start counts in MTE, ATE and survival.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from page4d.evaluation.scores import mean, median

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
        return PixelMotion(**{name: value[chosen] for name, value in vars(self).items()})

    def __len__(self) -> int:
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


THRESHOLDS = {"dexycb": (0.01, 0.02, 0.05, 0.10, 0.20), "panoptic": (0.05, 0.10, 0.20, 0.40)}
"""Distances in metres of APD and AJ, by the data set that they were published for."""

SURVIVAL_LIMIT = 0.1
"""Error in metres above which a track has failed."""

DRIFT_STEPS = (5, 10, 23)
"""Numbers of instants after the start at which drift is measured."""

STATIC_PATH, DYNAMIC_PATH = 0.01, 0.1
"""True path lengths in metres below which a track is static, and above which it is dynamic."""


@dataclass(frozen=True, kw_only=True)
class TrackPairs:
    """N predicted tracks and their true ones at T instants, as displacements since the start in the true world.

    `true` is NaN where it is unknown, and up to and including the start, `predicted` where a track has ended. Errors
    of trajectories are those of `measured` instants, so that a baseline is compared on the same ones.
    """

    predicted: Float[np.ndarray, "T N 3"]
    true: Float[np.ndarray, "T N 3"]
    predicted_visible: Bool[np.ndarray, "T N"]
    true_visible: Bool[np.ndarray, "T N"]
    measured: Bool[np.ndarray, "T N"]
    start: Int[np.ndarray, " N"]

    def select(self, chosen: Bool[np.ndarray, " N"]) -> "TrackPairs":
        """Select tracks."""
        parts = {name: value[chosen] if name == "start" else value[:, chosen] for name, value in vars(self).items()}
        return TrackPairs(**parts)

    @property
    def paths(self) -> Float[np.ndarray, " N"]:
        """Lengths of the true paths from the start."""
        known = np.nan_to_num(self.true)
        begin = np.concatenate([np.zeros_like(known[:1]), known[:-1]])
        return np.where(np.isfinite(self.true[..., 0]), np.linalg.norm(known - begin, axis=-1), 0.0).sum(0)

    def staying(self) -> "TrackPairs":
        """Return the baseline "nothing moves": all tracks stay at their start and are visible."""
        return replace(
            self, predicted=np.zeros_like(self.true), predicted_visible=np.ones_like(self.predicted_visible)
        )


@dataclass(frozen=True, kw_only=True)
class TrackScores:
    """Metrics of tracks, means over tracks. Errors are those of displacements since the start, in the truth's unit.

    `mte` is the median, `ate` the mean error of a track at instants where the point is truly visible and the track
    has a position, `final` its error at the last of them. `apd` is the share of truly visible instants with an error
    below a threshold, `aj` the Jaccard index: instants below it where both are visible, relative to those where the
    point is truly visible plus those where the track is visible, but the point hidden or farther; both are means
    over `THRESHOLDS`. `survival` is the share of instants until the track has ended or is 10 cm wrong, `alive` the
    share of tracks with a position at the last instant. `drift` is the median error over tracks some instants after
    the start, at visible and hidden points. Where a track has ended, it is neither visible nor within any threshold.
    """

    tracks: int
    mte: float | None
    ate: float | None
    final: float | None
    apd: dict[str, float | None]
    aj: dict[str, float | None]
    occlusion_accuracy: float | None
    survival: float | None
    alive: float | None
    drift: dict[str, float | None]


def score_tracks(pairs: TrackPairs) -> TrackScores:
    """Compute the metrics of tracks."""
    counted = np.isfinite(pairs.true[..., 0])
    lost = ~np.isfinite(pairs.predicted[..., 0])
    error = np.linalg.norm(
        np.where(lost[..., None] | ~counted[..., None], 0.0, pairs.predicted - pairs.true), axis=-1
    )
    error = np.where(lost, np.inf, error)
    visible, shown = counted & pairs.true_visible, counted & pairs.predicted_visible & ~lost
    seen = np.where(visible & pairs.measured, error, np.nan)
    failed = counted & (lost | (visible & (error > SURVIVAL_LIMIT)))
    survived = counted & (np.cumsum(failed, axis=0) == 0)
    apd, aj = {}, {}
    for name, limits in THRESHOLDS.items():
        inside = [error < limit for limit in limits]
        apd[name] = _mean_of([_ratio(visible & near, visible) for near in inside])
        aj[name] = _mean_of([_ratio(visible & shown & near, visible, shown & ~(visible & near)) for near in inside])
    return TrackScores(
        tracks=len(pairs.start),
        mte=mean([np.median(own) for own in _columns(seen)]),
        ate=mean([own.mean() for own in _columns(seen)]),
        final=mean([own[-1] for own in _columns(seen)]),
        apd=apd,
        aj=aj,
        occlusion_accuracy=mean(_ratio(counted & (visible == shown), counted)),
        survival=mean(_ratio(survived, counted)),
        alive=mean(_at_end(~lost, counted)),
        drift={f"{steps}": _drift(error, counted & pairs.measured, pairs.start + steps) for steps in DRIFT_STEPS},
    )


@dataclass(frozen=True, kw_only=True)
class TAPVid3DScores:
    """Metrics of TAPVid-3D, means over thresholds and all points of the capture; the start counts.

    `apd` is the share of truly visible points within a threshold, `aj` (3D-AJ) the number of those that are predicted
    visible, too, relative to the truly visible ones plus those predicted visible that are hidden or farther away.
    `scale` multiplied the predicted positions: the ratio of the median norms of true and predicted visible points.
    """

    apd: float
    aj: float
    occlusion_accuracy: float
    scale: float


TAPVID3D_PIXELS = (1, 2, 4, 8, 16)
"""Thresholds in pixels at the depth of the true point."""


def score_tapvid3d(
    predicted: Float[np.ndarray, "T N 3"],
    true: Float[np.ndarray, "T N 3"],
    predicted_visible: Bool[np.ndarray, "T N"],
    true_visible: Bool[np.ndarray, "T N"],
    pixel: Float[np.ndarray, "T N"],
) -> TAPVid3DScores | None:
    """Compute the metrics of TAPVid-3D of N tracks at T instants; None without visible points.

    Positions are those from the start on in the camera in which a track starts: `true` is NaN where it is unknown,
    `predicted` where a track has ended. `pixel` is the width of a pixel of the camera at the true point.

    Source: Koppula et al. (2024), TAPVid-3D, tapvid3d/evaluation/metrics.py: `compute_tapvid3d_metrics`, with
    median scaling.
    """
    counted = np.isfinite(true[..., 0])
    visible = counted & true_visible
    known = np.isfinite(predicted[..., 0])
    if not (visible & known).any():
        return None
    norms = [np.linalg.norm(one[visible & known], axis=-1) for one in (true, predicted)]
    scale = float(np.median(norms[0]) / np.median(norms[1]))
    error = np.where(known, np.linalg.norm(scale * predicted - true, axis=-1), np.inf)
    shown = counted & predicted_visible & known
    apd, aj = [], []
    for pixels in TAPVID3D_PIXELS:
        inside = counted & (error < pixels * pixel)
        hits = (visible & shown & inside).sum()
        false = (shown & ~(visible & inside)).sum()
        apd.append((visible & inside).sum() / visible.sum())
        aj.append(hits / (visible.sum() + false))
    return TAPVid3DScores(
        apd=float(np.mean(apd)),
        aj=float(np.mean(aj)),
        occlusion_accuracy=float((visible == shown)[counted].mean()),
        scale=scale,
    )


def _columns(values: Float[np.ndarray, "T N"]) -> list[Float[np.ndarray, " t"]]:
    """Return the known values of every track that has any."""
    columns = [values[np.isfinite(values[:, track]), track] for track in range(values.shape[1])]
    return [column for column in columns if len(column)]


def _ratio(
    part: Bool[np.ndarray, "T N"], whole: Bool[np.ndarray, "T N"], more: Bool[np.ndarray, "T N"] | None = None
) -> Float[np.ndarray, " n"]:
    """Return the number of instants of `part` relative to those of `whole` and `more`, of tracks that have any."""
    number = whole.sum(0) + (0 if more is None else more.sum(0))
    return part.sum(0)[number > 0] / number[number > 0]


def _at_end(alive: Bool[np.ndarray, "T N"], counted: Bool[np.ndarray, "T N"]) -> Float[np.ndarray, " n"]:
    """Return 1 or 0 for every track with counted instants: whether it has a position at the last of them."""
    last = len(counted) - 1 - counted[::-1].argmax(0)
    return alive[last, np.arange(len(last))][counted.any(0)].astype(np.float64)


def _drift(
    error: Float[np.ndarray, "T N"], known: Bool[np.ndarray, "T N"], at: Int[np.ndarray, " N"]
) -> float | None:
    """Return the median error over the tracks that are known at instant `at`."""
    tracks = np.flatnonzero(at < len(error))
    return median(error[at[tracks], tracks][known[at[tracks], tracks]])


def _mean_of(ratios: list[Float[np.ndarray, " n"]]) -> float | None:
    """Return the mean over thresholds of the means over tracks."""
    return mean([own.mean() for own in ratios if len(own)])
