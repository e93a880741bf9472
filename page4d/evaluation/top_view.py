"""Top view of the true and the aligned predicted point cloud with the trajectories of all cameras."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.conventions import Scale
from page4d.output.preview.cloud import SUPERSAMPLING, Orthographic, bulk, centers_of, enlarged_splat, looking_along
from page4d.plotting.canvas import (
    BACKGROUND,
    FAINT,
    FRAME,
    INK,
    PREDICTED_POINTS,
    TRUE_POINTS,
    Color,
    blank,
    draw_key,
    draw_scale_bar,
    drawable,
    font,
    shortened,
    view_color,
)

_PANEL = (900, 720)
_HEADING = 66
_MARGIN = 16
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


def draw_top_view(
    true_points: Float[np.ndarray, "N 3"],
    predicted_points: Float[np.ndarray, "M 3"],
    cameras: list[Trajectory],
    scale: Scale,
    title: str,
) -> NDArray[np.uint8]:
    """Draw both clouds and all cameras, seen along the true cameras' mean downward axis. Returns RGB [H, W, 3]."""
    camera = _framing(true_points, cameras)
    enlarged = enlarged_splat(camera, *_colored_points(true_points, predicted_points), radius_px=1)
    pen = ImageDraw.Draw(enlarged)
    for index, view in enumerate(cameras):
        for poses, color, width in ((view.true, INK, 6), (view.predicted, view_color(index), 2)):
            _draw_trajectory(pen, camera, poses, color, width * SUPERSAMPLING)
    panel = enlarged.resize(_PANEL, Image.Resampling.BOX)
    _draw_names(ImageDraw.Draw(panel), camera, cameras)
    draw_scale_bar(panel, camera.pixels_per_unit, scale)
    picture, pen = blank(_PANEL[0] + 2 * _MARGIN, _PANEL[1] + _HEADING + _MARGIN)
    pen.text((_MARGIN, 20), title, fill=INK, font=font(17), anchor="lm")
    inside = _share_inside(camera, predicted_points)
    cropped = "" if inside > 0.99 else f" ({100 * inside:.0f} % of them in this view)"
    x = draw_key(pen, (_MARGIN, 40), TRUE_POINTS, "true points", 13) + 14
    x = draw_key(pen, (x, 40), PREDICTED_POINTS, f"predicted points{cropped}", 13) + 18
    note = "cameras: true in black, predicted in the colour of their view"
    pen.text((x, 46), note, fill=FAINT, font=font(13), anchor="lm")
    picture.paste(panel, (_MARGIN, _HEADING))
    pen.rectangle((_MARGIN - 1, _HEADING - 1, _MARGIN + _PANEL[0], _HEADING + _PANEL[1]), outline=FRAME)
    return np.asarray(picture)


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
        name = shortened(drawable(view.name), 13, 140)
        place = (float(np.clip(x, 30, _PANEL[0] - 30)), float(np.clip(y + 16, 12, _PANEL[1] - 12)))
        pen.text(
            place, name, fill=view_color(index), font=font(13), anchor="mm", stroke_width=3, stroke_fill=BACKGROUND
        )
