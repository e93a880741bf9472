"""Corners of a calibration board in pictures: found by OpenCV, with their errors and motion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from threading import Lock

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.conventions import PIXEL_CENTER
from page4d.errors import Progress
from page4d.rig.board import MIN_CORNERS, Board, Pattern, Picture
from page4d.rig.records import Array, Indices, Lens
from page4d.scene.content import gray_of
from page4d.scene.records import FrameSource
from page4d.signals import in_threads

_CLEAR = 200
"""Corners by which a variant of a board must lead, from when the others are not tried any more."""

_BEND, _LEAST_PX = 0.05, 3.0
"""Distance of a corner from a plane in sizes of the board in the picture, and in pixels, at which it is wrong: the
bend of a strong distortion is allowed."""

_EDGE_PX = 7
"""Half of the window in which the sharpness of a corner is measured."""

_REACH_PX, _BAND_PX, _LEAST_BAND_PX = 10, 4.0, 0.8
"""Radius of the window from which a corner is refined, and half of the width of the bands along its edges."""

_CLEAR_PX, _ENDS_PX = 2.0, 3.0
"""Distance of these bands from a marker, and of their ends from the next corner."""

_NEAR_PX = 3.0
"""Distance of other edges at which the error of a corner grows; nearer ones displace that of a marker."""

_MAX_STEPS, _SETTLED_PX = 10, 0.01
"""Steps of the refinement, and change at which it ends; a corner that changes five times as much then is none."""

_MIN_ROUNDNESS = 0.02
"""Determinant of the structure tensor per squared trace, below which there is no corner; 0.25 is the most."""

_RADIANCE = (np.linspace(0, 1, 256) ** 2.2).astype(np.float32)
"""Radiance of a pixel value. Source: IEC 61966-2-1 (sRGB), approximated."""

_MAX_THREADS = 4

_MAX_STEP_S = 0.3
"""Time between two pictures within which the velocity of the board is measured."""

CELLS = 8
"""Cells across the picture by which the coverage is counted."""


@dataclass(frozen=True, kw_only=True)
class Corners:
    """Corners of a board in a picture: numbers and pixels, and the steepest slope per contrast in 1/px.

    `sigma` is the relative standard deviation of the pixels, `growth` how they move where markers are a pixel smaller
    on each side.
    """

    numbers: Int[Indices, " n"]
    pixels: Float[Array, "n 2"]
    sharpness: float = 1.0
    sigma: Float[Array, " n"] | float = 1.0
    growth: Float[Array, "n 2"] | float = 0.0


Footage = tuple[FrameSource, Sequence[int]]
"""A video and the increasing indices of its frames that are searched."""


def find_boards(
    board: Board, footage: Sequence[Footage], progress: Progress
) -> tuple[Board, list[list[Corners | None]]]:
    """Return the corners of a board in frames of some videos, and the board as it is printed.

    Whether it is inverted or of the legacy pattern follows from the pictures.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    search, total = _Search(board), sum(len(frames) for _, frames in footage)
    found = in_threads(search.run, footage, progress, total, _MAX_THREADS)
    best = search.best
    return best, [[frame.get(best) for frame in frames] for frames in found]


class _Search:
    """Tries all variants of a board until one of them is found much more often than the others."""

    def __init__(self, board: Board) -> None:
        is_plain = board.pattern is Pattern.CHESSBOARD
        has_legacy = board.pattern is Pattern.CHARUCO and board.rows % 2 == 0
        variants = product((False,) if is_plain else (False, True), (False, True) if has_legacy else (False,))
        self._counts = {replace(board, is_inverted=inverted, is_legacy=legacy): 0 for inverted, legacy in variants}
        self._lock = Lock()

    @property
    def best(self) -> Board:
        """The variant with the most corners."""
        return max(self._counts, key=lambda board: self._counts[board])

    def run(self, footage: Footage, step: Callable[[], None]) -> list[dict[Board, Corners]]:
        """Return the corners in each frame by variant."""
        source, frames = footage
        finders = {board: board.finder() for board in self._counts}
        found: list[dict[Board, Corners]] = []
        with source.open() as reader:
            for image in reader.read(frames):
                picture = gray_of(image)
                found.append({})
                for board in self._wanted():
                    corners = _checked(board, picture, *finders[board](picture))
                    if corners is not None:
                        found[-1][board] = corners
                with self._lock:
                    for board, corners in found[-1].items():
                        self._counts[board] += len(corners.numbers)
                step()
        return found

    def _wanted(self) -> list[Board]:
        with self._lock:
            ranked = sorted(self._counts.items(), key=lambda item: -item[1])
        is_clear = len(ranked) < 2 or ranked[0][1] > _CLEAR + 5 * ranked[1][1]
        return [ranked[0][0]] if is_clear else [board for board, _ in ranked]


def _checked(board: Board, picture: Picture, numbers: Indices, pixels: Array) -> Corners | None:
    """Return corners that fit a plane and span it; None if they are too few."""
    if len(numbers) < MIN_CORNERS:
        return None
    points = board.points[numbers][:, :2]
    extent = float(np.linalg.norm(np.ptp(pixels, axis=0)))
    plane, inside = cv2.findHomography(points, pixels, cv2.RANSAC, max(_LEAST_PX, _BEND * extent))
    if plane is None:
        return None
    kept = inside.ravel() > 0
    numbers, pixels, points = numbers[kept], pixels[kept], points[kept]
    bands = _Bands.of(board, numbers, np.asarray(plane, np.float64))
    pixels, kept = _refined(bands, picture, pixels)
    numbers, pixels, points, sigma = numbers[kept], pixels[kept], points[kept], bands.sigma[kept]
    if len(numbers) < MIN_CORNERS or np.linalg.svd(points - points.mean(0))[1][1] < board.side / 2:
        return None
    sharpness = _sharpness(picture, pixels)
    return Corners(numbers=numbers, pixels=pixels, sharpness=sharpness, sigma=sigma, growth=bands.growth[kept])


@dataclass(frozen=True)
class _Bands:
    """Two bands along the edges of each of n corners, within which its window is; lengths in pixels."""

    across: Float[NDArray[np.float32], "n 2 2"]
    """Unit vectors across the edges, as columns; away from the corner along the other one."""

    half_width: Float[Array, "n 1 2"]
    begin: Float[Array, "n 1 2"]
    end: Float[Array, "n 1 2"]
    sigma: Float[Array, " n"]
    growth: Float[Array, "n 2"]

    @classmethod
    def of(cls, board: Board, numbers: Indices, plane: Float[Array, "3 3"]) -> "_Bands":
        """Return the bands of corners of a board in a picture, to which a homography maps it."""
        points, steps = board.points[numbers, :2], board.side / 2 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
        moved = cv2.perspectiveTransform((points[:, None] + steps).reshape(1, -1, 2), plane).reshape(-1, 2, 2, 2)
        to_board = np.linalg.pinv(np.swapaxes(moved[:, :, 0] - moved[:, :, 1], 1, 2) / board.side)
        side = board.side / np.linalg.norm(to_board, axis=2, keepdims=True)  # in pixels across the edges
        across = (to_board * side / board.side * board.inward[numbers, :, None]).astype(np.float32)
        width = np.clip(side * board.clear / board.side - _CLEAR_PX, _LEAST_BAND_PX, _BAND_PX).swapaxes(1, 2)
        end = np.maximum(side - _ENDS_PX, 2).swapaxes(1, 2)
        is_grid = board.pattern is Pattern.ARUCO
        begin = np.minimum(_ENDS_PX, end / 2) if is_grid else -end
        clear = side.min((1, 2)) * board.clear / board.side
        sigma = np.hypot(1, (_NEAR_PX / clear) ** (4 if is_grid else 1))
        growth = np.linalg.solve(across, np.full((len(across), 2, 1), float(is_grid)))[..., 0]
        return cls(across.swapaxes(1, 2), width, begin, end, sigma, growth)

    def weights(self, offset: Float[Array, "n p 2"]) -> Float[Array, "n p"]:
        """Return the weights of pixels at offsets from the corners."""
        distance = offset @ self.across
        within = np.clip(self.half_width - np.abs(distance) + 0.5, 0, 1)
        along = np.clip(self.end - distance + 0.5, 0, 1) * np.clip(distance - self.begin + 0.5, 0, 1)
        weight = np.maximum(within[..., 0] * along[..., 1], within[..., 1] * along[..., 0])
        return np.asarray(weight * np.clip((_REACH_PX - np.linalg.norm(offset, axis=-1)) / 2, 0, 1))


def _refined(
    bands: _Bands, picture: Picture, pixels: Float[Array, "n 2"]
) -> tuple[Float[Array, "n 2"], Bool[NDArray[np.bool_], " n"]]:
    """Move corners to where their edges meet, and return which of them are corners.

    The window is two bands along the edges, as wide as the board leaves clear in this picture: a square window of a
    tilted board reaches other edges, which displace corners by up to pixels. Bands of a marker end before its corner,
    which blur rounds off. In radiance, unlike in pixel values, blur does not move edges.

    Source: Förstner & Gülch, "A fast operator for detection and precise location of distinct points, corners and
    centres of circular features", 1987.
    """
    radiance = cv2.LUT(picture, _RADIANCE)
    slope_x, slope_y = (cv2.Scharr(radiance, cv2.CV_32F, *order) for order in ((1, 0), (0, 1)))
    y, x = (grid.ravel() - _REACH_PX for grid in np.indices((2 * _REACH_PX + 1,) * 2))
    last = np.array(picture.shape[::-1]) - 1
    center, change = pixels - PIXEL_CENTER, np.zeros_like(pixels)
    is_corner = np.ones(len(pixels), bool)
    for _ in range(_MAX_STEPS):
        nearest = np.clip(np.rint(center), 0, last).astype(int)
        column, row = nearest[:, :1] + x, nearest[:, 1:] + y
        is_inside = (column >= 0) & (column <= last[0]) & (row >= 0) & (row <= last[1])
        column, row = np.clip(column, 0, last[0]), np.clip(row, 0, last[1])
        offset = np.stack([x, y], -1) - (center - nearest)[:, None].astype(np.float32)
        slope = np.stack([slope_x[row, column], slope_y[row, column]], -1)
        weighted = (slope * (bands.weights(offset) * is_inside)[..., None]).swapaxes(1, 2)
        matrix, right = weighted @ slope, weighted @ (slope * offset).sum(-1, keepdims=True)
        is_corner = np.linalg.det(matrix) > _MIN_ROUNDNESS * np.trace(matrix, axis1=1, axis2=2) ** 2
        change[:] = 0
        change[is_corner] = np.clip(np.linalg.solve(matrix[is_corner], right[is_corner])[..., 0], -2, 2)
        center = center + change
        if np.abs(change).max() < _SETTLED_PX:
            break
    is_corner &= np.abs(change).max(1) < 5 * _SETTLED_PX
    center = center + PIXEL_CENTER
    return center, is_corner & (np.linalg.norm(center - pixels, axis=1) < _BAND_PX)


def _sharpness(picture: Picture, pixels: Float[Array, "n 2"]) -> float:
    """Return the median over corners of the steepest slope in a window, divided by its contrast."""
    found = []
    for x, y in np.floor(pixels[:: max(1, len(pixels) // 12)]).astype(int):
        window = picture[max(y - _EDGE_PX, 0) : y + _EDGE_PX + 1, max(x - _EDGE_PX, 0) : x + _EDGE_PX + 1]
        if min(window.shape) > 3:
            down, across = np.gradient(window.astype(np.float32))
            found.append(np.hypot(down, across).max() / max(float(np.ptp(window)), 1.0))
    return float(np.median(found)) if found else 0.0


@dataclass(frozen=True, kw_only=True)
class Sighting(Corners):
    """A board in a picture of a view; its sharpness is 1 for the sharpest edges.

    `pose` numbers the poses of the board: views see the same one at an instant, `later` seconds after the picture.
    `velocity` and `acceleration` are those of the corners in px/s and px/s^2, 0 if they are not known.
    """

    view: int
    pose: int
    later: float = 0.0
    velocity: Float[Array, "n 2"] | float = 0.0
    acceleration: Float[Array, "n 2"] | float = 0.0


def sightings_of(
    view: int,
    found: Sequence[Corners | None],
    times: Float[Array, " T"],
    first: int,
    later: Float[Array, " T"],
) -> list[Sighting]:
    """Return the sightings of one video, with velocities where a picture just before or after shows the board.

    `times` are those of the pictures, also of repeated ones; the instants of their poses, numbered from `first`, are
    `later`.
    """
    best = max((corners.sharpness for corners in found if corners is not None), default=1.0) or 1.0
    sightings = []
    for place, corners in enumerate(found):
        if corners is None:
            continue
        moves, steps = [], []
        for other in (np.searchsorted(times, times[place]) - 1, np.searchsorted(times, times[place], "right")):
            after = found[other] if 0 <= other < len(found) else None
            step = float(times[other] - times[place]) if after is not None else 0.0
            if after is not None and 0 < abs(step) <= _MAX_STEP_S:
                _, mine, theirs = np.intersect1d(corners.numbers, after.numbers, return_indices=True)
                if len(mine) >= 4:
                    plane, _ = cv2.findHomography(corners.pixels[mine], after.pixels[theirs])
                    if plane is not None:
                        moved = cv2.perspectiveTransform(corners.pixels[None], plane)[0]
                        moves.append((moved - corners.pixels) / step)
                        steps.append(abs(step))
        sightings.append(
            Sighting(
                **vars(replace(corners, sharpness=corners.sharpness / best)),
                view=view,
                pose=first + place,
                velocity=np.average(moves, axis=0, weights=steps[::-1]) if moves else 0.0,
                acceleration=2 * (moves[1] - moves[0]) / sum(steps) if len(moves) > 1 else 0.0,
                later=float(later[place]),
            )
        )
    return sightings


def spread(board: Board, sightings: Sequence[Sighting], count: int, size: tuple[int, int]) -> list[Sighting]:
    """Choose sightings that differ in place, distance and tilt of the board, sharp ones first.

    Each next one is farthest from those chosen, in the pixels of the board's four corners, times its sharpness.
    """
    if len(sightings) <= count:
        return list(sightings)
    corners = []
    for one in sightings:
        plane, _ = cv2.findHomography(board.points[one.numbers][:, :2], one.pixels, 0)
        outline = (
            np.full((4, 2), np.nan) if plane is None else cv2.perspectiveTransform(board.outline[None], plane)[0]
        )
        corners.append(np.clip(outline.ravel() / max(size), -2, 3))
    feature = np.nan_to_num(np.array(corners), nan=-2.0)
    sharpness = np.array([one.sharpness for one in sightings])
    chosen = [int(np.argmax(sharpness))]
    distance = np.linalg.norm(feature - feature[chosen[0]], axis=1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(distance * sharpness)))
        distance = np.minimum(distance, np.linalg.norm(feature - feature[chosen[-1]], axis=1))
    return [sightings[index] for index in sorted(chosen)]


def coverage(sightings: Sequence[Sighting], size: tuple[int, int]) -> float:
    """Return the share of the cells of a picture in which there are corners."""
    if not sightings:
        return 0.0
    rows = max(round(CELLS * size[0] / size[1]), 1)
    pixels = np.concatenate([one.pixels for one in sightings])
    cells = np.clip(pixels / np.array(size[::-1]) * [CELLS, rows], 0, [CELLS - 1e-6, rows - 1e-6]).astype(int)
    return float(len(np.unique(cells, axis=0)) / (CELLS * rows))


def sheared(pixels: Float[Array, "n 2"], lens: Lens, share: float) -> Float[Array, "n 2"]:
    """Return pixels with a share of the skew of their lens added; -1 takes it away."""
    slope = share * lens.intrinsics[0, 1] / lens.intrinsics[1, 1]
    return np.column_stack([pixels[:, 0] + slope * (pixels[:, 1] - lens.intrinsics[1, 2]), pixels[:, 1]])


def without_skew(sighting: Sighting, lens: Lens) -> Sighting:
    """Return a sighting whose pixels and motion are without the skew of their lens."""
    pixels = sheared(sighting.pixels, lens, -1)
    changes = (sighting.velocity, sighting.acceleration)
    velocity, acceleration = (sheared(sighting.pixels + change, lens, -1) - pixels for change in changes)
    return replace(sighting, pixels=pixels, velocity=velocity, acceleration=acceleration)
