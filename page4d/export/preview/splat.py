"""Orthographic drawing of coloured points with hidden points removed, in numpy."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.plotting.canvas import BACKGROUND

_SHADING = 1.2
_NEIGHBOURS = ((1, 0), (-1, 0), (0, 1), (0, -1))


@dataclass(frozen=True, kw_only=True)
class Orthographic:
    """A camera at infinity: `axes` are its rows right, down and forward in the world.

    `center` (a world point) lies in the middle of a canvas of `size` (width, height) pixels, `pixels_per_unit` large.
    """

    axes: NDArray[np.float64]
    center: NDArray[np.float64]
    size: tuple[int, int]
    pixels_per_unit: float

    def to_canvas(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return x and y in pixels and the depth in units, [N, 3]."""
        seen = (points.astype(np.float64) - self.center) @ self.axes.T
        middle = np.array([self.size[0] / 2, self.size[1] / 2, 0.0])
        on_canvas: NDArray[np.float64] = seen * np.array([self.pixels_per_unit, self.pixels_per_unit, 1.0]) + middle
        return on_canvas


def looking_along(direction: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows right, down and forward of a camera that looks along `direction` with `up` upwards."""
    forward = direction / np.linalg.norm(direction)
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def splat(
    camera: Orthographic, points: NDArray[np.floating], rgb: NDArray[np.uint8], radius_px: int, supersampling: int
) -> NDArray[np.uint8]:
    """Draw points as squares of `2 * radius_px + 1` fine pixels; nearer ones hide farther ones.

    Edges between depths are darkened a little, so that shapes of one colour can be told apart.
    """
    width, height = (side * supersampling for side in camera.size)
    seen = camera.to_canvas(points)
    column, row = (np.floor(seen[:, axis] * supersampling).astype(np.int64) for axis in (0, 1))
    order = np.argsort(-seen[:, 2], kind="stable")
    column, row, depth, color = column[order], row[order], seen[order, 2], rgb[order]
    # From far to near the rank grows: of several points in one pixel the last assignment, the nearest, stays.
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
    picture *= _edge_shading(nearest, camera)[..., None]
    small = cv2.resize(picture, camera.size, interpolation=cv2.INTER_AREA)
    rounded: NDArray[np.uint8] = np.rint(small.clip(0, 255)).astype(np.uint8)
    return rounded


def _square(radius: int) -> list[tuple[int, int]]:
    side = range(-radius, radius + 1)
    return [(x, y) for y in side for x in side]


def _edge_shading(nearest: NDArray[np.float64], camera: Orthographic) -> NDArray[np.float32]:
    """Return a factor per pixel that falls where neighbours are much nearer.

    Source: Boucheny (2009), "Visualisation scientifique de grands volumes de donnees", eye-dome lighting.
    """
    known = np.isfinite(nearest)
    extent = min(camera.size) / camera.pixels_per_unit
    depth = np.where(known, nearest, 0.0) / (0.05 * extent)
    darkness = np.zeros(nearest.shape)
    for x, y in _NEIGHBOURS:
        neighbour, counts = np.roll(depth, (y, x), (0, 1)), np.roll(known, (y, x), (0, 1)) & known
        darkness += np.where(counts, (depth - neighbour).clip(0, 1), 0.0) / len(_NEIGHBOURS)
    return np.exp(-_SHADING * darkness).astype(np.float32)
