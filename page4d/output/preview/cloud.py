"""Two orthographic views of the point cloud of one instant with its cameras, and a video of the 4D cloud.

Points are splatted with hidden-point removal, in numpy. The video plays while the viewpoint swings around the cloud.
"""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import av
import cv2
import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.conventions import Scale
from page4d.formats.cameras_json import CaptureCameras
from page4d.formats.maps import to_numpy
from page4d.formats.ply import PointCloud
from page4d.output.points import random_subset
from page4d.output.reader import Output
from page4d.output.upward import upward_of
from page4d.plotting.canvas import (
    BACKGROUND,
    FAINT,
    FRAME,
    INK,
    blank,
    draw_scale_bar,
    drawable,
    fitted_text,
    font,
    text_size,
    view_color,
    with_banner,
)

SUPERSAMPLING = 2
"""Pictures are drawn at this multiple of their size, so that lines and points are anti-aliased."""

_SHADING = 1.2
_BULK_REACH = 2.2
_NEIGHBOURS = ((1, 0), (-1, 0), (0, 1), (0, -1))


@dataclass(frozen=True, kw_only=True)
class Orthographic:
    """Orthographic camera: `axes` are its right, down and forward directions in the world.

    The world point `center` is in the middle of a canvas of `size` (width, height) pixels.
    """

    axes: NDArray[np.float64]
    center: NDArray[np.float64]
    size: tuple[int, int]
    pixels_per_unit: float

    @staticmethod
    def fitted(
        axes: NDArray[np.float64], points: NDArray[np.float64], size: tuple[int, int], border_px: int
    ) -> "Orthographic":
        """Choose centre and zoom so that all points fill the canvas up to a border."""
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        flat = (points - middle) @ axes[:2].T
        low, high = flat.min(axis=0), flat.max(axis=0)
        span = np.maximum(high - low, 1e-9 * max(float(np.abs(flat).max()), 1e-9))
        return Orthographic(
            axes=axes,
            center=middle + axes[:2].T @ ((low + high) / 2),
            size=size,
            pixels_per_unit=float(((np.array(size) - 2 * border_px) / span).min()),
        )

    def to_canvas(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return x and y in pixels and the depth in units, [N, 3]."""
        local = (points.astype(np.float64) - self.center) @ self.axes.T
        middle = np.array([self.size[0] / 2, self.size[1] / 2, 0.0])
        projected: NDArray[np.float64] = local * np.array([self.pixels_per_unit, self.pixels_per_unit, 1.0]) + middle
        return projected


def looking_along(direction: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the right, down and forward axes of a camera that faces `direction` with `up` upwards."""
    forward = direction / np.linalg.norm(direction)
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def bulk(points: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the points within a few median distances of the median, so that outliers do not determine the zoom."""
    kept: NDArray[np.float64] = points.astype(np.float64)
    if len(kept):
        distance = np.linalg.norm(kept - np.median(kept, axis=0), axis=1)
        kept = kept[distance <= _BULK_REACH * np.median(distance)]
    return kept


def centers_of(world_to_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centres of cameras [N, 4, 4]."""
    centers: NDArray[np.float64] = -np.einsum("nji,nj->ni", world_to_camera[:, :3, :3], world_to_camera[:, :3, 3])
    return centers


def splat(
    camera: Orthographic, points: NDArray[np.floating], rgb: NDArray[np.uint8], radius_px: int
) -> NDArray[np.uint8]:
    """Draw points as squares of `2 * radius_px + 1` supersampled pixels; nearer points occlude farther ones.

    Depth discontinuities are darkened, which separates shapes of equal colour.
    """
    size = camera.size[0] * SUPERSAMPLING, camera.size[1] * SUPERSAMPLING
    projected = camera.to_canvas(points)
    corner = np.floor(projected[:, :2] * SUPERSAMPLING) - radius_px
    front = _nearest_points(corner, projected[:, 2], size, 2 * radius_px + 1)
    picture = _painted(front, rgb, projected[:, 2], min(camera.size) / camera.pixels_per_unit)
    return _in_bytes(cv2.resize(picture, camera.size, interpolation=cv2.INTER_AREA))


def _nearest_points(
    corner: NDArray[np.floating], depth: NDArray[np.floating], size: tuple[int, int], side: int
) -> NDArray[np.int32]:
    """Return the index of the nearest point at every pixel [H, W] of a canvas, -1 where there is none.

    Points are squares of `side` pixels, whose first pixels are at `corner` [N, 2].
    """
    width, height = (length + 2 * side for length in size)  # with a margin for squares that cross the border
    inside = ((corner > -side) & (corner < np.array(size))).all(axis=1) & np.isfinite(depth)
    points = np.flatnonzero(inside)
    points = points[np.argsort(-depth[points], kind="stable")].astype(np.int32)
    column, row = np.floor(corner[points]).astype(np.int32).T + side
    square = np.arange(side, dtype=np.int32)
    pixels = (row * width + column)[:, None] + (square[:, None] * width + square).ravel()
    # Points are sorted from far to near: of several in one pixel the last assignment, the nearest, remains.
    front = np.full(height * width, -1, dtype=np.int32)
    front[pixels.ravel()] = np.repeat(points, side**2)
    return front.reshape(height, width)[side:-side, side:-side]


def _painted(
    front: NDArray[np.integer], rgb: NDArray[np.uint8], depth: NDArray[np.floating], extent: float
) -> NDArray[np.float32]:
    """Return the picture [H, W, 3] of the points in `front` [H, W], -1 where there is none, with `shade_edges`."""
    hit = front >= 0
    picture = np.full((*front.shape, 3), BACKGROUND, dtype=np.float32)
    picture[hit] = rgb[front[hit]]
    nearest = np.full(front.shape, np.inf)
    nearest[hit] = depth[front[hit]]
    picture *= shade_edges(nearest, extent)[..., None]
    return picture


def _in_bytes(picture: NDArray[Any]) -> NDArray[np.uint8]:
    rounded: NDArray[np.uint8] = np.rint(picture.clip(0, 255)).astype(np.uint8)
    return rounded


def shade_edges(nearest: NDArray[np.float64], extent: float) -> NDArray[np.float32]:
    """Return a shading factor per pixel [H, W] that decreases where neighbours are much nearer.

    `nearest` is the depth, infinite where there is no point; `extent` is the height of the view in the same unit.

    Source: Boucheny (2009), "Visualisation scientifique de grands volumes de donnees", eye-dome lighting.
    """
    known = np.isfinite(nearest)
    depth = np.where(known, nearest, 0.0) / (0.05 * extent)
    darkness = np.zeros(nearest.shape)
    for x, y in _NEIGHBOURS:
        neighbour, counts = np.roll(depth, (y, x), (0, 1)), np.roll(known, (y, x), (0, 1)) & known
        darkness += np.where(counts, (depth - neighbour).clip(0, 1), 0.0) / len(_NEIGHBOURS)
    return np.exp(-_SHADING * darkness).astype(np.float32)


_PANEL = (760, 620)
_HEADING = 40
_MARGIN = 16
_BORDER_PX = 46
_MAX_POINTS = 600_000
_FRUSTUM_SIZE = 0.075


def cloud_views(
    cloud: PointCloud, cameras: CaptureCameras, time_index: int, up: NDArray[np.float64], notice: str = ""
) -> NDArray[np.uint8]:
    """Draw the cloud from behind and above the first camera and from its side, each with a scale bar.

    Both views have the same scale and are orthographic, so the scale bars hold at every depth. The unit vector `up`
    [3] is upwards in both. Returns the picture [H, W, 3] in RGB.
    """
    world_to_camera = to_numpy(cameras.world_to_camera[time_index])
    if cloud.num_points > _MAX_POINTS:
        cloud = cloud[random_subset(cloud.num_points, _MAX_POINTS, 0)]
    main = bulk(cloud.xyz)
    extent = float(np.linalg.norm(np.ptp(np.concatenate([main, centers_of(world_to_camera)]), axis=0))) or 1.0
    frusta = _frusta(cameras, time_index, _FRUSTUM_SIZE * extent)
    shown = np.concatenate([main, *frusta.values()])
    first, time = fitted_text(drawable(cameras.view_names[0]), 17, 300), float(cameras.times[time_index])
    titles = (f"from behind and above {first}", f"from the side of {first}")
    picture, pen = blank(3 * _MARGIN + 2 * _PANEL[0], _HEADING + _PANEL[1] + _MARGIN)
    fitted = [Orthographic.fitted(axes, shown, _PANEL, _BORDER_PX) for axes in _view_axes(world_to_camera, up)]
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


def _view_axes(
    world_to_camera: NDArray[np.float64], up: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the axes of both views: along the first camera from 30 degrees above, and across from 12 above."""
    down, forward = world_to_camera[:, 1, :3], world_to_camera[:, 2, :3]
    ahead = forward[0] - (forward[0] @ up) * up
    if np.linalg.norm(ahead) < 0.1:  # the first camera faces straight down or up
        ahead = (down[0] @ up) * up - down[0]
    ahead = ahead / np.linalg.norm(ahead)
    across = np.cross(up, ahead)

    def from_above(direction: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
        angle = math.radians(degrees)
        return looking_along(math.cos(angle) * direction - math.sin(angle) * up, up)

    return from_above(ahead, 30), from_above(across, 12)


def _frusta(cameras: CaptureCameras, time_index: int, depth: float) -> dict[str, NDArray[np.float64]]:
    """Return the frustum of every view: the camera centre and the corners of the image at about `depth`, [5, 3]."""
    frusta = {}
    for view, name in enumerate(cameras.view_names):
        height, width = cameras.image_sizes[view]
        inverse = np.linalg.inv(to_numpy(cameras.intrinsics[time_index, view]))
        corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], dtype=np.float64)
        rays = corners @ inverse.T
        rays = rays * (depth / max(float(np.abs(rays).max()), 1e-9))
        pose = to_numpy(cameras.world_to_camera[time_index, view])
        in_camera = np.concatenate([np.zeros((1, 3)), rays])
        frusta[name] = (in_camera - pose[:3, 3]) @ pose[:3, :3]
    return frusta


def _panel(
    cloud: PointCloud, frusta: dict[str, NDArray[np.float64]], camera: Orthographic, scale: Scale
) -> Image.Image:
    drawn = Image.fromarray(splat(camera, cloud.xyz, cloud.rgb, radius_px=1 if cloud.num_points > 60_000 else 2))
    # Lines are drawn over the enlarged points before both are reduced.
    enlarged = drawn.resize((drawn.width * SUPERSAMPLING, drawn.height * SUPERSAMPLING), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(enlarged)
    for index, corners in enumerate(frusta.values()):
        _draw_frustum(pen, camera.to_canvas(corners)[:, :2] * SUPERSAMPLING, index)
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


def _draw_names(pen: ImageDraw.ImageDraw, frusta: dict[str, NDArray[np.float64]], camera: Orthographic) -> None:
    """Write each view's name below its camera, further down where it would overlap another name."""
    taken: list[tuple[float, float, float, float]] = []
    for index, (view, frustum) in enumerate(frusta.items()):
        name = fitted_text(drawable(view), 14, 160)
        width, height = text_size(name, 14)
        corners = camera.to_canvas(frustum)
        x = float(np.clip(corners[:, 0].mean() - width / 2, 4, _PANEL[0] - width - 4))
        y = float(np.clip(corners[:, 1].max() + 4, 4, _PANEL[1] - height - 8))
        while any(
            x < right and x + width > left and y < bottom and y + height > top for left, top, right, bottom in taken
        ):
            y += 4
        taken.append((x - 4, y - 4, x + width + 4, y + height + 6))
        pen.text((x, y), name, fill=view_color(index), font=font(14), stroke_width=3, stroke_fill=BACKGROUND)


FPS = 15
NUM_FRAMES = 5 * FPS
SIZE = (640, 480)
"""Width and height in pixels."""

_MAX_ORBIT_POINTS = 150_000
_SWING_DEG = 32.0
_ELEVATION_DEG = 16.0
_ELEVATION_SWING_DEG = 6.0
_SLOPE = math.tan(math.radians(40.0 / 2))
"""Tangent of half the vertical field of view."""

_FOCAL_PX = SIZE[1] / 2 / _SLOPE
_SHOWN = (0.04, 0.96)
"""Quantiles of the points in each direction that are in the picture; farther ones may leave it."""

_NEAR_SHARE = 0.05
_POINT_PX = 3


@dataclass(frozen=True, kw_only=True)
class Viewpoint:
    """Perspective camera that faces `target` from `position`; `axes` are its right, down and forward directions."""

    position: NDArray[np.float64]
    target: NDArray[np.float64]
    axes: NDArray[np.float64]

    @property
    def distance(self) -> float:
        """Distance of the target."""
        return float(np.linalg.norm(self.target - self.position))

    def project(self, points: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return x and y in pixels and the depth, [N, 3]; depth is infinite for points that are too near."""
        local = (points - self.position.astype(np.float32)) @ self.axes.T.astype(np.float32)
        depth = np.where(local[:, 2] > _NEAR_SHARE * self.distance, local[:, 2], np.inf)
        x, y = (local[:, axis] / depth * _FOCAL_PX + SIZE[axis] / 2 for axis in (0, 1))
        return np.stack([x, y, depth], axis=1)


def orbit_video(output: Output, notice: str = "") -> bytes:
    """Render the clouds of an output into a video of 5 s (H.264 in MP4), with the notice as a banner.

    A capture of up to 5 s plays in real time and repeats; a longer one plays faster, in full.
    """
    buffer = io.BytesIO()
    with iio.imopen(buffer, "w", plugin="pyav", extension=".mp4") as video:
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        video.init_video_stream(codec, fps=FPS, pixel_format="yuv420p")
        for frame in _frames(output, notice):
            video.write_frame(frame)
    return buffer.getvalue()


def _frames(output: Output, notice: str) -> Iterator[NDArray[np.uint8]]:
    times = np.array(output.run.times)
    instants = shown_instants(times)
    viewpoints = _viewpoints(output, instants)
    blank = with_banner(Image.new("RGB", SIZE), notice)
    banner = np.asarray(blank)[: blank.height - SIZE[1]]
    shown, cloud = -1, None
    for index, viewpoint in zip(instants, viewpoints, strict=True):
        if cloud is None or index != shown:
            shown, cloud = index, output.points(index)
            if cloud.num_points > _MAX_ORBIT_POINTS:
                cloud = cloud[random_subset(cloud.num_points, _MAX_ORBIT_POINTS, 0)]
        picture = Image.fromarray(draw(viewpoint, cloud))
        label = f"t = {times[index]:.3f} s"
        ImageDraw.Draw(picture).text((SIZE[0] - 12, SIZE[1] - 14), label, fill=FAINT, font=font(14), anchor="rm")
        frame = np.concatenate([banner, np.asarray(picture)])
        yield frame[len(frame) % 2 :]  # video encoders need even sizes


def shown_instants(times: NDArray[np.float64]) -> list[int]:
    """Return the instant that each frame of the video shows."""
    if len(times) == 1:
        return [0] * NUM_FRAMES
    period = float(np.diff(times).mean())
    speed = max(1.0, len(times) * period * FPS / NUM_FRAMES)
    elapsed = np.arange(NUM_FRAMES) / FPS * speed
    # The tolerance keeps rounding from showing an instant twice when both rates are equal.
    return [int(index) % len(times) for index in elapsed / period + 1e-6]


def _viewpoints(output: Output, instants: list[int]) -> list[Viewpoint]:
    """Swing once from side to side about the mean viewing direction of the cameras."""
    first, last = output.points(instants[0]), output.points(max(instants))
    points = np.concatenate([bulk(first.xyz), bulk(last.xyz)])
    poses = to_numpy(output.cameras.world_to_camera[instants[0]])
    up = upward_of(output).vector
    target = np.median(points, axis=0) if len(points) else np.zeros(3)
    away = target - centers_of(poses).mean(axis=0)
    away = away - (away @ up) * up
    if np.linalg.norm(away) < 1e-6:  # ahead of the camera or, if it is vertical there, down in its picture
        away = max((axis - (axis @ up) * up for axis in poses[0, 2:0:-1, :3]), key=lambda axis: float(axis @ axis))
    away = away / np.linalg.norm(away)
    across = np.cross(away, up)
    directions = np.stack([across, up, away])
    # The median is where points are dense, near the cameras: the middle of the picture is that of their extent.
    low, high = np.quantile((points - target) @ directions.T, _SHOWN, axis=0) if len(points) else np.zeros((2, 3))
    moving = np.concatenate([bulk(cloud.xyz[cloud.dynamic != 0]) for cloud in (first, last)])
    if len(moving):  # few points, as of a person at the edge of a room, but what the video is about
        ends = np.quantile((moving - target) @ directions.T, _SHOWN, axis=0)
        low, high = np.minimum(low, ends[0]), np.maximum(high, ends[1])
    target = target + (low + high) / 2 @ directions
    width, height, depth = (high - low) / 2
    swing = math.radians(_SWING_DEG)
    width = max(width, width * math.cos(swing) + depth * math.sin(swing))
    distance = (depth + max(width * SIZE[1] / SIZE[0], height) / _SLOPE) or 1.0
    found = []
    for phase in np.linspace(0, 2 * math.pi, len(instants), endpoint=False):
        azimuth = math.radians(_SWING_DEG) * math.sin(phase)
        elevation = math.radians(_ELEVATION_DEG + _ELEVATION_SWING_DEG * math.cos(phase))
        level = math.cos(azimuth) * away - math.sin(azimuth) * across
        direction = math.cos(elevation) * level - math.sin(elevation) * up
        found.append(
            Viewpoint(position=target - distance * direction, target=target, axes=looking_along(direction, up))
        )
    return found


def draw(viewpoint: Viewpoint, cloud: PointCloud) -> NDArray[np.uint8]:
    """Draw a cloud as squares of 3 pixels, nearer points in front, with darkened depth discontinuities: [H, W, 3]."""
    projected = viewpoint.project(cloud.xyz)
    front = _nearest_points(projected[:, :2] - (_POINT_PX - 1) / 2, projected[:, 2], SIZE, _POINT_PX)
    extent = viewpoint.distance / _FOCAL_PX * SIZE[1]
    return _in_bytes(_painted(front, cloud.rgb, projected[:, 2], extent))
