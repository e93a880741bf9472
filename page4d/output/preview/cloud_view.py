"""Two orthographic views of the point cloud of one instant with its cameras."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.conventions import Scale
from page4d.errors import ShapeError
from page4d.formats.maps import to_numpy
from page4d.formats.ply import PointCloud
from page4d.output.cameras import CaptureCameras
from page4d.output.points import random_subset
from page4d.output.preview.splat import (
    SUPERSAMPLING,
    Orthographic,
    bulk,
    centers_of,
    enlarged_splat,
    looking_along,
    upward_axis,
)
from page4d.plotting.canvas import (
    BACKGROUND,
    FAINT,
    FRAME,
    INK,
    blank,
    draw_scale_bar,
    drawable,
    font,
    shortened,
    text_size,
    view_color,
    with_banner,
)

_PANEL = (760, 620)
_HEADING = 40
_MARGIN = 16
_BORDER_PX = 46
_MAX_POINTS = 600_000
_FRUSTUM_SIZE = 0.075


@dataclass(frozen=True)
class _Frustum:
    """Wireframe of a camera: its centre and the four corners of its image plane, [5, 3]."""

    name: str
    corners: NDArray[np.float64]


def cloud_views(cloud: PointCloud, cameras: CaptureCameras, time_index: int, notice: str = "") -> NDArray[np.uint8]:
    """Draw the cloud from behind and above the first camera and from its side, each with a scale bar.

    Both views have the same scale and are orthographic, so the scale bars hold at every depth. "Up" is the mean of
    the cameras' upward axes. Returns the picture [H, W, 3] in RGB.

    Raises:
        ShapeError: if there is no such instant.
    """
    if not 0 <= time_index < len(cameras.times):
        raise ShapeError(f"no instant {time_index}", f"the cameras have {len(cameras.times)}")
    world_to_camera = to_numpy(cameras.world_to_camera[time_index])
    if cloud.num_points > _MAX_POINTS:
        cloud = cloud[random_subset(cloud.num_points, _MAX_POINTS, 0)]
    main = bulk(cloud.xyz)
    extent = float(np.linalg.norm(np.ptp(np.concatenate([main, centers_of(world_to_camera)]), axis=0))) or 1.0
    frusta = _frusta(cameras, time_index, _FRUSTUM_SIZE * extent)
    shown = np.concatenate([main, *(frustum.corners for frustum in frusta)])
    first, time = shortened(drawable(cameras.view_names[0]), 17, 300), float(cameras.times[time_index])
    titles = (f"from behind and above {first}", f"from the side of {first}")
    picture, pen = blank(3 * _MARGIN + 2 * _PANEL[0], _HEADING + _PANEL[1] + _MARGIN)
    fitted = [Orthographic.fitted(axes, shown, _PANEL, _BORDER_PX) for axes in _view_axes(world_to_camera)]
    zoom = min(view.pixels_per_unit for view in fitted)
    for index, (title, view) in enumerate(zip(titles, fitted, strict=True)):
        x = _MARGIN + index * (_PANEL[0] + _MARGIN)
        panel = _panel(cloud, frusta, replace(view, pixels_per_unit=zoom), cameras.scale)
        picture.paste(panel, (x, _HEADING))
        pen.rectangle((x - 1, _HEADING - 1, x + _PANEL[0], _HEADING + _PANEL[1]), outline=FRAME)
        pen.text((x, _HEADING / 2), title, fill=INK, font=font(17), anchor="lm")
    counted = f"t = {time:.3f} s,  {cloud.num_points:,} points"
    pen.text((picture.width - _MARGIN, _HEADING / 2), counted, fill=FAINT, font=font(14), anchor="rm")
    return np.asarray(with_banner(picture, notice))


def _view_axes(world_to_camera: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the axes of both views: along the first camera from 30 degrees above, and across from 12 above."""
    down, forward = world_to_camera[:, 1, :3], world_to_camera[:, 2, :3]
    up = upward_axis(world_to_camera)
    ahead = forward[0] - (forward[0] @ up) * up
    if np.linalg.norm(ahead) < 0.1:  # the first camera faces straight down or up
        ahead = (down[0] @ up) * up - down[0]
    ahead = ahead / np.linalg.norm(ahead)
    across = np.cross(up, ahead)

    def from_above(direction: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
        angle = math.radians(degrees)
        return looking_along(math.cos(angle) * direction - math.sin(angle) * up, up)

    return from_above(ahead, 30), from_above(across, 12)


def _frusta(cameras: CaptureCameras, time_index: int, depth: float) -> list[_Frustum]:
    """Return the viewing frustum of every camera, cut off at about `depth`."""
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


def _panel(cloud: PointCloud, frusta: list[_Frustum], camera: Orthographic, scale: Scale) -> Image.Image:
    enlarged = enlarged_splat(camera, cloud.xyz, cloud.rgb, radius_px=1 if cloud.num_points > 60_000 else 2)
    pen = ImageDraw.Draw(enlarged)
    for index, frustum in enumerate(frusta):
        _draw_frustum(pen, camera.to_canvas(frustum.corners)[:, :2] * SUPERSAMPLING, index)
    panel = enlarged.resize(_PANEL, Image.Resampling.BOX)
    _draw_names(ImageDraw.Draw(panel), frusta, camera)
    draw_scale_bar(panel, camera.pixels_per_unit, scale)
    return panel


def _draw_frustum(pen: ImageDraw.ImageDraw, corners: NDArray[np.float64], index: int) -> None:
    apex, *base = [(float(x), float(y)) for x, y in corners]
    for color, width in (((255, 255, 255), 2 * SUPERSAMPLING + 3), (view_color(index), 2 * SUPERSAMPLING)):
        for corner, following in zip(base, [*base[1:], base[0]], strict=True):
            for ends in ((apex, corner), (corner, following)):
                pen.line(ends, fill=color, width=width)
    pen.line((base[0], base[1]), fill=view_color(index), width=4 * SUPERSAMPLING)


def _draw_names(pen: ImageDraw.ImageDraw, frusta: list[_Frustum], camera: Orthographic) -> None:
    """Write each view's name below its camera, further down where it would overlap another name."""
    taken: list[tuple[float, float, float, float]] = []
    for index, frustum in enumerate(frusta):
        name = shortened(drawable(frustum.name), 14, 160)
        width, height = text_size(name, 14)
        corners = camera.to_canvas(frustum.corners)
        x = float(np.clip(corners[:, 0].mean() - width / 2, 4, _PANEL[0] - width - 4))
        y = float(np.clip(corners[:, 1].max() + 4, 4, _PANEL[1] - height - 8))
        while any(
            x < right and x + width > left and y < bottom and y + height > top for left, top, right, bottom in taken
        ):
            y += 4
        taken.append((x - 4, y - 4, x + width + 4, y + height + 6))
        pen.text((x, y), name, fill=view_color(index), font=font(14), stroke_width=3, stroke_fill=BACKGROUND)
