"""Plots of an evaluation by file name: error maps, errors over time, cameras from above, sparsification curves.

The view from above shows the true and the aligned predicted point cloud with the trajectories of all cameras.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.evaluation.comparison import Comparison, FramePair, true_camera
from page4d.evaluation.points import predicted_cloud, true_cloud
from page4d.evaluation.record import ConfidenceReport, DepthReport, Evaluation
from page4d.evaluation.scores import DepthFit
from page4d.formats.maps import to_numpy, write_png
from page4d.io.atomic import check_file, check_folder
from page4d.output.preview.cloud import bulk, centers_of, looking_along
from page4d.output.record import TransformRecord
from page4d.plotting.canvas import FAINT, INK, NO_VALUE, PREDICTED_POINTS, TRUE_POINTS, view_color
from page4d.plotting.charts import Chart, Curve, add_legend, draw_chart, draw_figure, rgb, short_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = NDArray[np.uint8]
Map = NDArray[np.float64]

FILES = ("depth_errors.png", "errors_over_time.png", "cameras_from_above.png", "sparsification.png")
"""Names of the files that `write_plots` may write."""

_MAX_VIEWS, _MAX_POINTS = 8, 100_000
_LIMITS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_OUTLIER_DISTANCE = 3.0
"""Predicted cameras farther away than this multiple of the scene's extent do not affect the zoom."""

_SYMBOL_SIZE = 0.07
"""Size of the symbol of a camera relative to the extent of the scene."""


def write_plots(folder: Path, comparison: Comparison, evaluation: Evaluation) -> tuple[Path, ...]:
    """Write every plot that the evaluation has data for as PNG, and return the paths.

    Raises:
        OutputError: if a file cannot be written.
    """
    pictures = {}
    if evaluation.depth is not None:
        pictures[FILES[0]] = _error_maps(comparison, evaluation.depth)
        pictures[FILES[1]] = _over_time(evaluation.depth)
    if evaluation.cameras is not None:
        pictures[FILES[2]] = _top_view(comparison, evaluation.cameras.transform)
    if evaluation.confidence is not None:
        pictures[FILES[3]] = _sparsification(evaluation.confidence)
    return tuple(write_png(folder / name, picture).path for name, picture in pictures.items())


def check_plots(folder: Path, *, overwrite: bool) -> None:
    """Check that plots can be written to a folder.

    Raises:
        UsageError: if it contains plots and `overwrite` is False.
        OutputError: if it cannot be written.
    """
    check_folder(folder)
    for name in FILES:
        check_file(folder / name, overwrite=overwrite)


def _error_maps(comparison: Comparison, depth: DepthReport) -> Picture:
    """Draw the maps of the instant with the median error: one column per view, one row per map.

    All depths share one range, the error range is round.
    """
    result = depth.results[0]
    errors = np.array([np.nan if own.abs_rel is None else own.abs_rel for own in result.per_time])
    known = np.flatnonzero(~np.isnan(errors))
    chosen = int(known[np.argsort(errors[known])[(len(known) - 1) // 2]])
    frames = [frame for frame in comparison.depth_frames(comparison.instants[chosen]) if bool(frame.counted.any())]
    fit = DepthFit(_number(result.scale), _number(result.shift))
    shown = frames[:_MAX_VIEWS]
    columns = [_maps(frame, fit) for frame in shown]
    depths = np.concatenate([column[0].compressed() for column in columns])
    lowest, highest = (float(bound) for bound in np.quantile(depths, (0.02, 0.98)))
    highest = highest if highest > lowest else lowest + 1.0
    worst = float(np.quantile(np.concatenate([column[2].compressed() for column in columns]), 0.95))
    limit = next((limit for limit in _LIMITS if worst <= limit), _LIMITS[-1])

    def paint(figure: "Figure") -> None:
        title = f"t = {depth.times[chosen]:.3f} s, aligned by {result.alignment}, AbsRel {errors[chosen]:.3g}"
        figure.suptitle(title, fontsize=12, color=rgb(INK))
        grid = figure.subplots(3, len(shown), squeeze=False)
        rows = (("truth", "turbo", lowest, highest), ("prediction", "turbo", lowest, highest))
        images: list[Any] = []
        for row, (label, colors, low, high) in zip(grid, (*rows, ("error", "inferno", 0.0, limit)), strict=True):
            row[0].set_ylabel(label, color=rgb(FAINT))
            for axes, frame, maps in zip(row, shown, columns, strict=True):
                images.append(axes.imshow(maps[len(images) // len(shown)], cmap=colors, vmin=low, vmax=high))
                axes.set(xticks=[], yticks=[], facecolor=rgb(NO_VALUE))
                if label == "truth":
                    axes.set_title(short_name(frame.view.name), fontsize=9.5, color=rgb(INK), parse_math=False)
        unit = comparison.truth.scale.symbol
        figure.colorbar(images[0], ax=grid[:2].ravel().tolist(), label=f"depth [{unit}]", extend="both")
        figure.colorbar(images[-1], ax=grid[2].tolist(), label="|p - g| / g", extend="max")

    return draw_figure((220 * len(shown) + 180, 600), paint)


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
    return draw_chart(Chart(title=title, x_label="time [s]", y_label="AbsRel", curves=[*curves, overall]))


def _top_view(comparison: Comparison, record: TransformRecord) -> Picture:
    """Draw the cameras of all instants over both clouds of the middle one, seen along the mean downward axis."""
    transform = record.sim3()
    cameras: dict[str, tuple[Map, Map]] = {}
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        if instants:
            cameras[view.name] = to_numpy(true), to_numpy(transform.apply_to_cameras(predicted))
    index = comparison.instants[len(comparison.instants) // 2]
    frames = [frame for frame in comparison.depth_frames(index) if true_camera(frame.view, index) is not None]
    clouds = [np.zeros((0, 3))] * 2
    if frames:
        clouds = [true_cloud(frames).xyz, predicted_cloud(comparison, frames, transform).xyz]
    true_poses, predicted_poses = (np.concatenate(poses) for poses in zip(*cameras.values(), strict=True))
    plane = _seen_from_above(true_poses)
    world = np.concatenate([centers_of(true_poses), bulk(clouds[0])])
    middle, extent = (world.min(axis=0) + world.max(axis=0)) / 2, float(np.ptp(world, axis=0).max()) or 1.0
    centers = centers_of(predicted_poses)
    near = centers[np.linalg.norm(centers - middle, axis=1) < _OUTLIER_DISTANCE * extent]
    flat = np.concatenate([world, near]) @ plane
    symbol = _SYMBOL_SIZE * extent * np.array([[0.0, 0.0, 0.0], [-0.36, 0.0, 1.0], [0.36, 0.0, 1.0], [0.0, 0.0, 0.0]])

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        legend = [
            Curve(name="true points", color=TRUE_POINTS),
            Curve(name="predicted points", color=PREDICTED_POINTS),
        ]
        for cloud, curve in zip(clouds, legend, strict=True):
            shown = cloud[:: max(-(-len(cloud) // _MAX_POINTS), 1)] @ plane
            axes.scatter(shown[:, 0], shown[:, 1], s=1.5, color=rgb(curve.color), linewidths=0)
        legend.append(Curve(name="true cameras", color=INK))
        for number, (name, poses) in enumerate(cameras.items()):
            legend.append(Curve(name=name, color=view_color(number)))
            for track, color, width in zip(poses, (INK, view_color(number)), (4.0, 1.5), strict=True):
                outline = (symbol - track[0, :3, 3]) @ track[0, :3, :3] @ plane
                for line in (centers_of(track) @ plane, outline):
                    axes.plot(*line.T, color=rgb(color), linewidth=width)
        axes.set(xlim=_around(flat[:, 0], extent), ylim=_around(flat[:, 1], extent))
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_title(f"Top view, t = {comparison.output.run.times[index]:.3f} s", loc="left", color=rgb(INK))
        axes.set_xlabel(f"[{comparison.truth.scale.symbol}]", color=rgb(INK))
        add_legend(axes, legend)

    return draw_figure((1000, 720), paint)


def _seen_from_above(poses: Map) -> Map:
    """Return the directions to the right and ahead in a picture along the mean downward axis of cameras, [3, 2]."""
    down = poses[:, 1, :3].mean(axis=0)
    down = down if np.linalg.norm(down) > 0.1 else poses[0, 1, :3]
    ahead = poses[0, 2, :3] - (poses[0, 2, :3] @ down) * down / (down @ down)
    ahead = ahead if np.linalg.norm(ahead) > 0.1 else -poses[0, 1, :3]
    right, back, _ = looking_along(down, ahead)
    return np.stack([right, -back], axis=1)


def _around(values: Map, extent: float) -> tuple[float, float]:
    return values.min() - _SYMBOL_SIZE * extent, values.max() + _SYMBOL_SIZE * extent


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
    return draw_chart(Chart(title=title, x_label="removed pixels [%]", y_label=y_label, curves=curves))


def _maps(frame: FramePair, fit: DepthFit) -> tuple["np.ma.MaskedArray[Any, Any]", ...]:
    """Return true depth, aligned prediction and absolute relative error, without pixels that are not counted."""
    counted = frame.counted.numpy()
    true = np.ma.masked_where(~frame.known.numpy(), frame.truth.numpy())
    aligned = np.ma.masked_where(~counted, fit.apply(frame.prediction.double()).numpy())
    return true, aligned, np.abs(aligned - true) / true
