"""`page4d evaluate`: compare an output folder with the ground truth of its capture."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from page4d.errors import counted, number_text, percent_text
from page4d.options import OUTPUT, EvaluationSettings, Option
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress
from page4d_cli.tables import number_columns, print_fields, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from page4d.evaluation.motion_scores import FlowScores, TrackScores
    from page4d.evaluation.record import (
        CameraReport,
        DepthErrors,
        DepthReport,
        Evaluation,
        FlowResult,
        MotionReport,
        PointReport,
        TrackReport,
    )

_BASELINE = "nothing moves"

_share, _degrees = partial(percent_text, digits=1), partial(number_text, form="{:.2f}")


@options.command
def evaluate(
    out: Annotated[Path, options.Run],
    truth: Annotated[
        Path, typer.Argument(metavar="TRUTH", help="Ground truth folder, or a capture with a subfolder truth/.")
    ],
    settings: EvaluationSettings,
    plots: Annotated[
        Path | None,
        Option("Write plots: error maps, errors over time, top view of cameras, sparsification.", OUTPUT, "FOLDER"),
    ] = None,
    overwrite: Annotated[bool, Option("Replace existing plots.", OUTPUT)] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare a run with the ground truth.

    Depth, cameras, points, masks, confidence, motion and tracks. Lengths are in the unit of the ground truth. Notes
    explain degenerate cases and data that was not compared.
    """
    from page4d.evaluation.comparison import compare
    from page4d.evaluation.evaluate import measure
    from page4d.evaluation.plots import check_plots, write_plots
    from page4d.scene.discover import check_is_no_view

    if plots is not None:
        check_plots(plots, overwrite=overwrite)
        check_is_no_view(plots, [truth])
    comparison = compare(out, truth, fps=settings.fps, max_depth=settings.max_depth)
    with displayed_progress("evaluate", count("step"), quiet=quiet) as progress:
        evaluation = measure(comparison, settings, progress.update)
    if as_json:
        console.print_json(evaluation.document())
    elif not quiet:
        _report(evaluation)
    written = () if plots is None else write_plots(plots, comparison, evaluation)
    if not (as_json or quiet):
        print_fields([("plot", str(path)) for path in written])


def _report(evaluation: "Evaluation") -> None:
    match = evaluation.match
    unit = "metres" if match.unit == "metre" else "units of the truth"
    counts = f"{counted(len(match.views), 'view')}, {counted(len(match.times), 'instant')}"
    print_fields(
        [
            ("result", evaluation.out),
            ("truth", evaluation.truth),
            ("compared", f"{counts}, {match.times[0]:.3f} to {match.times[-1]:.3f} s"),
            ("lengths", f"in {unit}"),
            ("images", match.preprocess),
        ]
    )
    console.print_text("")
    _print_views(evaluation)
    if evaluation.depth is not None:
        _print_alignments(evaluation.depth)
    if evaluation.cameras is not None:
        _print_pairs(evaluation.cameras)
    if evaluation.motion is not None:
        _print_motion(evaluation.motion)
    if evaluation.tracks is not None:
        _print_tracks(evaluation.tracks)
    print_fields([*_lines(evaluation), *(("note", note) for note in evaluation.notes)])


def _print_views(evaluation: "Evaluation") -> None:
    depth = evaluation.depth
    result = None if depth is None else depth.results[0]
    title = "metrics by view" if result is None else f"metrics by view, depth aligned by {result.alignment}"
    headings = (
        *("AbsRel", "delta\n<1.25\n%", "RMSE", "ATE", "rota-\ntion\ndeg", "focal\n%"),
        *("accu-\nracy", "complete-\nness", "F-score\n%", "JM\n%"),
    )
    rows = []
    for name in (*evaluation.match.views, "static", "dynamic", "overall"):
        errors, track, points, mask = (
            _row(part, name) for part in (result, evaluation.cameras, evaluation.points, evaluation.masks)
        )
        if name in ("static", "dynamic") and errors is None:
            continue
        rows.append(
            (
                name,
                _number(errors and errors.abs_rel),
                _share(errors and errors.delta1),
                _number(errors and errors.rmse),
                _number(track and track.ate),
                _degrees(track and track.rotation_deg),
                _share(track and track.focal_error),
                _number(points and points.accuracy),
                _number(points and points.completeness),
                _share(points and points.f_score),
                _share(mask and mask.jm),
            )
        )
    print_table(number_columns("view", headings), rows, title)


def _row(report: Any, name: str) -> Any:
    """Return the entry of a report for a view, or its attribute `name`; None if there is neither."""
    return None if report is None else report.per_view.get(name, getattr(report, name, None))


def _print_alignments(depth: "DepthReport") -> None:
    headings = (
        *("scale", "shift", "AbsRel", "SqRel", "RMSE", "log\nRMSE"),
        *("delta\n<1.25\n%", "delta\n<1.25\n^2 %", "delta\n<1.25\n^3 %"),
    )
    rows = []
    for result in depth.results:
        own: DepthErrors = result.overall
        rows.append(
            (
                result.alignment if result.scope == "capture" else f"{result.alignment} per {result.scope}",
                _number(result.scale),
                _number(result.shift),
                *(_number(value) for value in (own.abs_rel, own.sq_rel, own.rmse, own.log_rmse)),
                *(_share(value) for value in (own.delta1, own.delta2, own.delta3)),
            )
        )
    print_table(number_columns("alignment", headings), rows, "depth metrics by alignment")


def _print_pairs(cameras: "CameraReport") -> None:
    pairs = cameras.pairs
    rows = {
        "RRA (rotation)": pairs.rra,
        "RTA (direction)": pairs.rta,
        "AUC": pairs.auc,
        "RTA, signed": pairs.signed_rta,
        "AUC, signed": pairs.signed_auc,
    }
    limits = tuple(pairs.rra)
    cells = [(name, *(_share(row[limit]) for limit in limits)) for name, row in rows.items()]
    headings = (f"{limit} deg" for limit in limits)
    print_table(number_columns("threshold", headings), cells, "relative poses of camera pairs, in %")


def _print_motion(motion: "MotionReport") -> None:
    """Print scene flow metrics of moving, slow and static pixels and of moving ones by view, with the baseline."""
    headings = (
        *("pixels", "cover\n%", "EPE3D", "median", "Acc-\n3DS\n%", "Acc-\n3DR\n%", "Out-\nliers\n%"),
        *("error\n<20\n%", "angle\ndeg", "still\n%"),
    )
    parts: list[tuple[str, FlowResult]] = [
        *((f"moving, {name}", own) for name, own in motion.moving_per_view.items()),
        ("moving", motion.moving),
        ("moving, certain", motion.moving_certain),
        ("slow", motion.slow),
        ("static", motion.static),
    ]
    rows = []
    for name, own in parts:
        if own.pixels:
            count = f"{own.known_pixels:,}"
            rows.append((name, count, _share(own.cover), *_flow_cells(own.errors), _share(own.still)))
            rows.append((_BASELINE, count, "", *_flow_cells(own.nothing_moves), ""))
    title = f"scene flow, displacement per {motion.interval:.4g} s"
    print_table(number_columns("pixels", headings), rows, title)


def _flow_cells(scores: "FlowScores | None") -> tuple[str, ...]:
    if scores is None:
        return ("-",) * 7
    shares = (scores.acc_strict, scores.acc_relaxed, scores.outliers, scores.good)
    return (
        _number(scores.epe),
        _number(scores.epe_median),
        *(_share(value) for value in shares),
        _degrees(scores.angle_deg),
    )


def _print_tracks(tracks: "TrackReport") -> None:
    headings = (
        *("tracks", "MTE", "ATE", "APD\n1-20\ncm %", "APD\n5-40\ncm %", "AJ\n1-20\ncm %", "AJ\n5-40\ncm %"),
        *("OA\n%", "sur-\nvival\n%", "alive\n%"),
    )
    rows = []
    for name, own in (("all", tracks.overall), ("dynamic", tracks.dynamic), ("static", tracks.static)):
        if own is not None:
            rows.append((name, *_track_cells(own.tracks)))
            rows.append((_BASELINE, *_track_cells(own.nothing_moves)))
    if rows:
        print_table(number_columns("tracks", headings), rows, "trajectories since their start, in the world")


def _track_cells(scores: "TrackScores") -> tuple[str, ...]:
    shares = (*scores.apd.values(), *scores.aj.values(), scores.occlusion_accuracy, scores.survival, scores.alive)
    return (
        f"{scores.tracks:,}",
        *(_number(value) for value in (scores.mte, scores.ate)),
        *(_share(value) for value in shares),
    )


def _lines(evaluation: "Evaluation") -> "Iterator[tuple[str, str]]":
    """Yield labelled lines with the metrics that are not in the tables."""
    if evaluation.cameras is not None:
        yield from _camera_lines(evaluation.cameras)
    if evaluation.points is not None:
        yield from _point_lines(evaluation.points)
    if evaluation.masks is not None:
        own = evaluation.masks.overall
        yield "masks", f"JM {_share(own.jm)} %, JR {_share(own.jr)} %, pooled IoU {_share(own.pooled)} %"
    if evaluation.confidence is not None:
        ordering, ause = evaluation.confidence.ordering, _number(evaluation.confidence.ause)
        normalized = "undefined" if ordering is None else f"{ordering:.3f} (1: ideal order, 0: random order)"
        yield "confidence", f"AUSE {ause}, normalized {normalized}"
    if evaluation.motion is not None:
        yield from _motion_lines(evaluation.motion)
    if evaluation.tracks is not None:
        yield from _track_lines(evaluation.tracks)


def _motion_lines(motion: "MotionReport") -> "Iterator[tuple[str, str]]":
    moving, static = motion.moving, motion.static
    if moving.errors is not None and moving.nothing_moves is not None:
        limit, way = f"{motion.moving_limit:g}", _number(moving.true_displacement)
        yield "motion", f"moving: true displacement above {limit}, mean {way} per interval"
        own, baseline = _number(moving.errors.velocity_median), _number(moving.nothing_moves.velocity_median)
        yield "", f"moving: median error of the velocity {own} per s ({_BASELINE}: {baseline})"
    if moving.sigma is not None:
        shares = ", ".join(f"{_number(epe)} ({share} %)" for share, epe in moving.sigma.epe_of_best.items())
        yield "", f"moving: {_share(moving.sigma.within_two)} % of the errors within 2 sigma"
        yield "", f"moving: EPE3D by increasing sigma {shares}"
    if static.known_pixels:
        still, speed = _share(static.still), _number(static.mean_speed)
        yield "motion", f"static: {still} % exactly still, mean speed {speed} per s ({_BASELINE}: 0)"


def _track_lines(tracks: "TrackReport") -> "Iterator[tuple[str, str]]":
    matched, total = tracks.matched, counted(tracks.tracks, "track")
    yield "tracks", f"truth of {matched} of {total}, median error of their starts {_number(tracks.start_error)}"
    if tracks.tapvid3d is not None:
        found = tracks.tapvid3d
        shares = f"APD {_share(found.apd)} %, 3D-AJ {_share(found.aj)} %, OA {_share(found.occlusion_accuracy)} %"
        yield "", f"TAPVid-3D, in the cameras of the starts: {shares}"
    if tracks.overall is not None:
        own, baseline = tracks.overall.tracks, tracks.overall.nothing_moves
        yield "", f"final error {_number(own.final)} ({_BASELINE}: {_number(baseline.final)})"
        for steps, drift in own.drift.items():
            if drift is not None:
                still = _number(baseline.drift[steps])
                yield "", f"median drift {steps} instants after the start {_number(drift)} ({_BASELINE}: {still})"


def _camera_lines(cameras: "CameraReport") -> "Iterator[tuple[str, str]]":
    own, pairs = cameras.overall, cameras.pairs
    yield "cameras", f"aligned by {cameras.definition}, scale {_number(cameras.transform.scale)}"
    step, turn = _number(own.rpe_translation), _degrees(own.rpe_rotation_deg)
    yield "", f"RPE between consecutive instants: translation {step}, rotation {turn} deg"
    rotation, direction = _degrees(pairs.rotation_median_deg), _degrees(pairs.direction_median_deg)
    yield "", f"median over pairs: rotation {rotation} deg, translation direction {direction} deg"
    if cameras.baseline_ratio is not None:
        ratio, spread = cameras.baseline_ratio, _share(cameras.baseline_spread)
        yield "", f"predicted / true baselines before alignment: median {ratio:.3g}, spread {spread} %"


def _point_lines(points: "PointReport") -> "Iterator[tuple[str, str]]":
    own = points.overall
    accuracy, completeness = _number(own.accuracy_median), _number(own.completeness_median)
    yield "points", f"median accuracy {accuracy}, median completeness {completeness}"
    mean, total = _number(own.overall_mean), _number(own.overall_sum)
    yield "", f"Chamfer distance {mean} (mean of accuracy and completeness), {total} (sum)"
    precision, recall, score = _share(own.precision), _share(own.recall), _share(own.f_score)
    yield "", f"threshold {points.threshold:.3g}: precision {precision} %, recall {recall} %, F-score {score} %"
    yield "", f"normal consistency {_number(own.normal_consistency)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"
