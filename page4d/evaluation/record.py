"""The result of an evaluation, as JSON holds it. Lengths are in the unit of the truth, None where nothing counted."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from page4d.evaluation.depth import DepthSums
from page4d.evaluation.points import PointScores

RESIZING = "bicubic to the truth's pixels (cv2.INTER_CUBIC)"


@dataclass(frozen=True, kw_only=True)
class DepthErrors:
    """Errors of one set of pixels."""

    pixels: int
    abs_rel: float | None
    sq_rel: float | None
    rmse: float | None
    log_rmse: float | None
    delta1: float | None
    delta2: float | None
    delta3: float | None


@dataclass(frozen=True, kw_only=True)
class DepthResult:
    """Depth under one alignment, fitted once a `scope`: the whole capture, all its views and instants, or a frame.

    Means over several frames are weighted by pixels. `static` and `dynamic` are None without true motion masks.
    """

    alignment: str
    scope: str
    definition: str
    scale: float | None
    shift: float | None
    overall: DepthErrors
    static: DepthErrors | None
    dynamic: DepthErrors | None
    per_view: dict[str, DepthErrors]
    per_time: tuple[DepthErrors, ...]
    abs_rel_per_frame: dict[str, tuple[float | None, ...]]


@dataclass(frozen=True, kw_only=True)
class DepthReport:
    """`coverage` is the share of true pixels for which there is a prediction; only those count."""

    resizing: str
    max_depth: float | None
    coverage: float
    fitted_pixels: int
    times: tuple[float, ...]
    results: tuple[DepthResult, ...]


@dataclass(frozen=True, kw_only=True)
class ConfidenceReport:
    """Whether confidence orders the absolute relative depth errors; curves over the share of pixels taken away.

    `ordering` is 1 less `ause` over that of a random order: 1 is perfect, 0 says nothing, below 0 misleads.
    """

    alignment: str
    ordering: float | None
    ause: float
    removed: tuple[float, ...]
    by_confidence: tuple[float, ...]
    by_error: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Relative cameras of all unordered pairs; `rra`, `rta`, `auc` by threshold in degrees.

    Directions count without their sense (folded to 90 degrees) as published, `signed_` ones with it. They and the
    areas are over the pairs whose true cameras stand apart, rotations over all.
    """

    pairs: int
    pairs_apart: int
    rotation_median_deg: float | None
    direction_median_deg: float | None
    signed_direction_median_deg: float | None
    rra: dict[str, float | None]
    rta: dict[str, float | None]
    auc: dict[str, float | None]
    signed_rta: dict[str, float | None]
    signed_auc: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class TrajectoryErrors:
    """Root mean squares of evo: absolute (`ate`, `rotation_deg`) and from each instant to the next (`rpe_...`)."""

    cameras: int
    ate: float | None
    rotation_deg: float | None
    rpe_translation: float | None
    rpe_rotation_deg: float | None
    focal_error: float | None


@dataclass(frozen=True, kw_only=True)
class TransformRecord:
    """The map x -> scale * rotation @ x + translation from the predicted into the true world."""

    scale: float
    rotation: tuple[tuple[float, ...], ...]
    translation: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CameraReport:
    """All V x T cameras after one alignment of the rig. `fallback` says why it is not the published one, if so.

    `baseline_ratio` is the median of predicted over true distances of cameras before any alignment, `baseline_spread`
    the median deviation of such ratios from it, relative to it.
    """

    alignment: str
    definition: str
    fallback: str
    transform: TransformRecord
    stands_still: bool
    overall: TrajectoryErrors
    per_view: dict[str, TrajectoryErrors]
    times: tuple[float, ...]
    ate_per_time: tuple[float | None, ...]
    baseline_ratio: float | None
    baseline_spread: float | None
    pairs: PairReport


@dataclass(frozen=True, kw_only=True)
class PointReport:
    """Clouds after the cameras' alignment, no ICP. Points whose pixel has no true depth do not count."""

    threshold: float
    queries_per_instant: int
    uncounted_points: int
    times: tuple[float, ...]
    overall: PointScores
    static: PointScores | None
    dynamic: PointScores | None
    per_view: dict[str, PointScores]
    per_time: tuple[PointScores, ...]


@dataclass(frozen=True, kw_only=True)
class MaskScores:
    """`jm` is the mean intersection over union of frames, `jr` the share of frames with 0.5 or more.

    `pooled` is over all pixels of all frames. A frame in which neither has anything counts as 1 and is `empty`.
    """

    frames: int
    empty: int
    jm: float
    jr: float
    pooled: float


@dataclass(frozen=True, kw_only=True)
class MaskReport:
    """Motion masks, at the truth's pixels."""

    overall: MaskScores
    per_view: dict[str, MaskScores]
    times: tuple[float, ...]
    iou_per_time: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class MatchRecord:
    """What was compared. `preprocess` is how the run sized its images: results of different ways do not compare."""

    views: tuple[str, ...]
    views_without_truth: tuple[str, ...]
    views_not_reconstructed: tuple[str, ...]
    times: tuple[float, ...]
    times_without_truth: tuple[float, ...]
    truth_fps: float
    truth_fps_source: str
    unit: str
    output_unit: str
    preprocess: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that could be measured; a part that could not is None and has a note."""

    out: str
    truth: str
    match: MatchRecord
    depth: DepthReport | None
    cameras: CameraReport | None
    points: PointReport | None
    masks: MaskReport | None
    confidence: ConfidenceReport | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the result as JSON takes it."""
        return asdict(self)


def finite(value: float) -> float | None:
    """Return a number, or None for what stands for none."""
    return float(value) if math.isfinite(value) else None


def depth_errors(sums: DepthSums) -> DepthErrors:
    """Turn the sums of one set of pixels into errors."""
    delta1, delta2, delta3 = (finite(value) for value in sums.delta.tolist())
    return DepthErrors(
        pixels=int(sums.pixels),
        abs_rel=finite(float(sums.abs_rel)),
        sq_rel=finite(float(sums.sq_rel)),
        rmse=finite(float(sums.rmse)),
        log_rmse=finite(float(sums.log_rmse)),
        delta1=delta1,
        delta2=delta2,
        delta3=delta3,
    )
