"""Plots of an evaluation by file name."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.errors import OutputError
from page4d.evaluation.clouds import predicted_cloud, true_cloud
from page4d.evaluation.comparison import Comparison, true_camera
from page4d.evaluation.depth_alignment import DepthFit
from page4d.evaluation.plots.error_maps import draw_error_maps
from page4d.evaluation.plots.top_view import Trajectory, draw_top_view
from page4d.evaluation.record import ConfidenceReport, DepthReport, Evaluation
from page4d.export.arrays import to_numpy
from page4d.export.diagnostics import TransformRecord
from page4d.export.maps import write_png
from page4d.geometry.similarity import Sim3
from page4d.plotting.charts import Chart, Curve, draw_charts
from page4d.plotting.colors import FAINT, INK, view_color

Picture = NDArray[np.uint8]

FILES = ("depth_errors.png", "errors_over_time.png", "cameras_from_above.png", "sparsification.png")
"""Names of the files that `write_plots` may write."""


def write_plots(folder: Path, comparison: Comparison, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write every plot that the evaluation has data for as PNG, and return the paths.

    Raises:
        OutputError: if a file cannot be written.
    """
    drawn = draw_plots(comparison, evaluation)
    return tuple(write_png(folder / name, picture).path for name, picture in drawn.items())


def check_plots(folder: Path, *, overwrite: bool) -> None:
    """Check that plots can be written to a folder.

    Raises:
        OutputError: if it is a file, or contains plots and `overwrite` is False.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--plots '{folder}' is a file", "pass a folder")
    existing = [name for name in FILES if (folder / name).exists()]
    if existing and not overwrite:
        raise OutputError(f"'{folder / existing[0]}' already exists", "choose another folder, or pass --overwrite")


def draw_plots(comparison: Comparison, evaluation: Evaluation) -> dict[str, Picture]:
    """Draw every plot that the evaluation has data for: [H, W, 3] in RGB by file name."""
    pictures = {}
    if evaluation.depth is not None:
        pictures[FILES[0]] = _error_maps(comparison, evaluation.depth)
        pictures[FILES[1]] = _over_time(evaluation.depth)
    if evaluation.cameras is not None:
        pictures[FILES[2]] = _top_view(comparison, evaluation.cameras.transform)
    if evaluation.confidence is not None:
        pictures[FILES[3]] = _sparsification(evaluation.confidence)
    return pictures


def _error_maps(comparison: Comparison, depth: DepthReport) -> Picture:
    """Draw the error maps of the instant with the median error."""
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
        Curve(name=name, color=view_color(index), x=depth.times, y=own, width=1.2)
        for index, (name, own) in enumerate(result.abs_rel_per_frame.items())
    ]
    overall = Curve(name="all views", color=INK, x=depth.times, y=[own.abs_rel for own in result.per_time], width=2.4)
    title = f"Depth error over time, aligned by {result.alignment}"
    return draw_charts([Chart(title=title, x_label="time [s]", y_label="AbsRel", curves=[*curves, overall])])


def _top_view(comparison: Comparison, record: TransformRecord) -> Picture:
    """Draw the cameras of all instants over the point clouds of the middle one."""
    transform = Sim3(
        scale=torch.tensor(record.scale, dtype=torch.float64),
        rotation=torch.tensor(record.rotation, dtype=torch.float64),
        translation=torch.tensor(record.translation, dtype=torch.float64),
    )
    cameras = []
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        if instants:
            aligned = transform.apply_to_cameras(predicted)
            cameras.append(Trajectory(name=view.name, true=to_numpy(true), predicted=to_numpy(aligned)))
    index = comparison.instants[len(comparison.instants) // 2]
    frames = [frame for frame in comparison.depth_frames(index) if true_camera(frame.view, index) is not None]
    empty = np.zeros((0, 3))
    return draw_top_view(
        true_cloud(frames).xyz if frames else empty,
        predicted_cloud(comparison, frames, transform).xyz if frames else empty,
        cameras,
        comparison.truth.scale,
        f"Top view, t = {comparison.output.run.times[index]:.3f} s",
    )


def _sparsification(report: ConfidenceReport) -> Picture:
    shares = [100 * share for share in report.removed]
    random = [report.by_error[0]] * 2
    curves = [
        Curve(name="random order", color=FAINT, x=[shares[0], shares[-1]], y=random, style="--"),
        Curve(name="by confidence", color=view_color(0), x=shares, y=report.by_confidence, width=2.4),
        Curve(name="by true error", color=INK, x=shares, y=report.by_error),
    ]
    normalized = "" if report.ordering is None else f" (normalized {report.ordering:.3f})"
    title = f"Sparsification of depth errors, aligned by {report.alignment}: AUSE {report.ause:.3g}{normalized}"
    y_label = "AbsRel of the remaining pixels"
    return draw_charts([Chart(title=title, x_label="removed pixels [%]", y_label=y_label, curves=curves)])
