"""Records of an evaluation, the structure of its JSON. Lengths are in the unit of the truth; None means no data."""

from dataclasses import dataclass, fields
from typing import Any

from jaxtyping import Float
from pydantic import TypeAdapter
from torch import Tensor

from page4d.errors import counted
from page4d.evaluation.motion_scores import FlowScores, SigmaScores, TAPVid3DScores, TrackScores
from page4d.evaluation.scores import PointScores, finite
from page4d.output.record import TransformRecord

RESIZING = "bicubic to the truth's pixels (cv2.INTER_CUBIC)"


@dataclass(frozen=True, kw_only=True)
class DepthErrors:
    """Depth metrics of one set of pixels, with prediction p and truth g; None without pixels.

    `abs_rel` and `sq_rel` are means of |p - g| / g and (p - g)^2 / g, `rmse` and `log_rmse` roots of the means of
    (p - g)^2 and (log p - log g)^2, `delta1` to `delta3` shares with max(p / g, g / p) below 1.25, 1.25^2 and 1.25^3.
    """

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
    """Depth metrics under one alignment, fitted per `scope`: capture (all views and instants) or frame.

    Means over frames are weighted by pixels. `static` and `dynamic` are None without true motion masks.
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
    """Depth metrics of a capture. `coverage` is the share of true pixels that have a prediction; only they count."""

    resizing: str
    max_depth: float | None
    coverage: float
    fitted_pixels: int
    times: tuple[float, ...]
    results: tuple[DepthResult, ...]


@dataclass(frozen=True, kw_only=True)
class ConfidenceReport:
    """Sparsification of absolute relative depth errors; the curves are functions of the share of removed pixels.

    `ordering` is 1 - `ause` / (AUSE of a random order): 1 is the ideal order, 0 a random one.
    """

    alignment: str
    ordering: float | None
    ause: float
    removed: tuple[float, ...]
    by_confidence: tuple[float, ...]
    by_error: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """Relative pose metrics over all unordered camera pairs; `rra`, `rta` and `auc` by threshold in degrees.

    Translation directions are compared up to sign (folded to 90 degrees) as published; `signed_` metrics take the
    sign into account. RTA and AUC are over the `pairs_apart` with distinct true centres, RRA over all pairs.
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
    """Root mean squares as in evo: absolute (`ate`, `rotation_deg`) and between consecutive instants (`rpe_*`)."""

    cameras: int
    ate: float | None
    rotation_deg: float | None
    rpe_translation: float | None
    rpe_rotation_deg: float | None
    focal_error: float | None


@dataclass(frozen=True, kw_only=True)
class CameraReport:
    """Metrics of all V x T cameras after one alignment of the rig; `transform` maps the predicted to the true world.

    `fallback` is the reason for an alignment other than the published one, if any. `baseline_ratio` is the median of
    predicted over true baselines before alignment, `baseline_spread` the relative median deviation from it.
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
    """Point cloud metrics after the alignment of the cameras, without ICP; points without true depth do not count."""

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
    """Mask metrics: `jm` is the mean intersection over union of frames, `jr` the share of frames with at least 0.5.

    `pooled` is the intersection over union of all pixels. Frames with two empty masks count as 1, and as `empty`.
    """

    frames: int
    empty: int
    jm: float
    jr: float
    pooled: float


@dataclass(frozen=True, kw_only=True)
class MaskReport:
    """Motion mask metrics at the truth's pixels."""

    overall: MaskScores
    per_view: dict[str, MaskScores]
    times: tuple[float, ...]
    iou_per_time: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """Velocities of one set of pixels, with the baseline `nothing_moves` (velocity 0) on the same pixels.

    `pixels` have a true velocity, `known_pixels` a predicted one as well; `cover` is the latter's share. `still` is
    the share of predictions that are exactly 0, `mean_speed` the mean predicted speed per second, and
    `true_displacement` the mean true displacement per frame interval.
    """

    pixels: int
    known_pixels: int
    cover: float | None
    still: float | None
    mean_speed: float | None
    true_displacement: float | None
    errors: FlowScores | None
    nothing_moves: FlowScores | None
    sigma: SigmaScores | None


@dataclass(frozen=True, kw_only=True)
class MotionReport:
    """Scene flow metrics after the alignment of the cameras: velocities times `interval`, the truth's in seconds.

    `moving` pixels have a true displacement above `moving_limit` per interval, `slow` ones a smaller one, `static`
    ones exactly 0; `moving_certain` are moving pixels whose predicted speed is 0 or above its standard deviation, as
    it is where several views measured it. `output_interval` is the median time between the output's instants.
    """

    sampling: str
    interval: float
    output_interval: float | None
    moving_limit: float
    frames: int
    sampled_pixels: int
    known_pixels: int
    moving: FlowResult
    moving_certain: FlowResult
    slow: FlowResult
    static: FlowResult
    moving_per_view: dict[str, FlowResult]


@dataclass(frozen=True, kw_only=True)
class TrackComparison:
    """Metrics of tracks, and of the baseline: the same tracks stay at their start and are always visible.

    Trajectory errors and drift of the baseline are those at the instants where the tracks have a position.
    """

    tracks: TrackScores
    nothing_moves: TrackScores


@dataclass(frozen=True, kw_only=True)
class TrackReport:
    """Track metrics after the alignment of the cameras. Tracks that start where no truth is known do not count.

    `start_error` is the median distance of the starts of the `matched` tracks from the true surface at their pixel.
    `tapvid3d` are metrics of positions in the camera in which each track starts, None without visible points.
    The true path of `dynamic` tracks is longer than 10 cm, that of `static` ones shorter than 1 cm.
    """

    definition: str
    tracks: int
    matched: int
    start_error: float | None
    tapvid3d: TAPVid3DScores | None
    overall: TrackComparison | None
    dynamic: TrackComparison | None
    static: TrackComparison | None


@dataclass(frozen=True, kw_only=True)
class MatchRecord:
    """Views and instants that were compared, and conditions that affect comparability, such as `preprocess`."""

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
    """Result of an evaluation; a part that could not be computed is None and explained by a note."""

    out: str
    truth: str
    match: MatchRecord
    depth: DepthReport | None
    cameras: CameraReport | None
    points: PointReport | None
    masks: MaskReport | None
    confidence: ConfidenceReport | None
    motion: MotionReport | None
    tracks: TrackReport | None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        size = f"{counted(len(self.match.views), 'view')}, {counted(len(self.match.times), 'instant')}"
        return f"<Evaluation of '{self.out}' against '{self.truth}': {size}>"

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON-compatible document."""
        return TypeAdapter(Evaluation).dump_python(self)


def depth_errors(sums: Float[Tensor, "8 ..."]) -> DepthErrors:
    """Compute the depth metrics of one set of pixels from their `sum_depth_errors`, summed over all other axes."""
    pixels, *totals = (part.sum() for part in sums)
    abs_rel, sq_rel, square, log_square, *deltas = (total / pixels for total in totals)
    means = (abs_rel, sq_rel, square.sqrt(), log_square.sqrt(), *deltas)
    values: list[Any] = [int(pixels), *(finite(float(mean)) for mean in means)]
    return DepthErrors(**{field.name: value for field, value in zip(fields(DepthErrors), values, strict=True)})
