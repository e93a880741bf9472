"""Video of the 4D point cloud: it plays while the viewpoint swings around it."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass

import av
import imageio.v3 as iio
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.formats.maps import to_numpy
from page4d.formats.ply import PointCloud
from page4d.output.points import random_subset
from page4d.output.preview.splat import bulk, centers_of, looking_along, shade_edges, upward_axis
from page4d.output.reader import Output
from page4d.plotting.canvas import BACKGROUND, FAINT, font, with_banner

FPS = 15
NUM_FRAMES = 5 * FPS
SIZE = (640, 480)
"""Width and height in pixels."""

_MAX_POINTS = 150_000
_SWING_DEG = 32.0
_ELEVATION_DEG = 16.0
_ELEVATION_SWING_DEG = 6.0
_FIELD_OF_VIEW_DEG = 40.0
_NEAR_SHARE = 0.05
_POINT_PX = 3


@dataclass(frozen=True, kw_only=True)
class Viewpoint:
    """Perspective camera that faces `target` from `position`; `axes` are its right, down and forward directions."""

    position: NDArray[np.float64]
    target: NDArray[np.float64]
    axes: NDArray[np.float64]

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return SIZE[1] / 2 / math.tan(math.radians(_FIELD_OF_VIEW_DEG / 2))

    @property
    def distance(self) -> float:
        """Distance of the target."""
        return float(np.linalg.norm(self.target - self.position))

    def project(self, points: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return x and y in pixels and the depth, [N, 3]; depth is infinite for points that are too near."""
        local = (points - self.position.astype(np.float32)) @ self.axes.T.astype(np.float32)
        depth = np.where(local[:, 2] > _NEAR_SHARE * self.distance, local[:, 2], np.inf)
        x, y = (local[:, axis] / depth * self.focal + SIZE[axis] / 2 for axis in (0, 1))
        return np.stack([x, y, depth], axis=1)


def orbit_video(output: Output, notice: str = "") -> bytes:
    """Render the clouds of an output into a video of 5 s (H.264 in MP4), with the notice as a banner.

    A capture of up to 5 s plays in real time and repeats; a longer one plays faster, in full.
    """
    buffer = io.BytesIO()
    with iio.imopen(buffer, "w", plugin="pyav", extension=".mp4") as video:
        video.init_video_stream(_codec(), fps=FPS, pixel_format="yuv420p")
        for frame in _frames(output, notice):
            video.write_frame(frame)
    return buffer.getvalue()


def _codec() -> str:
    return "libx264" if "libx264" in av.codecs_available else "mpeg4"


def _frames(output: Output, notice: str) -> Iterator[NDArray[np.uint8]]:
    times = np.array(output.run.times)
    instants = shown_instants(times)
    viewpoints = _viewpoints(output, instants)
    blank = with_banner(Image.new("RGB", SIZE), notice)
    banner = np.asarray(blank)[: blank.height - SIZE[1]]
    shown, cloud = -1, None
    for index, viewpoint in zip(instants, viewpoints, strict=True):
        if cloud is None or index != shown:
            shown, cloud = index, _reduced(output.points(index))
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
    up = upward_axis(poses)
    target = np.median(points, axis=0) if len(points) else np.zeros(3)
    away = target - centers_of(poses).mean(axis=0)
    away = away - (away @ up) * up
    if np.linalg.norm(away) < 1e-6:
        away = poses[0, 2, :3] - (poses[0, 2, :3] @ up) * up
    away = away / np.linalg.norm(away)
    across = np.cross(up, away)
    reach = float(np.quantile(np.linalg.norm(points - target, axis=1), 0.85)) if len(points) else 1.0
    distance = reach / math.sin(math.radians(_FIELD_OF_VIEW_DEG / 2))
    found = []
    for phase in np.linspace(0, 2 * math.pi, len(instants), endpoint=False):
        azimuth = math.radians(_SWING_DEG) * math.sin(phase)
        elevation = math.radians(_ELEVATION_DEG + _ELEVATION_SWING_DEG * math.cos(phase))
        level = math.cos(azimuth) * away + math.sin(azimuth) * across
        direction = math.cos(elevation) * level - math.sin(elevation) * up
        found.append(
            Viewpoint(position=target - distance * direction, target=target, axes=looking_along(direction, up))
        )
    return found


def _reduced(cloud: PointCloud) -> PointCloud:
    if cloud.num_points <= _MAX_POINTS:
        return cloud
    return cloud[random_subset(cloud.num_points, _MAX_POINTS, 0)]


def draw(viewpoint: Viewpoint, cloud: PointCloud) -> NDArray[np.uint8]:
    """Draw a cloud as squares of 3 pixels, nearer points in front, with darkened depth discontinuities: [H, W, 3]."""
    width, height = SIZE
    projected = viewpoint.project(cloud.xyz)
    corner = projected[:, :2] - (_POINT_PX - 1) / 2
    inside = ((corner >= 0) & (corner < np.array(SIZE) - _POINT_PX + 1)).all(axis=1) & np.isfinite(projected[:, 2])
    points = np.flatnonzero(inside)
    points = points[np.argsort(-projected[points, 2], kind="stable")].astype(np.int32)
    column, row = corner[points].astype(np.int32).T
    side = np.arange(_POINT_PX, dtype=np.int32)
    pixels = (row * width + column)[:, None] + (side[:, None] * width + side).ravel()
    # Points are sorted from far to near: of several in one pixel the last assignment, the nearest, remains.
    front = np.full(height * width, -1, dtype=np.int32)
    front[pixels.ravel()] = np.repeat(points, _POINT_PX**2)
    hit = front >= 0
    picture = np.empty((height * width, 3), dtype=np.float32)
    picture[:] = BACKGROUND
    picture[hit] = cloud.rgb[front[hit]]
    nearest = np.full(height * width, np.inf)
    nearest[hit] = projected[front[hit], 2]
    shading = shade_edges(nearest.reshape(height, width), viewpoint.distance / viewpoint.focal * height)
    shaded = picture.reshape(height, width, 3) * shading[..., None]
    rounded: NDArray[np.uint8] = np.rint(shaded.clip(0, 255)).astype(np.uint8)
    return rounded
