"""Two sides of one instant's cloud with the cameras that saw it."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.errors import ShapeError
from page4d.export.arrays import to_numpy
from page4d.export.cameras import CaptureCameras
from page4d.export.ply import PointCloud
from page4d.export.points import random_subset
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
    text_size,
    with_banner,
)

_PANEL = (760, 620)
_HEADING = 40
_MARGIN = 16
_BORDER_PX = 46
_MOST_POINTS = 600_000
_SUPERSAMPLING = 2
_FRUSTUM_SIZE = 0.075
_BULK_REACH = 2.2


@dataclass(frozen=True)
class _Frustum:
    """A drawn camera: its centre and the four corners of its image plane, [5, 3]."""

    name: str
    corners: NDArray[np.float64]


def cloud_views(cloud: PointCloud, cameras: CaptureCameras, time_index: int, notice: str = "") -> NDArray[np.uint8]:
    """Draw the cloud from behind and above the first camera, and from its side, with a scale bar each.

    Both are orthographic, so the scale bar holds everywhere. "Up" is the mean of the cameras' upward axes.
    Returns the picture [H, W, 3] in RGB.

    Raises:
        ShapeError: if there is no such instant.
    """
    if not 0 <= time_index < len(cameras.times):
        raise ShapeError(f"no instant {time_index}", f"the cameras have {len(cameras.times)}")
    world_to_camera = to_numpy(cameras.world_to_camera[time_index])
    if cloud.num_points > _MOST_POINTS:
        cloud = cloud[random_subset(cloud.num_points, _MOST_POINTS, 0)]
    center, extent = _framing(cloud, world_to_camera)
    frusta = _frusta(cameras, time_index, _FRUSTUM_SIZE * extent)
    first, time = shortened(drawable(cameras.view_names[0]), 17, 300), float(cameras.times[time_index])
    titles = (f"from behind and above {first}", f"from the side of {first}")
    picture, pen = blank(3 * _MARGIN + 2 * _PANEL[0], _HEADING + _PANEL[1] + _MARGIN)
    for index, (title, axes) in enumerate(zip(titles, _view_axes(world_to_camera), strict=True)):
        x = _MARGIN + index * (_PANEL[0] + _MARGIN)
        panel = _panel(cloud, frusta, _fitted_camera(axes, center, cloud, frusta), short_unit(cameras.scale))
        picture.paste(panel, (x, _HEADING))
        pen.rectangle((x - 1, _HEADING - 1, x + _PANEL[0], _HEADING + _PANEL[1]), outline=(205, 205, 200))
        pen.text((x, _HEADING / 2), title, fill=INK, font=font(17), anchor="lm")
    counted = f"t = {time:.3f} s,  {cloud.num_points:,} points"
    pen.text((picture.width - _MARGIN, _HEADING / 2), counted, fill=FAINT, font=font(14), anchor="rm")
    return np.asarray(with_banner(picture, notice))


def _framing(cloud: PointCloud, world_to_camera: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return the middle and the size of what is shown: the bulk of the cloud and all cameras."""
    shown = np.concatenate([_bulk(cloud), _centers(world_to_camera)])
    lowest, highest = shown.min(axis=0), shown.max(axis=0)
    return (lowest + highest) / 2, float(np.linalg.norm(highest - lowest)) or 1.0


def _bulk(cloud: PointCloud) -> NDArray[np.float64]:
    """Return the points within a few median distances of the middle: a far background must not shrink the subject."""
    points = cloud.xyz.astype(np.float64)
    if len(points) == 0:
        return points
    distance = np.linalg.norm(points - np.median(points, axis=0), axis=1)
    bulk: NDArray[np.float64] = points[distance <= _BULK_REACH * np.median(distance)]
    return bulk


def _centers(world_to_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    rotations, translations = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3]
    centers: NDArray[np.float64] = -np.einsum("vji,vj->vi", rotations, translations)
    return centers


def _view_axes(world_to_camera: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the axes of the two views: along the first camera from 30 degrees above, and across from 12 above."""
    down, forward = world_to_camera[:, 1, :3], world_to_camera[:, 2, :3]
    up = -down.mean(axis=0)
    if np.linalg.norm(up) < 0.1:  # cameras on all sides of an axis that they look along have no common up
        up = -down[0]
    up = up / np.linalg.norm(up)
    ahead = forward[0] - (forward[0] @ up) * up
    if np.linalg.norm(ahead) < 0.1:  # the first camera looks straight down or up
        ahead = (down[0] @ up) * up - down[0]
    ahead = ahead / np.linalg.norm(ahead)
    across = np.cross(up, ahead)

    def from_above(direction: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
        angle = math.radians(degrees)
        return looking_along(math.cos(angle) * direction - math.sin(angle) * up, up)

    return from_above(ahead, 30), from_above(across, 12)


def _fitted_camera(
    axes: NDArray[np.float64], center: NDArray[np.float64], cloud: PointCloud, frusta: list[_Frustum]
) -> Orthographic:
    """Choose the zoom and the middle so that the bulk of the cloud and all cameras fill the panel."""
    shown = np.concatenate([_bulk(cloud), *(frustum.corners for frustum in frusta)]) - center
    flat = shown @ axes[:2].T
    lowest, highest = flat.min(axis=0), flat.max(axis=0)
    room = np.array(_PANEL) - 2 * _BORDER_PX
    span = np.maximum(highest - lowest, 1e-9 * max(float(np.abs(flat).max()), 1e-9))
    return Orthographic(
        axes=axes,
        center=center + axes[:2].T @ ((lowest + highest) / 2),
        size=_PANEL,
        pixels_per_unit=float((room / span).min()),
    )


def _frusta(cameras: CaptureCameras, time_index: int, depth: float) -> list[_Frustum]:
    """Return every camera as a pyramid whose base stands `depth` before its centre."""
    frusta = []
    for view, name in enumerate(cameras.view_names):
        height, width = cameras.image_sizes[view]
        inverse = np.linalg.inv(to_numpy(cameras.intrinsics[time_index, view]))
        corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=np.float64)
        rays = corners @ inverse.T
        rays = rays * (depth / max(float(np.abs(rays).max()), 1e-9))
        pose = to_numpy(cameras.world_to_camera[time_index, view])
        in_camera = np.concatenate([np.zeros((1, 3)), rays])
        frusta.append(_Frustum(name, (in_camera - pose[:3, 3]) @ pose[:3, :3]))
    return frusta


def _panel(cloud: PointCloud, frusta: list[_Frustum], camera: Orthographic, unit: str) -> Image.Image:
    radius = 1 if cloud.num_points > 60_000 else 2
    picture = Image.fromarray(splat(camera, cloud.xyz, cloud.rgb, radius, _SUPERSAMPLING))
    fine = picture.resize((_PANEL[0] * _SUPERSAMPLING, _PANEL[1] * _SUPERSAMPLING), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(fine)
    for index, frustum in enumerate(frusta):
        _draw_frustum(pen, camera.to_canvas(frustum.corners)[:, :2] * _SUPERSAMPLING, index)
    picture = fine.resize(_PANEL, Image.Resampling.BOX)
    pen = ImageDraw.Draw(picture)
    _draw_names(pen, frusta, camera)
    _draw_scale_bar(pen, camera, unit)
    return picture


def _draw_frustum(pen: ImageDraw.ImageDraw, corners: NDArray[np.float64], index: int) -> None:
    color = VIEW_COLORS[index % len(VIEW_COLORS)]
    apex, *base = [(float(x), float(y)) for x, y in corners]
    for corner, following in zip(base, [*base[1:], base[0]], strict=True):
        for ends in ((apex, corner), (corner, following)):
            pen.line(ends, fill=(255, 255, 255), width=2 * _SUPERSAMPLING + 3)
    for corner, following in zip(base, [*base[1:], base[0]], strict=True):
        for ends in ((apex, corner), (corner, following)):
            pen.line(ends, fill=color, width=2 * _SUPERSAMPLING)
    pen.line((base[0], base[1]), fill=color, width=4 * _SUPERSAMPLING)


def _draw_names(pen: ImageDraw.ImageDraw, frusta: list[_Frustum], camera: Orthographic) -> None:
    """Write each view's name beside its camera, lower where another name is in the way."""
    taken: list[tuple[float, float, float, float]] = []
    for index, frustum in enumerate(frusta):
        name = shortened(drawable(frustum.name), 14, 160)
        width, height = text_size(name, 14)
        seen = camera.to_canvas(frustum.corners)
        x = float(np.clip(seen[:, 0].mean() - width / 2, 4, _PANEL[0] - width - 4))
        y = float(np.clip(seen[:, 1].max() + 4, 4, _PANEL[1] - height - 8))
        while any(
            x < right and x + width > left and y < bottom and y + height > top for left, top, right, bottom in taken
        ):
            y += 4
        taken.append((x - 4, y - 4, x + width + 4, y + height + 6))
        color = VIEW_COLORS[index % len(VIEW_COLORS)]
        pen.text((x, y), name, fill=color, font=font(14), stroke_width=3, stroke_fill=BACKGROUND)


def _draw_scale_bar(pen: ImageDraw.ImageDraw, camera: Orthographic, unit: str) -> None:
    length = round_length(_PANEL[0] * 0.28 / camera.pixels_per_unit)
    pixels = length * camera.pixels_per_unit
    left, y = 20.0, _PANEL[1] - 20.0
    label = f"{length:g} {unit}"
    box = (left - 8, y - 30, left + max(pixels, text_size(label, 14)[0]) + 8, y + 10)
    pen.rounded_rectangle(box, radius=4, fill=BACKGROUND)
    pen.line((left, y, left + pixels, y), fill=INK, width=3)
    for end in (left, left + pixels):
        pen.line((end, y - 5, end, y + 5), fill=INK, width=2)
    pen.text((left, y - 16), label, fill=INK, font=font(14), anchor="lm")
