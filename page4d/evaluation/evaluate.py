"""The whole evaluation: an output folder against a capture's truth."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from page4d.errors import UsageError
from page4d.evaluation.camera_report import report_cameras
from page4d.evaluation.comparison import Comparison, compare
from page4d.evaluation.depth_alignment import DepthAlignment
from page4d.evaluation.depth_report import fit_alignments, report_confidence, report_depth, sample_pixels
from page4d.evaluation.mask_report import report_masks
from page4d.evaluation.notes import notes
from page4d.evaluation.point_report import default_threshold, report_points
from page4d.evaluation.record import Evaluation, MatchRecord

DEFAULT_ALIGNMENTS = tuple(kind for kind in DepthAlignment if kind is not DepthAlignment.SCALE_SHIFT_ADAM)
"""All but the published fit by gradient descent, which takes minutes on a long capture."""

_PASSES = 4
"""How often the frames are read: to fit alignments, for depth errors, for points and for masks."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What is measured. The first alignment is the one under which confidence is judged.

    `max_depth` leaves true depths from there on out; `threshold` is the distance below which a point counts as right
    (default: 5 cm, or 1 % of the median depth where the truth is not metric); `points_per_instant` random points are
    looked up each way; `fps` times a truth that does not record its frame rate.
    """

    alignments: tuple[DepthAlignment, ...] = DEFAULT_ALIGNMENTS
    max_depth: float | None = None
    threshold: float | None = None
    points_per_instant: int = 5_000
    fps: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.alignments if kind not in list(DepthAlignment)]
        if unknown or not self.alignments:
            raise UsageError(
                f"no depth alignment is called '{unknown[0]}'" if unknown else "no depth alignment",
                f"choose from {', '.join(DepthAlignment)}",
            )
        object.__setattr__(self, "alignments", tuple(DepthAlignment(kind) for kind in self.alignments))
        if self.points_per_instant < 1 or (self.threshold is not None and not 0 < self.threshold < float("inf")):
            raise UsageError(
                f"{self.points_per_instant} points an instant, threshold {self.threshold}", "give positive numbers"
            )


def evaluate(out: Path | str, truth: Path | str, settings: EvaluationSettings | None = None) -> Evaluation:
    """Measure the output folder of a run against a capture's truth.

    Raises:
        InputError: if either cannot be read, or they have no view or no instant in common.
        UsageError: for settings that make no sense.
    """
    settings = settings or EvaluationSettings()
    return measure(compare(out, truth, fps=settings.fps, max_depth=settings.max_depth), settings)


def measure(
    comparison: Comparison, settings: EvaluationSettings, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Measure everything that a comparison has a truth for; `progress` hears of instants done and of all to do."""
    steps = itertools.count(1)
    total = _PASSES * len(comparison.instants)

    def step() -> None:
        if progress is not None:
            progress(next(steps), total)

    main = settings.alignments[0]
    sample = sample_pixels(comparison, settings.seed, step=step)
    depth = confidence = points = depth_scale = None
    if sample is not None:
        fits = fit_alignments(sample, dict.fromkeys(settings.alignments))
        depth, confidence = report_depth(comparison, sample, fits, step), report_confidence(sample, main, fits[main])
        depth_scale = float(fits[main].scale)
    measured = report_cameras(comparison, depth_scale, settings.seed)
    if sample is not None and measured is not None:
        threshold = settings.threshold or default_threshold(comparison, float(sample.truth.median()))
        transform = measured[1].transform
        points = report_points(comparison, transform, threshold, settings.points_per_instant, settings.seed, step)
    evaluation = Evaluation(
        out=str(comparison.output.layout.folder),
        truth=str(comparison.truth.folder),
        match=_match(comparison),
        depth=depth,
        cameras=None if measured is None else measured[0],
        points=points,
        masks=report_masks(comparison, step),
        confidence=confidence,
        notes=(),
    )
    return replace(evaluation, notes=notes(comparison, evaluation))


def _match(comparison: Comparison) -> MatchRecord:
    output, truth = comparison.output, comparison.truth
    names, true_names = output.view_names, tuple(view.name for view in truth.views)
    instants, times = comparison.instants, output.run.times
    return MatchRecord(
        views=tuple(view.name for view in comparison.views),
        views_without_truth=tuple(name for name in names if name not in true_names),
        views_not_reconstructed=tuple(name for name in true_names if name not in names),
        times=tuple(times[index] for index in instants),
        times_without_truth=tuple(time for index, time in enumerate(times) if index not in instants),
        truth_fps=comparison.fps,
        truth_fps_source=comparison.fps_source,
        unit=truth.scale.unit,
        output_unit=output.run.scale.unit,
        preprocess=str(output.run.settings.get("preprocess", "native")),
    )
