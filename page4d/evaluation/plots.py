"""Plots of an evaluation by file name: error maps, errors over time, cameras from above, sparsification curves.

The view from above shows the true and the aligned predicted point cloud with the trajectories of all cameras.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.conventions import Scale
from page4d.errors import OutputError
from page4d.evaluation.comparison import Comparison, FramePair, true_camera
from page4d.evaluation.points import predicted_cloud, true_cloud
from page4d.evaluation.record import ConfidenceReport, DepthReport, Evaluation
from page4d.evaluation.scores import DepthFit
from page4d.formats.maps import to_numpy, write_png
from page4d.io.atomic import check_folder
from page4d.output.preview.cloud import SUPERSAMPLING, Orthographic, bulk, centers_of, enlarged_splat, looking_along
from page4d.output.record import TransformRecord
from page4d.plotting.canvas import (
    BACKGROUND,
    DEPTH_MAP,
    ERROR_MAP,
    FAINT,
    FRAME,
    INK,
    PREDICTED_POINTS,
    TRUE_POINTS,
    Color,
    blank,
    color_bar,
    colored,
    draw_key,
    draw_scale_bar,
    drawable,
    fitted_text,
    font,
    tile,
    view_color,
)
from page4d.plotting.charts import Chart, Curve, draw_charts

_PANEL = (900, 720)
_VIEW_HEADING = 66
_VIEW_MARGIN = 16
_BORDER_PX = 44
_OUTLIER_DISTANCE = 3.0
"""Predicted cameras farther away than this multiple of the scene's extent do not affect the zoom."""

_SYMBOL_SIZE = 0.07
_MAX_POINTS = 200_000


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """True cameras of one view over time, and the predicted ones aligned to the true world."""

    name: str
    true: Float[np.ndarray, "T 4 4"]
    predicted: Float[np.ndarray, "T 4 4"]


def _framing(points: NDArray[np.float64], cameras: list[Trajectory]) -> Orthographic:
    """Return a camera from above that shows the true world and the predicted cameras near it."""
    true = np.concatenate([view.true for view in cameras])
    down = true[:, 1, :3].mean(axis=0)
    down = down if np.linalg.norm(down) > 0.1 else true[0, 1, :3]
    ahead = true[0, 2, :3] - (true[0, 2, :3] @ down) * down / (down @ down)
    ahead = ahead if np.linalg.norm(ahead) > 0.1 else -true[0, 1, :3]
    world = np.concatenate([centers_of(true), bulk(points)])
    middle, extent = (world.min(axis=0) + world.max(axis=0)) / 2, float(np.ptp(world, axis=0).max()) or 1.0
    predicted = centers_of(np.concatenate([view.predicted for view in cameras]))
    near = predicted[np.linalg.norm(predicted - middle, axis=1) < _OUTLIER_DISTANCE * extent]
    return Orthographic.fitted(looking_along(down, ahead), np.concatenate([world, near]), _PANEL, _BORDER_PX)


def _share_inside(camera: Orthographic, points: NDArray[np.float64]) -> float:
    """Return the share of points within the panel; 1 without points."""
    projected = camera.to_canvas(points)[:, :2]
    return float(((projected >= 0) & (projected < np.array(_PANEL))).all(axis=1).mean()) if len(points) else 1.0


def _colored_points(
    true: NDArray[np.float64], predicted: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Join both clouds, each thinned to at most `_MAX_POINTS`, with their colours."""
    parts, colors = [], []
    for cloud, color in ((true, TRUE_POINTS), (predicted, PREDICTED_POINTS)):
        kept = cloud[:: max(-(-len(cloud) // _MAX_POINTS), 1)]
        parts.append(kept)
        colors.append(np.tile(np.array(color, dtype=np.uint8), (len(kept), 1)))
    return np.concatenate(parts), np.concatenate(colors)


def _draw_trajectory(
    pen: ImageDraw.ImageDraw, camera: Orthographic, poses: NDArray[np.float64], color: Color, width: int
) -> None:
    """Draw the path of a camera, and its field of view at the first instant as a triangle."""
    path = _pixels(camera, centers_of(poses))
    if len(path) > 1:
        pen.line(path, fill=color, width=width)
    size = _SYMBOL_SIZE * min(_PANEL) / camera.pixels_per_unit
    corners = size * np.array([[0.0, 0.0, 0.0], [-0.36, 0.0, 1.0], [0.36, 0.0, 1.0]])
    outline = _pixels(camera, (corners - poses[0, :3, 3]) @ poses[0, :3, :3])
    pen.line([*outline, outline[0], outline[1]], fill=color, width=width, joint="curve")
    pen.circle(outline[0], 6 + width / 2, fill=color)


def _pixels(camera: Orthographic, points: NDArray[np.float64]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in camera.to_canvas(points)[:, :2] * SUPERSAMPLING]


def _draw_names(pen: ImageDraw.ImageDraw, camera: Orthographic, cameras: list[Trajectory]) -> None:
    for index, view in enumerate(cameras):
        x, y, _ = camera.to_canvas(centers_of(view.true[:1]))[0]
        name = fitted_text(drawable(view.name), 13, 140)
        place = (float(np.clip(x, 30, _PANEL[0] - 30)), float(np.clip(y + 16, 12, _PANEL[1] - 12)))
        pen.text(
            place, name, fill=view_color(index), font=font(13), anchor="mm", stroke_width=3, stroke_fill=BACKGROUND
        )


Picture = NDArray[np.uint8]

FILES = ("depth_errors.png", "errors_over_time.png", "cameras_from_above.png", "sparsification.png")
"""Names of the files that `write_plots` may write."""

MAX_VIEWS = 8
_TILE_HEIGHT = 170
_MAX_TILE_WIDTH = 320
_GAP, _MARGIN, _LABEL, _HEADING = 6, 18, 92, 58
Map = NDArray[np.float64]
_LIMITS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


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
        OutputError: if it cannot be written, or contains plots and `overwrite` is False.
    """
    check_folder(folder)
    existing = [name for name in FILES if (folder / name).exists()]
    if existing and not overwrite:
        raise OutputError(
            f"'{folder / existing[0]}' already exists", "choose another folder, or pass ⟨overwrite=True⟩"
        )


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
    """Draw the maps of the instant with the median error: one column per view, one row per map.

    All depths share one range, the error range is round.
    """
    result = depth.results[0]
    errors = np.array([np.nan if own.abs_rel is None else own.abs_rel for own in result.per_time])
    known = np.flatnonzero(~np.isnan(errors))
    chosen = int(known[np.argsort(errors[known])[(len(known) - 1) // 2]])
    frames = [frame for frame in comparison.depth_frames(comparison.instants[chosen]) if bool(frame.counted.any())]
    fit = DepthFit(scale=_number(result.scale), shift=_number(result.shift))
    title = f"t = {depth.times[chosen]:.3f} s, aligned by {result.alignment}, AbsRel {errors[chosen]:.3g}"
    shown = frames[:MAX_VIEWS]
    columns = [_maps(frame, fit) for frame in shown]
    depths = np.concatenate([column[0][column[0] > 0] for column in columns])
    lowest, highest = (float(bound) for bound in np.quantile(depths, (0.02, 0.98)))
    highest = highest if highest > lowest else lowest + 1.0
    worst = float(np.quantile(np.concatenate([column[2][column[3]] for column in columns]), 0.95))
    limit = next((limit for limit in _LIMITS if worst <= limit), _LIMITS[-1])
    sizes = [_tile_size(frame.truth.shape) for frame in shown]
    bars = _bars(lowest, highest, limit, comparison.truth.scale)
    width = 2 * _MARGIN + _LABEL + sum(size[0] + _GAP for size in sizes) + 14 + bars.width
    picture, pen = blank(width, _HEADING + 3 * (_TILE_HEIGHT + _GAP) + _MARGIN)
    pen.text((_MARGIN, 20), title, fill=INK, font=font(17), anchor="lm")
    for row, label in enumerate(("truth", "prediction", "error")):
        y = _HEADING + row * (_TILE_HEIGHT + _GAP) + _TILE_HEIGHT / 2
        pen.text((_MARGIN, y), label, fill=FAINT, font=font(14), anchor="lm")
    x = _MARGIN + _LABEL
    for frame, (true, aligned, error, counted), size in zip(shown, columns, sizes, strict=True):
        name = fitted_text(drawable(frame.view.name), 13, size[0])
        pen.text((x + size[0] / 2, _HEADING - 12), name, fill=INK, font=font(13), anchor="mm")
        span = highest - lowest
        maps = (
            colored((true - lowest) / span, true > 0, DEPTH_MAP),
            colored((aligned - lowest) / span, counted, DEPTH_MAP),
            colored(error / limit, counted, ERROR_MAP),
        )
        for row, pixels in enumerate(maps):
            picture.paste(tile(pixels, *size), (x, _HEADING + row * (_TILE_HEIGHT + _GAP)))
        x += size[0] + _GAP
    picture.paste(bars, (x + 14, _HEADING))
    return np.asarray(picture)


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
    """Draw the cameras of all instants over both clouds of the middle one, seen along the mean downward axis."""
    transform = record.sim3()
    cameras = []
    for view in comparison.views:
        instants, predicted, true = comparison.cameras(view)
        if instants:
            aligned = transform.apply_to_cameras(predicted)
            cameras.append(Trajectory(name=view.name, true=to_numpy(true), predicted=to_numpy(aligned)))
    index = comparison.instants[len(comparison.instants) // 2]
    frames = [frame for frame in comparison.depth_frames(index) if true_camera(frame.view, index) is not None]
    empty = np.zeros((0, 3))
    true_points = true_cloud(frames).xyz if frames else empty
    predicted_points = predicted_cloud(comparison, frames, transform).xyz if frames else empty
    camera = _framing(true_points, cameras)
    enlarged = enlarged_splat(camera, *_colored_points(true_points, predicted_points), radius_px=1)
    pen = ImageDraw.Draw(enlarged)
    for number, track in enumerate(cameras):
        for poses, color, width in ((track.true, INK, 6), (track.predicted, view_color(number), 2)):
            _draw_trajectory(pen, camera, poses, color, width * SUPERSAMPLING)
    panel = enlarged.resize(_PANEL, Image.Resampling.BOX)
    _draw_names(ImageDraw.Draw(panel), camera, cameras)
    draw_scale_bar(panel, camera.pixels_per_unit, comparison.truth.scale)
    picture, pen = blank(_PANEL[0] + 2 * _VIEW_MARGIN, _PANEL[1] + _VIEW_HEADING + _VIEW_MARGIN)
    title = f"Top view, t = {comparison.output.run.times[index]:.3f} s"
    pen.text((_VIEW_MARGIN, 20), title, fill=INK, font=font(17), anchor="lm")
    inside = _share_inside(camera, predicted_points)
    cropped = "" if inside > 0.99 else f" ({100 * inside:.0f} % of them in this view)"
    x = draw_key(pen, (_VIEW_MARGIN, 40), TRUE_POINTS, "true points", 13) + 14
    x = draw_key(pen, (x, 40), PREDICTED_POINTS, f"predicted points{cropped}", 13) + 18
    note = "cameras: true in black, predicted in the colour of their view"
    pen.text((x, 46), note, fill=FAINT, font=font(13), anchor="lm")
    picture.paste(panel, (_VIEW_MARGIN, _VIEW_HEADING))
    pen.rectangle(
        (_VIEW_MARGIN - 1, _VIEW_HEADING - 1, _VIEW_MARGIN + _PANEL[0], _VIEW_HEADING + _PANEL[1]), outline=FRAME
    )
    return np.asarray(picture)


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


def _maps(frame: FramePair, fit: DepthFit) -> tuple[Map, Map, Map, NDArray[np.bool_]]:
    """Return true depth, aligned prediction, absolute relative error, and the mask of counted pixels."""
    true, counted = np.where(frame.known, frame.truth, 0.0), frame.counted.numpy()
    aligned = fit.apply(frame.prediction.double()).numpy()
    error = np.where(counted, np.abs(aligned - true) / np.where(counted, true, 1.0), 0.0)
    return true, aligned, error, counted


def _tile_size(shape: Sequence[int]) -> tuple[int, int]:
    return min(round(_TILE_HEIGHT * shape[1] / shape[0]), _MAX_TILE_WIDTH), _TILE_HEIGHT


def _bars(lowest: float, highest: float, limit: float, scale: Scale) -> Image.Image:
    labels = tuple(f"{lowest + share * (highest - lowest):.3g}" for share in (0, 0.5, 1))
    depth = color_bar(2 * _TILE_HEIGHT + _GAP, DEPTH_MAP, labels, f"depth [{scale.symbol}]")
    percent = ("0", f"{50 * limit:g} %", f">= {100 * limit:g} %")
    error = color_bar(_TILE_HEIGHT, ERROR_MAP, percent, "|p - g| / g")
    picture, _ = blank(max(depth.width, error.width), 3 * _TILE_HEIGHT + 2 * _GAP)
    picture.paste(depth, (0, 0))
    picture.paste(error, (0, 2 * (_TILE_HEIGHT + _GAP)))
    return picture
