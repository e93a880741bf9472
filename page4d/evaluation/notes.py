"""What a reader of an evaluation must know: what was not compared, and which numbers say less than they seem to."""

from collections.abc import Iterator

from page4d.conventions import Scale
from page4d.evaluation.camera_report import MOST_PAIRED_CAMERAS
from page4d.evaluation.comparison import Comparison
from page4d.evaluation.record import CameraReport, Evaluation


def notes(comparison: Comparison, evaluation: Evaluation) -> tuple[str, ...]:
    """Say in words what qualifies the numbers."""
    return (
        *comparison.truth.notices,
        *_about_the_run(comparison),
        *_about_the_match(comparison, evaluation),
        *_about_depth(comparison, evaluation),
        *_about_cameras(evaluation.cameras),
        *_about_masks(comparison, evaluation),
    )


def _about_the_run(comparison: Comparison) -> Iterator[str]:
    run = comparison.output.run
    if run.network.notice:
        yield run.network.notice
    if run.settings.get("calibration") is not None and run.settings.get("poses", "input") == "input":
        yield "the run was given its cameras: camera errors are those of the calibration"
    if run.settings.get("depth") is not None:
        yield "the run was given its depth maps: depth errors are those of the sensor"
    if run.settings.get("masks") is not None:
        yield "the run was given masks: mask errors may be those of the masks"
    undistorted = [view.name for view in run.views if view.undistorted is not None]
    if undistorted:
        yield f"the run undistorted {', '.join(undistorted)}: the truth is taken to be of undistorted images too"


def _about_the_match(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    match = evaluation.match
    if match.views_without_truth:
        yield f"no truth for the views {', '.join(match.views_without_truth)}: not compared"
    if match.views_not_reconstructed:
        yield f"the truth also has {', '.join(match.views_not_reconstructed)}, which the output has not"
    if match.times_without_truth:
        number, total = len(match.times_without_truth), len(comparison.output.run.times)
        yield f"{number} of {total} instants have no true map (first {match.times_without_truth[0]:.3f} s)"
    if comparison.truth.fps is None:
        yield f"the truth records no frame rate: {match.truth_fps:g} fps, {match.truth_fps_source}"


def _about_depth(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    depth = evaluation.depth
    if depth is None:
        yield "no pixel has both a true and a predicted depth: depth, points and confidence are not measured"
        return
    if depth.coverage < 1:
        yield f"{100 * (1 - depth.coverage):.2g} % of the true pixels have no prediction and do not count"
    counted = max(result.overall.pixels for result in depth.results)
    if depth.fitted_pixels < counted:
        yield f"alignments are fitted to a random {depth.fitted_pixels:,} of {counted:,} pixels"
    if comparison.output.run.scale is Scale.ARBITRARY:
        yield "the output's unit is arbitrary: depth errors without an alignment (metric) say nothing"
    if evaluation.confidence is not None and evaluation.confidence.ordering is None:
        yield "all depth errors are equal: confidence has nothing to order"


def _about_cameras(cameras: CameraReport | None) -> Iterator[str]:
    if cameras is None:
        yield "no instant has a true camera: cameras and points are not measured"
        return
    if cameras.fallback:
        yield f"{cameras.fallback}, which fixes no Sim(3): aligned by {cameras.definition}"
    if cameras.stands_still and cameras.overall.rpe_translation is not None:
        yield "the true cameras stand still: RPE is how much the predicted ones wander"
    if cameras.overall.cameras > MOST_PAIRED_CAMERAS:
        yield f"pairs are those of a random {MOST_PAIRED_CAMERAS} of {cameras.overall.cameras} cameras"
    pairs = cameras.pairs
    if pairs.pairs_apart < pairs.pairs:
        together = pairs.pairs - pairs.pairs_apart
        yield f"{together} of {pairs.pairs} camera pairs stand at one place: they count in RRA, not in RTA and AUC"


def _about_masks(comparison: Comparison, evaluation: Evaluation) -> Iterator[str]:
    if evaluation.masks is not None:
        return
    known = any(view.truth.dynamic_files for view in comparison.views)
    yield (
        "the output has no motion masks"
        if known
        else "the truth has no motion masks: nothing is told apart by motion"
    )
