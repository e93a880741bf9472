"""Calibration boards: their description, and their corners in the pictures of a scene, found by OpenCV."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError, Page4DError, Progress, UsageError, listed, shortened
from page4d.formats.camera_model import METRES
from page4d.formats.files import read_document
from page4d.rig.records import Array, Indices
from page4d.scene.content import gray_of
from page4d.scene.records import FrameSource
from page4d.signals import in_threads

_METRES = METRES | {"in": 0.0254, "inch": 0.0254}
"""Metres per unit of a board."""

MIN_CORNERS = 6
"""Corners of a board in a picture, in two or more rows and columns, from which the picture is used."""

_FORM = (
    "give a file, or charuco:7x5,30mm,22mm,4x4_50 (squares, side of a square and of a marker, dictionary), "
    "chessboard:9x6,25mm (inner corners, side), or aruco:5x7,40mm,10mm,4x4_50 (markers, side, gap, dictionary)"
)
_LENGTH = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)")
_MAX_SIDE, _MIN_METRES, _MAX_METRES = 100, 1e-4, 10.0
_UNEQUAL = 0.001
"""Relative difference of the sides of squares beyond which they are no squares."""

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

Picture = NDArray[np.uint8]


class Pattern(StrEnum):
    """Pattern of a board."""

    CHARUCO = "charuco"
    """Squares with markers in the white ones; its corners are those between squares."""

    CHESSBOARD = "chessboard"
    """Squares; it is described by its inner corners."""

    ARUCO = "aruco"
    """A grid of markers, of AprilTag too."""


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board of `columns` x `rows` squares, inner corners or markers.

    `side` is that of a square, or of a marker of a grid of markers, in metres; `marker` that of a marker in a square,
    or the gap between markers. Legacy boards have a marker in their first square although their number of rows is
    even; inverted ones are printed white on black.

    Source: OpenCV documentation, `aruco::CharucoBoard::setLegacyPattern`.
    """

    pattern: Pattern
    columns: int
    rows: int
    side: float
    marker: float = 0.0
    dictionary: str = ""
    is_legacy: bool = False
    is_inverted: bool = False

    def __post_init__(self) -> None:
        least = {Pattern.CHARUCO: 3, Pattern.CHESSBOARD: 3, Pattern.ARUCO: 1}[self.pattern]
        if not (least <= min(self.columns, self.rows) and max(self.columns, self.rows) <= _MAX_SIDE):
            raise UsageError(
                f"⟨board⟩: {self.columns}x{self.rows} {self.pattern}", f"use {least} to {_MAX_SIDE} a side"
            )
        lengths = (self.side,) if self.pattern is Pattern.CHESSBOARD else (self.side, self.marker)
        if not all(_MIN_METRES <= length <= _MAX_METRES for length in lengths):
            raise UsageError(
                f"⟨board⟩: a length of {max(lengths) if max(lengths) > _MAX_METRES else min(lengths):g} m",
                f"use {_MIN_METRES * 1000:g} mm to {_MAX_METRES:g} m",
            )
        if self.pattern is Pattern.CHARUCO and self.marker >= self.side:
            raise UsageError(
                f"⟨board⟩: markers of {self.marker:g} m in squares of {self.side:g} m",
                "give the side of a square first",
            )
        if self.pattern is not Pattern.CHESSBOARD:
            known = cv2.aruco.getPredefinedDictionary(_dictionary(self.dictionary)).bytesList.shape[0]
            needed = self.columns * self.rows // (2 if self.pattern is Pattern.CHARUCO else 1)
            if needed > known:
                raise UsageError(
                    f"⟨board⟩: {needed} markers, but the dictionary {self.dictionary} has {known}",
                    "use a larger dictionary",
                )

    @cached_property
    def points(self) -> Float[Array, "K 3"]:
        """Corners on the board in metres, in the order of their numbers; those of a marker follow each other."""
        if self.pattern is Pattern.ARUCO:
            return np.concatenate([np.asarray(points, np.float64) for points in self._layout().getObjPoints()])
        if self.pattern is Pattern.CHARUCO:
            return np.asarray(self._layout().getChessboardCorners(), np.float64)
        y, x = np.mgrid[: self.rows, : self.columns]
        return np.stack([x, y, 0 * x], -1).reshape(-1, 3) * self.side

    @cached_property
    def outline(self) -> Float[Array, "4 2"]:
        """The four corners of the rectangle that contains the points."""
        (left, top, _), (right, bottom, _) = self.points.min(0), self.points.max(0)
        return np.array([[left, top], [right, top], [right, bottom], [left, bottom]])

    @cached_property
    def turns(self) -> tuple[Int[Indices, " K"], ...]:
        """Renumberings of the corners that show the same board, the identity first.

        A chessboard has others: a half turn if both sides have an even or an odd number of corners, quarter turns if
        they are equal and even.
        """
        numbers = np.arange(len(self.points))
        if self.pattern is not Pattern.CHESSBOARD or (self.columns + self.rows) % 2:
            return (numbers,)
        grid = numbers.reshape(self.rows, self.columns)
        step = 1 if self.columns == self.rows and self.rows % 2 == 0 else 2
        return tuple(np.rot90(grid, turn).ravel() for turn in range(0, 4, step))

    @cached_property
    def inward(self) -> Float[Array, "K 2"]:
        """Directions along the edges of every corner: of a marker into its sides, else 1."""
        if self.pattern is not Pattern.ARUCO:
            return np.ones((len(self.points), 2))
        corners = self.points[:, :2].reshape(-1, 4, 2)
        return np.asarray(np.sign(corners.mean(1, keepdims=True) - corners)).reshape(-1, 2)

    @property
    def clear(self) -> float:
        """Distance in metres to which no other edges are near the edges of a corner."""
        if self.pattern is Pattern.CHESSBOARD:
            return self.side
        if self.pattern is Pattern.CHARUCO:
            return (self.side - self.marker) / 2
        words = cv2.aruco.getPredefinedDictionary(_dictionary(self.dictionary))
        return min(self.marker, self.side / (words.markerSize + 2))  # of the border, one bit wide

    def __str__(self) -> str:
        """Describe the board as the option does."""
        lengths = [f"{round(1000 * length, 6):g}mm" for length in (self.side, self.marker) if length]
        return ",".join(
            [f"{self.pattern}:{self.columns}x{self.rows}", *lengths, *([self.dictionary] if self.dictionary else [])]
        )

    def picture(self, side_px: int) -> Picture:
        """Draw the board as it is printed, `side_px` pixels per side, with a margin of one side."""
        if self.pattern is Pattern.CHESSBOARD:
            inner = (np.indices((self.rows + 1, self.columns + 1)).sum(0) % 2 * 255).astype(np.uint8)
            inner = inner.repeat(side_px, 0).repeat(side_px, 1)
        else:
            gap = self.marker / self.side if self.pattern is Pattern.ARUCO else 0.0
            width, height = (round((n + (n - 1) * gap) * side_px) for n in (self.columns, self.rows))
            inner = np.asarray(self._layout().generateImage((width, height)), np.uint8)
        drawn = np.pad(inner, side_px, constant_values=255)
        return 255 - drawn if self.is_inverted else drawn

    def _layout(self) -> Any:
        words = cv2.aruco.getPredefinedDictionary(_dictionary(self.dictionary))
        if self.pattern is Pattern.ARUCO:
            return cv2.aruco.GridBoard((self.columns, self.rows), self.side, self.marker, words)
        layout = cv2.aruco.CharucoBoard((self.columns, self.rows), self.side, self.marker, words)
        layout.setLegacyPattern(self.is_legacy)
        return layout

    def finder(self) -> Callable[[Picture], tuple[Indices, Array]]:
        """Return a function that finds the numbers [n] and pixels [n, 2] of the corners in a grey picture."""
        detector = self._detector()

        def run(picture: Picture) -> tuple[Indices, Array]:
            shown = 255 - picture if self.is_inverted else picture
            numbers, pixels = self._found(detector, shown)
            if len(numbers) < MIN_CORNERS and self.pattern is not Pattern.CHESSBOARD:
                # The back of a board that is printed on both sides, or shines through, is its mirror image.
                behind, mirrored = self._found(detector, np.ascontiguousarray(shown[:, ::-1]))
                if len(behind) >= MIN_CORNERS:
                    numbers, pixels = behind, np.array([shown.shape[1] - 1, 0]) + mirrored * [-1, 1]
            return numbers, pixels + PIXEL_CENTER  # OpenCV counts pixel centres from 0

        return run

    def _detector(self) -> Any:
        if self.pattern is Pattern.CHARUCO:
            by_layout = cv2.aruco.CharucoParameters()
            by_layout.tryRefineMarkers = True
            return cv2.aruco.CharucoDetector(self._layout(), by_layout)
        if self.pattern is Pattern.CHESSBOARD:
            return None
        settings = cv2.aruco.DetectorParameters()
        settings.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
        return cv2.aruco.ArucoDetector(cv2.aruco.getPredefinedDictionary(_dictionary(self.dictionary)), settings)

    def _found(self, detector: Any, picture: Picture) -> tuple[Indices, Array]:
        numbers: Any
        count = self.columns * self.rows
        if self.pattern is Pattern.CHARUCO:
            pixels, numbers, _, _ = detector.detectBoard(picture)
        elif self.pattern is Pattern.ARUCO:
            quads, markers, _ = detector.detectMarkers(picture)
            pairs = zip(() if markers is None else np.ravel(markers), quads, strict=True)
            kept = [(4 * number + np.arange(4), np.reshape(quad, (4, 2))) for number, quad in pairs if number < count]
            numbers, pixels = zip(*kept, strict=True) if kept else (None, None)
        else:
            size = (self.columns, self.rows)
            is_found, corners = cv2.findChessboardCornersSB(picture, size, None, cv2.CALIB_CB_NORMALIZE_IMAGE)
            numbers = np.arange(count) if is_found else None
            pixels = self._first_corner_first(picture, np.asarray(corners)) if is_found else None
        if numbers is None:
            return np.zeros(0, np.int64), np.zeros((0, 2))
        return np.asarray(numbers, np.int64).ravel(), np.asarray(pixels, np.float64).reshape(-1, 2)

    def _first_corner_first(self, picture: Picture, corners: NDArray[np.float32]) -> Array:
        """Order the corners of a chessboard: not mirrored, and with a dark square after the first corner."""
        grid = corners.reshape(self.rows, self.columns, 2)
        across, down = grid[0, -1] - grid[0, 0], grid[-1, 0] - grid[0, 0]
        if across[0] * down[1] - across[1] * down[0] < 0:
            grid = grid[:, ::-1]
        squares = (grid[:-1, :-1] + grid[1:, :-1] + grid[:-1, 1:] + grid[1:, 1:]) / 4
        x, y = np.clip(np.rint(squares), 0, np.array(picture.shape[::-1]) - 1).astype(int).reshape(-1, 2).T
        odd = np.indices(squares.shape[:2]).sum(0).ravel() % 2 == 1
        if picture[y[~odd], x[~odd]].mean() > picture[y[odd], x[odd]].mean():
            # A half turn exchanges the colours where one side is even, a quarter turn where both are equal and odd.
            grid = np.rot90(grid) if self.columns == self.rows else grid[::-1, ::-1]
        return np.asarray(grid.reshape(-1, 2), np.float64)


def _dictionary(name: str) -> int:
    known = {
        key.removeprefix("DICT_").upper(): value for key, value in vars(cv2.aruco).items() if key.startswith("DICT_")
    }
    word = re.sub(r"^(CV2\.|ARUCO\.|CV::|ARUCO::)*(DICT_)?", "", name.strip().upper())
    word = {f"{bits}": f"APRILTAG_{bits}" for bits in ("16H5", "25H9", "36H10", "36H11")}.get(word, word)
    word = re.sub(r"^(TAG)(\d)", r"APRILTAG_\2", word)
    if word not in known:
        raise UsageError(
            f"⟨board⟩: there is no dictionary '{shortened(name)}'", "such as 4x4_50, 5x5_100, apriltag_36h11"
        )
    return int(known[word])


def board_of(text: str, folder: Path | None = None) -> Board:
    """Return the board of a description such as "charuco:7x5,30mm,22mm,4x4_50", or of a file.

    Raises:
        UsageError: if the description is empty, naming boards in the folder, or no board has these numbers.
        InputError: if the file cannot be read, or describes no board.
    """
    if not text.strip():
        found = [f"⟨board={shlex.quote(str(file))}⟩" for file in _board_files(folder)]
        raise UsageError("no ⟨board⟩ is given", f"give {' or '.join(found)}, which describes one" if found else _FORM)
    kind, colon, rest = text.strip().partition(":")
    names = {"april": Pattern.ARUCO, "apriltag": Pattern.ARUCO, "checkerboard": Pattern.CHESSBOARD}
    pattern = names.get(kind.lower(), kind.lower())
    if not colon or pattern not in list(Pattern):
        path = Path(text)
        if path.suffix or path.exists():
            return read_board(path)
        raise UsageError(f"⟨board='{shortened(text)}'⟩ is not a board", _FORM)
    parts = [part.strip() for part in rest.split(",")]
    size = re.fullmatch(r"(\d{1,4})\s*[x×]\s*(\d{1,4})", parts[0].lower())
    if size is None or len(parts) != (2 if pattern == Pattern.CHESSBOARD else 4):
        raise UsageError(f"⟨board='{shortened(text)}'⟩ is not a board", _FORM)
    lengths = [_metres(part) for part in parts[1:3]]
    return Board(
        pattern=Pattern(pattern),
        columns=int(size[1]),
        rows=int(size[2]),
        side=lengths[0],
        marker=lengths[1] if len(lengths) > 1 else 0.0,
        dictionary=parts[3] if len(parts) > 3 else "",
    )


def _board_files(folder: Path | None) -> Iterator[Path]:
    """Yield the files of a folder that describe a board."""
    for file in sorted(folder.iterdir()) if folder is not None and folder.is_dir() else ():
        if file.suffix.lower() in (".toml", ".yaml", ".yml", ".json"):
            with suppress(Page4DError):
                read_board(file)
                yield file


def _metres(text: str) -> float:
    match = _LENGTH.fullmatch(text.lower())
    if match is None or match[2] not in _METRES:
        raise UsageError(
            f"⟨board⟩: '{shortened(text)}' is not a length", f"give a number with a unit: {', '.join(_METRES)}"
        )
    return float(match[1]) * _METRES[match[2]]


_SPELLINGS = {
    "pattern": ("calibratepattern", "boardtype", "targettype", "pattern"),
    "columns": ("columns", "cols", "squaresx", "boardsizewidth", "targetcols", "boardx"),
    "rows": ("rows", "squaresy", "boardsizeheight", "targetrows", "boardy"),
    "side": (
        "squaresize",
        "squarelength",
        "boardsquaresidelength",
        "intrinsicssquaresize",
        "colspacingmeters",
        "rowspacingmeters",
    ),
    "marker": ("markersize", "markerlength", "boardmarkerlength"),
    "gap": ("markerseparation", "boardmarkerseparationlength"),
    "dictionary": ("dictionary", "arucodictname", "arucodict", "arucodictionary"),
    "bits": ("boardmarkerbits", "markerbits"),
    "words": ("boardmarkerdictnumber", "dictsize"),
}
"""Keys in files, without case and underscores: of Caliscope, OpenCV, Anipose, sleap-anipose, Pose2Sim and Kalibr."""


def read_board(path: Path) -> Board:
    """Read a board from a file of Caliscope, OpenCV's calibration sample, Anipose, Pose2Sim or Kalibr.

    Lengths without a unit are millimetres from 1 on, else metres.

    Raises:
        InputError: if the file cannot be read, or describes no board, or one whose squares have unequal sides.
        UsageError: if no board has these numbers.

    Source: Caliscope, `core/charuco.py`; OpenCV, `samples/cpp/tutorial_code/calib3d`; documentation of Anipose.
    """
    keys = dict(_leaves(read_document(path)))
    found = {name: keys[key] for name, spelt in _SPELLINGS.items() for key in spelt if key in keys}
    for pair in ("boardsize", "intrinsicscornersnb"):
        if isinstance(size := keys.get(pair), list) and len(size) == 2:
            found |= {"columns": size[0], "rows": size[1]}
    if "bits" in found:
        found.setdefault("dictionary", "{bits}x{bits}_{words}".format(**{"words": 50} | found))
    try:
        sides = [float(keys[key]) for key in _SPELLINGS["side"] if key in keys]
        if sides and max(sides) - min(sides) > _UNEQUAL * max(sides):
            raise InputError(
                f"'{path.name}': sides of a square of {' and '.join(f'{side:g}' for side in sides)}",
                "its squares must have equal sides",
            )
        if "arucoscale" in keys:
            found["side"] = _caliscope_side(keys)
            found["marker"] = found["side"] * float(keys["arucoscale"])
            found = {name: value if name not in ("side", "marker") else 1000 * value for name, value in found.items()}
        stated = found.get("pattern", "charuco" if "dictionary" in found else "chessboard")
        kind = re.sub(r"[^a-z]", "", str(stated).lower())
        words = {"charuco": "charuco", "chess": "chessboard", "check": "chessboard", "aruco": "aruco"}
        pattern = Pattern(next(words[word] for word in words if kind.startswith(word)))
        lengths = {name: float(found[name]) for name in ("side", "marker", "gap") if name in found}
        unit = METRES["mm"] if max(lengths.values()) >= 1 else METRES["m"]
        lengths = {name: length * unit for name, length in lengths.items()}
        is_grid = pattern is Pattern.ARUCO
        return Board(
            pattern=pattern,
            columns=int(found["columns"]),
            rows=int(found["rows"]),
            side=lengths["marker" if is_grid else "side"],
            marker=0.0 if pattern is Pattern.CHESSBOARD else lengths["gap" if is_grid else "marker"],
            dictionary="" if pattern is Pattern.CHESSBOARD else str(found["dictionary"]),
        )
    except (KeyError, ValueError, TypeError, StopIteration):
        raise InputError(f"'{path.name}' describes no board: its keys are {listed(keys, 8)}", _FORM) from None


def _caliscope_side(keys: Mapping[str, Any]) -> float:
    """Return the side of a square in metres: stated, or such that the squares fill the paper."""
    stated = keys.get("squaresizeoverridecm")
    if isinstance(stated, int | float) and stated > 0:
        return float(stated) * METRES["cm"]
    sides = (keys["boardheight"] / keys["rows"], keys["boardwidth"] / keys["columns"])
    return float(min(sides)) * _METRES[str(keys["units"])]


def _leaves(content: object) -> Iterator[tuple[str, Any]]:
    """Yield the values of a document that are not tables, by their keys without case and underscores."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield re.sub(r"[^a-z]", "", str(key).lower()), value


@dataclass(frozen=True, kw_only=True)
class Corners:
    """Corners of a board in a picture: numbers and pixels, and the steepest slope per contrast in 1/px.

    `sigma` is the relative standard deviation of the pixels, `growth` how they move where markers are a pixel smaller
    on each side, None where they do not.
    """

    numbers: Int[Indices, " n"]
    pixels: Float[Array, "n 2"]
    sharpness: float = 1.0
    sigma: Float[Array, " n"] | float = 1.0
    growth: Float[Array, "n 2"] | None = None


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
    growth = None if bands.growth is None else bands.growth[kept]
    if len(numbers) < MIN_CORNERS or np.linalg.svd(points - points.mean(0))[1][1] < board.side / 2:
        return None
    sharpness = _sharpness(picture, pixels)
    return Corners(numbers=numbers, pixels=pixels, sharpness=sharpness, sigma=sigma, growth=growth)


@dataclass(frozen=True)
class _Bands:
    """Two bands along the edges of each of n corners, within which its window is; lengths in pixels."""

    across: Float[NDArray[np.float32], "n 2 2"]
    """Unit vectors across the edges, as columns; away from the corner along the other one."""

    half_width: Float[Array, "n 1 2"]
    begin: Float[Array, "n 1 2"]
    end: Float[Array, "n 1 2"]
    sigma: Float[Array, " n"]
    growth: Float[Array, "n 2"] | None

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
        growth = np.linalg.solve(across, np.ones((len(across), 2, 1)))[..., 0] if is_grid else None
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
