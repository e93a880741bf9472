"""Evaluation of an output folder against the ground truth of its capture."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from page4d.evaluation.camera_report import report_cameras
from page4d.evaluation.comparison import Comparison, compare
from page4d.evaluation.depth_report import fit_alignments, report_confidence, report_depth, sample_pixels
from page4d.evaluation.mask_report import report_masks
from page4d.evaluation.notes import notes
from page4d.evaluation.point_report import default_threshold, report_points
from page4d.evaluation.record import Evaluation, MatchRecord
from page4d.evaluation.settings import EvaluationSettings

_PASSES = 4
"""Number of passes over the frames: alignments, depth errors, points and masks."""


def evaluate(out: Path | str, truth: Path | str, settings: EvaluationSettings | None = None) -> Evaluation:
    """Evaluate the output folder of a run against the ground truth of its capture.

    Raises:
        InputError: if either cannot be read, or they have no common view or instant.
    """
    settings = settings or EvaluationSettings()
    return measure(compare(out, truth, fps=settings.fps, max_depth=settings.max_depth), settings)


def measure(
    comparison: Comparison, settings: EvaluationSettings, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Compute every metric that the ground truth allows; `progress` is called with the instants done and in total."""
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
        depth_scale = scale if (scale := float(fits[main].scale)) > 0 else None
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
