"""The true and the predicted world from above, one over the other, with their cameras."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.conventions import Scale
from page4d.export.preview.splat import Orthographic, looking_along, splat
from page4d.plotting.canvas import (
    BACKGROUND,
    FAINT,
    INK,
    VIEW_COLORS,
    blank,
    drawable,
    font,
    round_length,
    short_unit,
    shortened,
)

_PANEL = (900, 720)
_HEADING = 66
_MARGIN = 16
_BORDER_PX = 44
_SUPERSAMPLING = 2
_TRUE_COLOR, _PREDICTED_COLOR = (150, 162, 178), (228, 140, 70)
_FAR = 3.0
_BULK_REACH = 2.2
_SYMBOL = 0.07
_MOST_POINTS = 200_000


@dataclass(frozen=True, kw_only=True)
class PlanCamera:
    """One view's true cameras over time, and the predicted ones in the true world."""

    name: str
    true: Float[np.ndarray, "T 4 4"]
    predicted: Float[np.ndarray, "T 4 4"]


def draw_plan(
    true_points: Float[np.ndarray, "N 3"],
    predicted_points: Float[np.ndarray, "M 3"],
    cameras: list[PlanCamera],
    scale: Scale,
    title: str,
) -> NDArray[np.uint8]:
    """Draw both clouds and all cameras, seen along the true cameras' mean downward axis. Returns RGB [H, W, 3]."""
    camera, size = _framing(true_points, cameras)
    points, colors = _mixed(true_points, predicted_points)
    picture = Image.fromarray(splat(camera, points, colors, 1, _SUPERSAMPLING))
    fine = picture.resize((_PANEL[0] * _SUPERSAMPLING, _PANEL[1] * _SUPERSAMPLING), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(fine)
    for index, view in enumerate(cameras):
        color = VIEW_COLORS[index % len(VIEW_COLORS)]
        for poses, paint, width in ((view.true, INK, 2), (view.predicted, color, 3)):
            _draw_track(pen, camera, poses, paint, width * _SUPERSAMPLING, size)
    panel = fine.resize(_PANEL, Image.Resampling.BOX)
    _draw_labels(ImageDraw.Draw(panel), camera, cameras, scale)
    framed, pen = blank(_PANEL[0] + 2 * _MARGIN, _PANEL[1] + _HEADING + _MARGIN)
    pen.text((_MARGIN, 20), title, fill=INK, font=font(17), anchor="lm")
    x = float(_MARGIN)
    share = _share_inside(camera, predicted_points)
    inside = "" if share > 0.99 else f", {100 * share:.0f} % of them here"
    for paint, text in ((_TRUE_COLOR, "true points"), (_PREDICTED_COLOR, f"predicted points{inside}")):
        pen.rectangle((x, 40, x + 13, 53), fill=paint)
        pen.text((x + 20, 46), text, fill=INK, font=font(13), anchor="lm")
        x += 34 + font(13).getlength(text)
    note = "cameras: true ones dark, predicted ones in the colour of their view"
    pen.text((x + 4, 46), note, fill=FAINT, font=font(13), anchor="lm")
    framed.paste(panel, (_MARGIN, _HEADING))
    pen.rectangle((_MARGIN - 1, _HEADING - 1, _MARGIN + _PANEL[0], _HEADING + _PANEL[1]), outline=(205, 205, 200))
    return np.asarray(framed)


def _framing(points: NDArray[np.float64], cameras: list[PlanCamera]) -> tuple[Orthographic, float]:
    """Return a camera from above that shows the true world and predicted cameras near it, and a size for symbols."""
    true = np.concatenate([view.true for view in cameras])
    centers = _centers(true)
    down = true[:, 1, :3].mean(axis=0)
    down = down if np.linalg.norm(down) > 0.1 else true[0, 1, :3]
    ahead = true[0, 2, :3] - (true[0, 2, :3] @ down) * down / (down @ down)
    ahead = ahead if np.linalg.norm(ahead) > 0.1 else -true[0, 1, :3]
    axes = looking_along(down, ahead)
    world = np.concatenate([centers, _bulk(points)])
    middle, extent = (world.min(axis=0) + world.max(axis=0)) / 2, float(np.ptp(world, axis=0).max()) or 1.0
    guessed = _centers(np.concatenate([view.predicted for view in cameras]))
    near = guessed[np.linalg.norm(guessed - middle, axis=1) < _FAR * extent]
    flat = (np.concatenate([world, near]) - middle) @ axes[:2].T
    low, high = flat.min(axis=0), flat.max(axis=0)
    span = np.maximum(high - low, 1e-9 * extent)
    zoom = float(((np.array(_PANEL) - 2 * _BORDER_PX) / span).min())
    center = middle + axes[:2].T @ ((low + high) / 2)
    return Orthographic(axes=axes, center=center, size=_PANEL, pixels_per_unit=zoom), _SYMBOL * min(_PANEL) / zoom


def _bulk(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the points within a few median distances of the middle: a far background must not shrink the rest."""
    distance = np.linalg.norm(points - np.median(points, axis=0), axis=1) if len(points) else np.zeros(0)
    bulk: NDArray[np.float64] = points[distance <= _BULK_REACH * np.median(distance)] if len(points) else points
    return bulk


def _share_inside(camera: Orthographic, points: NDArray[np.float64]) -> float:
    """Return the share of points that the picture shows; 1 of none."""
    seen = camera.to_canvas(points)[:, :2]
    return float(((seen >= 0) & (seen < np.array(_PANEL))).all(axis=1).mean()) if len(points) else 1.0


def _mixed(
    true: NDArray[np.float64], predicted: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Put both clouds into one, as many points of each as fit."""
    parts, colors = [], []
    for cloud, color in ((true, _TRUE_COLOR), (predicted, _PREDICTED_COLOR)):
        kept = cloud[:: max(-(-len(cloud) // _MOST_POINTS), 1)]
        parts.append(kept)
        colors.append(np.tile(np.array(color, dtype=np.uint8), (len(kept), 1)))
    return np.concatenate(parts), np.concatenate(colors)


def _centers(world_to_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    centers: NDArray[np.float64] = -np.einsum("nji,nj->ni", world_to_camera[:, :3, :3], world_to_camera[:, :3, 3])
    return centers


def _draw_track(
    pen: ImageDraw.ImageDraw,
    camera: Orthographic,
    poses: NDArray[np.float64],
    color: tuple[int, int, int],
    width: int,
    size: float,
) -> None:
    """Draw where a camera goes, and at its first instant the triangle that it looks into."""
    places = camera.to_canvas(_centers(poses))[:, :2] * _SUPERSAMPLING
    path = [(float(x), float(y)) for x, y in places]
    if len(path) > 1:
        pen.line(path, fill=color, width=width)
    corners = size * np.array([[0.0, 0.0, 0.0], [-0.36, 0.0, 1.0], [0.36, 0.0, 1.0]])
    seen = camera.to_canvas((corners - poses[0, :3, 3]) @ poses[0, :3, :3])[:, :2] * _SUPERSAMPLING
    outline = [(float(x), float(y)) for x, y in seen]
    for paint, thick in (((255, 255, 255), width + 4), (color, width)):
        pen.line([*outline, outline[0], outline[1]], fill=paint, width=thick, joint="curve")
        pen.circle(outline[0], 2 * thick, fill=paint)


def _draw_labels(pen: ImageDraw.ImageDraw, camera: Orthographic, cameras: list[PlanCamera], scale: Scale) -> None:
    for index, view in enumerate(cameras):
        x, y, _ = camera.to_canvas(_centers(view.true[:1]))[0]
        color, name = VIEW_COLORS[index % len(VIEW_COLORS)], shortened(drawable(view.name), 13, 140)
        place = (float(np.clip(x, 30, _PANEL[0] - 30)), float(np.clip(y + 14, 12, _PANEL[1] - 12)))
        pen.text(place, name, fill=color, font=font(13), anchor="mm", stroke_width=3, stroke_fill=BACKGROUND)
    length = round_length(_PANEL[0] * 0.25 / camera.pixels_per_unit)
    left, y, pixels = 20.0, _PANEL[1] - 18.0, length * camera.pixels_per_unit
    pen.rounded_rectangle((left - 8, y - 30, left + max(pixels, 60) + 8, y + 10), radius=4, fill=BACKGROUND)
    pen.line((left, y, left + pixels, y), fill=INK, width=3)
    pen.text((left, y - 16), f"{length:g} {short_unit(scale)}", fill=INK, font=font(14), anchor="lm")
