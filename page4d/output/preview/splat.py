"""Orthographic point splatting with hidden-point removal, in numpy."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from page4d.plotting.canvas import BACKGROUND

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


def upward_axis(world_to_camera: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean upward axis of cameras [N, 4, 4], or the first one's if they cancel out."""
    up = -world_to_camera[:, 1, :3].mean(axis=0)
    if np.linalg.norm(up) < 0.1:  # as of cameras around a common viewing axis
        up = -world_to_camera[0, 1, :3]
    unit: NDArray[np.float64] = up / np.linalg.norm(up)
    return unit


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


def enlarged_splat(
    camera: Orthographic, points: NDArray[np.floating], rgb: NDArray[np.uint8], radius_px: int
) -> Image.Image:
    """Draw points on a canvas `SUPERSAMPLING` times enlarged, for lines to be drawn over it before it is reduced."""
    width, height = camera.size
    picture = Image.fromarray(splat(camera, points, rgb, radius_px))
    return picture.resize((width * SUPERSAMPLING, height * SUPERSAMPLING), Image.Resampling.LANCZOS)


def splat(
    camera: Orthographic, points: NDArray[np.floating], rgb: NDArray[np.uint8], radius_px: int
) -> NDArray[np.uint8]:
    """Draw points as squares of `2 * radius_px + 1` supersampled pixels; nearer points occlude farther ones.

    Depth discontinuities are darkened, which separates shapes of equal colour.
    """
    width, height = (side * SUPERSAMPLING for side in camera.size)
    projected = camera.to_canvas(points)
    column, row = (np.floor(projected[:, axis] * SUPERSAMPLING).astype(np.int64) for axis in (0, 1))
    order = np.argsort(-projected[:, 2], kind="stable")
    column, row, depth, color = column[order], row[order], projected[order, 2], rgb[order]
    # Points are sorted from far to near: of several in one pixel the last assignment, the nearest, remains.
    front = np.full((height, width), -1, dtype=np.int64)
    for x, y in _square(radius_px):
        inside = np.flatnonzero((column + x >= 0) & (column + x < width) & (row + y >= 0) & (row + y < height))
        layer = np.full((height, width), -1, dtype=np.int64)
        layer[row[inside] + y, column[inside] + x] = inside
        np.maximum(front, layer, out=front)
    hit = front >= 0
    picture = np.empty((height, width, 3), dtype=np.float32)
    picture[:] = BACKGROUND
    picture[hit] = color[front[hit]]
    nearest = np.full((height, width), np.inf)
    nearest[hit] = depth[front[hit]]
    picture *= shade_edges(nearest, min(camera.size) / camera.pixels_per_unit)[..., None]
    small = cv2.resize(picture, camera.size, interpolation=cv2.INTER_AREA)
    rounded: NDArray[np.uint8] = np.rint(small.clip(0, 255)).astype(np.uint8)
    return rounded


def _square(radius: int) -> list[tuple[int, int]]:
    side = range(-radius, radius + 1)
    return [(x, y) for y in side for x in side]


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
