"""All pictures of an evaluation, by file name."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.errors import OutputError
from page4d.evaluation.clouds import predicted_cloud, true_cloud
from page4d.evaluation.comparison import Comparison, true_camera
from page4d.evaluation.depth_alignment import DepthFit
from page4d.evaluation.plots.error_maps import draw_error_maps
from page4d.evaluation.plots.top_view import PlanCamera, draw_plan
from page4d.evaluation.record import ConfidenceReport, DepthReport, Evaluation, TransformRecord
from page4d.export.arrays import to_numpy
from page4d.export.maps import write_png
from page4d.geometry.similarity import Sim3
from page4d.plotting.canvas import INK, VIEW_COLORS
from page4d.plotting.charts import Curve, line_chart

Picture = NDArray[np.uint8]

FILES = ("depth_errors.png", "errors_over_time.png", "cameras_from_above.png", "sparsification.png")
"""What `write_plots` may write."""

_GREY, _RED = (150, 154, 160), (200, 40, 46)


def write_plots(folder: Path, comparison: Comparison, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write a PNG of every picture that the evaluation has numbers for, and return their paths.

    Raises:
        OutputError: if a file cannot be written.
    """
    drawn = draw_plots(comparison, evaluation)
    return tuple(write_png(folder / name, picture).path for name, picture in drawn.items())


def check_plots(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that is a file, or that holds pictures already.

    Raises:
        OutputError: if it does.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--plots '{folder}' is a file", "give a folder")
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        raise OutputError(f"'{folder / there[0]}' is there already", "choose another folder, or pass --overwrite")


def draw_plots(comparison: Comparison, evaluation: Evaluation) -> dict[str, Picture]:
    """Draw what can be drawn: [H, W, 3] in RGB by file name."""
    pictures = {}
    if evaluation.depth is not None:
        pictures[FILES[0]] = _error_maps(comparison, evaluation.depth)
        pictures[FILES[1]] = _over_time(evaluation.depth)
    if evaluation.cameras is not None:
        pictures[FILES[2]] = _plan(comparison, evaluation.cameras.transform)
    if evaluation.confidence is not None:
        pictures[FILES[3]] = _sparsification(evaluation.confidence)
    return pictures


def _error_maps(comparison: Comparison, depth: DepthReport) -> Picture:
    """Draw the instant whose error is the median of all instants."""
    result = depth.results[0]
    errors = np.array([np.nan if own.abs_rel is None else own.abs_rel for own in result.per_time])
    known = np.flatnonzero(~np.isnan(errors))
    chosen = int(known[np.argsort(errors[known])[(len(known) - 1) // 2]])
    frames = [frame for frame in comparison.depth_frames(comparison.instants[chosen]) if bool(frame.counted.any())]
    fit = DepthFit(scale=_number(result.scale), shift=_number(result.shift))
    title = f"t = {depth.times[chosen]:.3f} s, aligned by {result.alignment}, AbsRel {errors[chosen]:.3g}"
    return draw_error_maps(frames, fit, comparison.truth.scale, title)


def _number(value: float | None) -> torch.Tensor:
    return torch.tensor(torch.nan if value is None else value, dtype=torch.float64)


def _over_time(depth: DepthReport) -> Picture:
    result = depth.results[0]
    curves = [
        Curve(name=name, color=VIEW_COLORS[index % len(VIEW_COLORS)], x=depth.times, y=own, width=1)
        for index, (name, own) in enumerate(result.abs_rel_per_frame.items())
    ]
    overall = Curve(name="all views", color=INK, x=depth.times, y=[own.abs_rel for own in result.per_time], width=3)
    title = f"depth error over time, aligned by {result.alignment}"
    return line_chart([*curves, overall], title, "time [s]", "AbsRel")


def _plan(comparison: Comparison, record: TransformRecord) -> Picture:
    """Draw the cameras of all instants over the clouds of the middle one."""
    transform = Sim3(
        scale=torch.tensor(record.scale, dtype=torch.float64),
        rotation=torch.tensor(record.rotation, dtype=torch.float64),
        translation=torch.tensor(record.translation, dtype=torch.float64),
    )
    cameras = []
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        if instants:
            moved = transform.apply_to_cameras(predicted)
            cameras.append(PlanCamera(name=view.name, true=to_numpy(true), predicted=to_numpy(moved)))
    index = comparison.instants[len(comparison.instants) // 2]
    frames = [frame for frame in comparison.depth_frames(index) if true_camera(frame.view, index) is not None]
    nothing = np.zeros((0, 3))
    return draw_plan(
        true_cloud(frames).xyz if frames else nothing,
        predicted_cloud(comparison, frames, transform).xyz if frames else nothing,
        cameras,
        comparison.truth.scale,
        f"from above, t = {comparison.output.run.times[index]:.3f} s",
    )


def _sparsification(report: ConfidenceReport) -> Picture:
    shares = [100 * share for share in report.removed]
    curves = [
        Curve(name="by confidence", color=_RED, x=shares, y=report.by_confidence, width=3),
        Curve(name="by true error", color=INK, x=shares, y=report.by_error),
        Curve(name="at random", color=_GREY, x=[shares[0], shares[-1]], y=[report.by_error[0]] * 2),
    ]
    ordering = "" if report.ordering is None else f", ordering {report.ordering:.3g}"
    title = f"does confidence order the errors? AUSE {report.ause:.3g}{ordering}"
    return line_chart(curves, title, "pixels taken away [%]", "AbsRel of the rest")
