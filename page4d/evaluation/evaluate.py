"""Evaluation of an output folder against the ground truth of its capture, with notes on its limits."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np

from page4d.choices import DepthAlignment
from page4d.conventions import Scale
from page4d.errors import Progress, listed
from page4d.evaluation.cameras import MAX_PAIRED_CAMERAS, report_cameras
from page4d.evaluation.comparison import Comparison, compare
from page4d.evaluation.depth import report_confidence, report_depth, report_masks, sample_pixels
from page4d.evaluation.motion import has_velocities, report_motion, report_tracks
from page4d.evaluation.points import METRIC_THRESHOLD, RELATIVE_THRESHOLD, report_points
from page4d.evaluation.record import CameraReport, Evaluation, MatchRecord
from page4d.evaluation.scores import align_depth
from page4d.keywords import EvaluateKeywords
from page4d.options import DEFAULT_ALIGNMENTS, EvaluationSettings, in_options, split_options
from page4d.output.reader import Output, check_not_replaced

_PASSES = 4
"""Number of passes over the frames: alignments, depth errors, points and masks; velocities are another."""

_OTHER_FOCAL = 0.02
"""Relative difference of focal lengths that calibrations of one lens do not have."""

_SAME_PIXEL = 1e-3
"""Largest difference in pixels between principal points that are equal, as written in files."""

_SAME_INTERVAL = 0.1
"""Largest relative difference between the intervals of output and truth whose velocities are comparable."""


def evaluate(out: Output | Path | str, truth: Path | str, **options: Unpack[EvaluateKeywords]) -> Evaluation:
    """Evaluate an output folder, or its open `Output`, against the ground truth of its capture.

    `options` are fields of `EvaluationSettings` by name, such as `fps`.

    Raises:
        UsageError: if an option is unknown or does not fit.
        InputError: if either folder cannot be read, or they have no common view or instant.
    """
    settings = EvaluationSettings(**split_options(options, "evaluate", EvaluationSettings)[0])
    return measure(compare(out, truth, fps=settings.fps, max_depth=settings.max_depth), settings)


def measure(comparison: Comparison, settings: EvaluationSettings, progress: Progress | None = None) -> Evaluation:
    """Compute every metric that the ground truth allows; `progress` is called with the steps done and in total."""
    steps = itertools.count(1)
    total = (_PASSES + has_velocities(comparison)) * len(comparison.instants)

    def step() -> None:
        if progress is not None:
            progress(next(steps), total)

    alignments = settings.alignments or _default_alignments(comparison)
    main = alignments[0]
    sample = sample_pixels(comparison, settings.seed, step)
    depth = confidence = points = depth_scale = motion = tracks = None
    if sample is not None:
        # Views and instants share one world and scale: every alignment is fitted to the whole capture.
        fits = {kind: align_depth(sample.prediction, sample.truth, kind) for kind in dict.fromkeys(alignments)}
        depth, confidence = report_depth(comparison, sample, fits, step), report_confidence(sample, main, fits[main])
        depth_scale = scale if (scale := float(fits.get(DepthAlignment.SCALE, fits[main]).scale)) > 0 else None
    cameras = report_cameras(comparison, depth_scale, settings.seed)
    if sample is not None and cameras is not None:
        is_metric = comparison.truth.scale is Scale.METRIC
        usual = METRIC_THRESHOLD if is_metric else RELATIVE_THRESHOLD * float(np.median(sample.truth))
        threshold = settings.threshold or usual
        transform = cameras.transform.sim3()
        points = report_points(comparison, transform, threshold, settings.points_per_instant, settings.seed, step)
    if cameras is not None:
        motion = report_motion(comparison, cameras.transform.sim3(), settings.seed, step)
        tracks = report_tracks(comparison, cameras.transform.sim3())
    evaluation = Evaluation(
        out=str(comparison.output.layout.folder),
        truth=str(comparison.truth.folder),
        match=_match(comparison),
        depth=depth,
        cameras=cameras,
        points=points,
        masks=report_masks(comparison, step),
        confidence=confidence,
        motion=motion,
        tracks=tracks,
        notes=(),
    )
    check_not_replaced(comparison.output)
    return replace(evaluation, notes=notes(comparison, evaluation))


def _default_alignments(comparison: Comparison) -> tuple[DepthAlignment, ...]:
    """Return all alignments but the slow one, first none (metric) where lengths of result and truth are metres."""
    if Scale.METRIC is comparison.output.run.scale is comparison.truth.scale:
        return tuple(dict.fromkeys((DepthAlignment.METRIC, *DEFAULT_ALIGNMENTS)))
    return DEFAULT_ALIGNMENTS


def notes(comparison: Comparison, evaluation: Evaluation) -> tuple[str, ...]:
    """Return all notes that apply to an evaluation."""
    return (
        *map(in_options, comparison.truth.notices),
        *_run_notes(comparison, evaluation.cameras),
        *_match_notes(comparison, evaluation),
        *_depth_notes(comparison, evaluation),
        *_camera_notes(evaluation.cameras),
        *_pixel_notes(comparison),
        *_mask_notes(comparison, evaluation),
        *_motion_notes(comparison, evaluation),
    )


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


def _run_notes(comparison: Comparison, cameras: CameraReport | None) -> Iterator[str]:
    run = comparison.output.run
    if run.network.notice:
        yield run.network.notice
    if run.settings.get("calibration") is not None and run.settings.get("poses", "input") == "input":
        yield "the run used given cameras: camera errors are those of the calibration"
    if run.settings.get("depth") is not None:
        yield "the run used given depth maps: depth errors are those of the sensor"
    if run.settings.get("masks") is not None:
        yield "the run used given masks: mask errors may be those of the masks"
    undistorted = [view.name for view in run.views if view.undistorted is not None]
    if undistorted:
        differ = 0.0 if cameras is None else cameras.overall.focal_error or 0.0
        doubt = f", but its focal lengths differ by {differ:.0%}: its pixels may show other points"
        text = f"the run undistorted {listed(undistorted)}: the truth is assumed to be of undistorted images"
        yield text + doubt * (differ > _OTHER_FOCAL)


def _match_notes(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    match = evaluation.match
    if match.views_without_truth:
        yield f"views without ground truth, not compared: {listed(match.views_without_truth)}"
    if match.views_not_reconstructed:
        yield f"views of the truth that are not in the output: {listed(match.views_not_reconstructed)}"
    if match.times_without_truth:
        number, total = len(match.times_without_truth), len(comparison.output.run.times)
        yield f"{number} of {total} instants have no true map (first {match.times_without_truth[0]:.3f} s)"
    if (recorded := comparison.truth.fps) != match.truth_fps:
        rate = "no frame rate" if recorded is None else f"{recorded:g} fps"
        yield f"the truth records {rate}; used {match.truth_fps:g} fps, {match.truth_fps_source}"


def _depth_notes(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    depth = evaluation.depth
    if depth is None:
        yield "no pixel has both true and predicted depth: depth, points and confidence are not evaluated"
        return
    if depth.coverage < 1:
        yield f"{100 * (1 - depth.coverage):.2g} % of the true pixels have no prediction and do not count"
    counted = max(result.overall.pixels for result in depth.results)
    if depth.fitted_pixels < counted:
        yield f"alignments are fitted to a random subset of {depth.fitted_pixels:,} of {counted:,} pixels"
    if comparison.output.run.scale is Scale.ARBITRARY:
        yield "the output's unit is arbitrary: depth errors without alignment (metric) are meaningless"
    if evaluation.confidence is not None and evaluation.confidence.ordering is None:
        yield "all depth errors are equal: the normalized AUSE is undefined"


def _camera_notes(cameras: CameraReport | None) -> Iterator[str]:
    if cameras is None:
        yield "no instant has a true camera: cameras and points are not evaluated"
        return
    if cameras.fallback:
        yield f"{cameras.fallback} and determine no Sim(3): aligned by {cameras.definition}"
    if cameras.stands_still and cameras.overall.rpe_translation is not None:
        yield "the true cameras are static: RPE is the motion of the predicted ones"
    if cameras.overall.cameras > MAX_PAIRED_CAMERAS:
        yield f"pairs are those of a random subset of {MAX_PAIRED_CAMERAS} of {cameras.overall.cameras} cameras"
    pairs = cameras.pairs
    if pairs.pairs_apart < pairs.pairs:
        coincident = pairs.pairs - pairs.pairs_apart
        yield f"{coincident} of {pairs.pairs} camera pairs have no baseline: they count in RRA, not in RTA and AUC"


def _pixel_notes(comparison: Comparison) -> Iterator[str]:
    """Yield a note if pixels of the truth are counted from another place: principal points then differ by a half."""
    apart = [view.truth.intrinsics[:2, 2] - comparison.intrinsics(view)[0, :2, 2] for view in comparison.views]
    for half in (-0.5, 0.5):
        if all(bool(((shift - half).abs() < _SAME_PIXEL).all()) for shift in apart):
            yield (
                f"all true principal points are those of the run {half:+g} px in x and y: in one of them (0, 0) may "
                "be the centre of the first pixel; in cameras.json it is the corner"
            )


def _mask_notes(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    if evaluation.masks is None:
        known = any(view.truth.dynamic_files for view in comparison.views)
        yield "the output has no motion masks" if known else "the truth has no motion masks: no metrics by motion"


def _motion_notes(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    truth, motion, tracks = comparison.truth, evaluation.motion, evaluation.tracks
    has_truth = any(view.truth.motion_files for view in comparison.views)
    if comparison.output.has_velocity and not has_truth:
        yield "the truth has no velocities (page4d synthesize --truth-motion): motion is not evaluated"
    if has_truth and not comparison.output.has_velocity:
        yield "the output has no velocities (page4d reconstruct --motion): motion is not evaluated"
    if tracks is not None and tracks.matched < tracks.tracks:
        away = tracks.tracks - tracks.matched
        yield f"{away} of {tracks.tracks} tracks start at a pixel or an instant without truth and do not count"
    if motion is None:
        return
    if motion.output_interval is not None and abs(motion.output_interval / motion.interval - 1) > _SAME_INTERVAL:
        yield (
            f"instants are {motion.output_interval:.3g} s apart, true velocities are differences of frames "
            f"{motion.interval:.3g} s apart: part of the error is acceleration"
        )
    if motion.sampled_pixels < motion.known_pixels:
        sampled, known = motion.sampled_pixels, motion.known_pixels
        yield f"motion is measured at a random subset of {sampled:,} of {known:,} pixels"
    if truth.scale is not Scale.METRIC:
        yield "thresholds of motion are metres, the truth is not: they are applied in its unit"
