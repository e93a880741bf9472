"""Calibration boards: their description, and their corners in the pictures of a scene, found by OpenCV."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError, Page4DError, UsageError, listed, shortened
from page4d.formats.camera_model import METRES
from page4d.formats.files import read_document
from page4d.rig.records import Array, Indices

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
