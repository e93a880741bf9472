"""Pictures without content: dead borders, frames that show nothing, and frames that repeat the previous one.

All is measured in small gray copies, once per frame that is decoded. Downstream, pixels without content are invalid
pixels, as those that masks exclude.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, UInt8
from numpy.typing import NDArray

from page4d.errors import listed
from page4d.geometry.pixels import Size, Window
from page4d.scene.image_file import Image, in_8_bits

Picture = UInt8[NDArray[np.uint8], "H W"]
Area = Bool[NDArray[np.bool_], "h w"]

COPY_SIDE = 128
"""Long side of the copies in which every frame is judged."""

_MAX_SPREAD = 3.0
"""Gray levels between the darkest and the brightest parts of a frame without contrast. A scene at 4 % of its light,
in 8 bits, has 4."""

_TAIL = 0.5
"""Percent of the pixels that are left out at either end: noise that averaging leaves."""

_BLACK, _WHITE = 40, 235
"""Medians of frames without contrast up to which they are black, and from which they are overexposed."""

_SATURATED = 250
_MIN_SATURATED, _MAX_USUAL_SATURATED = 0.6, 0.2
"""Share of saturated pixels of an overexposed frame, and the largest usual one of its view."""

_FINE_SIGMA = 1.0
MAX_BLURRED = 0.06
_BLURRED_SHARE = 0.25
"""Share of contrast in fine detail of a frame out of focus, and its ratio to that of sharp ones. Sharp frames of real
captures have 0.13 to 0.3, and 0.06 where they are blurred by 1 % of their long side (standard deviation)."""

_MAX_REPEATED, _MAX_NOISE, _MIN_MOTION = 2.0, 0.03, 8.0
"""Gray levels: largest change of a small part of a repeated frame, and mean change of its pixels; smallest change of
a part in which something moves. Frames that an encoder was given again change by at most 0.02 (H.264; more at key
frames and in motion JPEG), still parts of 13 real videos at 128 px by at least 0.045."""

_CONTRAST = 40
"""Range of levels per level of change of a repeated frame: in fog or at night, motion changes levels by 3."""

_BORDER_LEVELS = 6
"""Gray levels from a border's own that compression and noise make in the mean of pictures."""

_UNEVEN, _SPREADS = 0.05, (1.25, _MAX_SPREAD)
"""Deviation from its level within a border, as a share of that of the content, and its bounds: dark parts of a scene
at 12 % of its light have 1.7 of 16 levels, bars with noise of 3 levels 0.9."""

_RINGING = 0.15
"""Deviation, as a share of that of the content, which lossy compression spreads over the edge of a border."""

_MIN_CONTENT, _MIN_BORDER = 0.2, 0.01
"""Smallest shares of the picture that are content, and border."""

_DARK = 40
"""Highest level of bars on one side alone, which half of the content is brighter than; other borders, which sky and
walls may be, need all corners."""

_MIN_STRAIGHT = 0.98
"""Share of its bounding box that content between bars fills."""

_MAX_CAPTIONS = 0.1
"""Largest share of a border that logos and captions fill."""

_MIN_EXTENT = 0.95
"""Share of either side of the content that most pictures fill by themselves: single pictures of people who walk
before an even backdrop fill 0.25 to 0.9 of the area in which they walk."""

_MIN_TIGHT = 0.6
"""Share of a border's inner edge at which there is content: at most 0.4 along dark parts of real scenes."""


class Fault(StrEnum):
    """Why a frame is no evidence. Frames that are `REPEATED` have depth, but no motion; others no valid pixel."""

    BLACK = "black"
    WHITE = "overexposed"
    FLAT = "without contrast"
    BLURRED = "out of focus"
    REPEATED = "repeated"


FAULTS = tuple(Fault)
"""The code of a fault is its place here, from 1 on; 0 is a frame without one."""


@dataclass(frozen=True, kw_only=True)
class ViewContent:
    """What pictures of a view usually show: the `area` that carries a picture, None if all of it does.

    `detail` is the share of contrast in fine detail, at least that of the other views; `saturated` the share of
    saturated pixels; `changes` whether most consecutive pictures differ.
    """

    area: Area | None = None
    detail: float = 0.0
    saturated: float = 0.0
    changes: bool = False

    @property
    def share(self) -> float:
        """Share of the picture that the area fills."""
        return 1.0 if self.area is None else round(float(self.area.mean()), 4)

    @property
    def between_bars(self) -> Area | None:
        """The area if straight bars leave it; None for an image circle and for all of the picture."""
        return self.area if self.area is not None and _is_straight(self.area) else None


class SmallCopy(NamedTuple):
    """Small copies of a frame: averaged, without noise, and sampled, with it."""

    mean: Picture
    points: Picture


def _is_straight(area: Area) -> bool:
    """Return whether an area ends at whole rows or columns without content, and is a rectangle."""
    *_, width, height = cv2.boundingRect(area.astype(np.uint8))
    return bool(_MIN_STRAIGHT * width * height < area.sum() and width * height < area.size)


def bounds(area: NDArray[Any], size: Size) -> Window:
    """Return the whole pixels of the rows and columns of an area [h, w], in images of (height, width)."""
    left, top, width, height = cv2.boundingRect(area.astype(np.uint8))
    y, x = size[0] / area.shape[0], size[1] / area.shape[1]
    first, after = (math.ceil(top * y), math.ceil(left * x)), (int((top + height) * y), int((left + width) * x))
    return Window(*first, max(after[0] - first[0], 1), max(after[1] - first[1], 1))


def content_texts(
    shares: Mapping[str, float],
    boxes: Mapping[str, tuple[int, int, int, int] | None],
    faults: Iterable[tuple[str, Fault, Sequence[int]]],
    num_times: int,
) -> tuple[str, ...]:
    """Return a sentence on dead borders, by the share of content of views, and on each kind of faults of frames.

    `boxes` (left, top, width, height) are what bars leave of pictures, faults those of some instants of a view.
    """
    parts = {name: box and "; the picture is {2}x{3} px at {0}, {1}".format(*box) for name, box in boxes.items()}
    bordered = [f"{name} ({1 - share:.0%}{parts[name] or ''})" for name, share in shares.items() if share < 1]
    text = "borders without a picture, such as bars, have no depth"
    found: dict[Fault, dict[str, list[int]]] = {}
    for name, fault, instants in faults:
        found.setdefault(fault, {}).setdefault(name, []).extend(instants)
    texts = (fault_text(fault, views, num_times) for fault, views in found.items())
    return (*([f"{text}: {listed(bordered)}"] if bordered else []), *texts)


def fault_text(fault: Fault, views: Mapping[str, Sequence[int]], num_times: int) -> str:
    """Return a sentence on the frames of some views with a fault, by their instants."""
    named = listed([f"{name} ({_spans(instants, num_times)})" for name, instants in views.items()])
    if fault is Fault.REPEATED:
        text = "pictures repeat the one before while other views show motion: their velocities are unknown"
    else:
        text = f"pictures are {fault.value}: they have no depth, and nothing is concluded from them"
    return f"{text}: {named}"


def _spans(instants: Sequence[int], num_times: int) -> str:
    """Return instants as "all instants" or as "instants 2 to 4, 7"."""
    if len(instants) == num_times:
        return "all instants"
    breaks = [place for place in range(1, len(instants)) if instants[place] != instants[place - 1] + 1]
    runs = [instants[begin:end] for begin, end in pairwise([0, *breaks, len(instants)])]
    spans = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{'instant' if len(instants) == 1 else 'instants'} {listed(spans)}"


def small_copy(pixels: Image) -> SmallCopy:
    """Return the copies of a frame in which it is judged."""
    scale = min(COPY_SIDE / max(pixels.shape[:2]), 1.0)
    size = (max(round(pixels.shape[1] * scale), 1), max(round(pixels.shape[0] * scale), 1))
    kinds = (cv2.INTER_AREA, cv2.INTER_NEAREST)
    return SmallCopy(*(gray_of(np.asarray(cv2.resize(pixels, size, interpolation=kind))) for kind in kinds))


def gray_of(pixels: Image) -> Picture:
    """Return the luma of RGB or gray pixels in 8 bits."""
    shallow = in_8_bits(pixels)
    return np.asarray(shallow if shallow.ndim == 2 else cv2.cvtColor(shallow, cv2.COLOR_RGB2GRAY))


def scaled_area(area: Area, size: tuple[int, int]) -> Area:
    """Return the area at another size (height, width)."""
    return np.asarray(cv2.resize(area.astype(np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST) > 0)


def fault_of(picture: Picture, usual: ViewContent) -> Fault | None:
    """Return why a small averaged picture of a view shows nothing, None if it shows something."""
    inside = np.ones(picture.shape, bool) if usual.area is None else scaled_area(usual.area, _size(picture))
    smooth = cv2.blur(picture.astype(np.float32), (5, 5))[inside]
    low, middle, high = np.percentile(smooth, (_TAIL, 50, 100 - _TAIL)) if len(smooth) else (0.0, 0.0, 0.0)
    if high - low <= _MAX_SPREAD:
        return Fault.BLACK if middle <= _BLACK else Fault.WHITE if middle >= _WHITE else Fault.FLAT
    if usual.saturated <= _MAX_USUAL_SATURATED and _saturated(picture[inside]) >= _MIN_SATURATED:
        return Fault.WHITE
    blurred = min(MAX_BLURRED, _BLURRED_SHARE * usual.detail)
    return Fault.BLURRED if blurred > 0 and _detail(picture, inside) < blurred else None


def _size(picture: Picture) -> tuple[int, int]:
    return picture.shape[0], picture.shape[1]


def _saturated(values: NDArray[np.uint8]) -> float:
    return float((values >= _SATURATED).mean())


def _detail(picture: Picture, inside: NDArray[np.bool_]) -> float:
    """Return the share of a picture's contrast in its finest details, away from the edge of a border."""
    values = picture.astype(np.float32)
    fine = values - cv2.GaussianBlur(values, (0, 0), _FINE_SIGMA)
    away = cv2.erode(inside.astype(np.uint8), np.ones((7, 7), np.uint8), borderValue=1) > 0
    chosen = away if away.any() else inside
    return float(fine[chosen].std() / max(float(values[chosen].std()), 1e-3))


def frame_faults(
    copies: Sequence[SmallCopy], before: Sequence[SmallCopy] | None, usual: Sequence[ViewContent]
) -> list[Fault | None]:
    """Return the faults of the frames of all views at one instant; `before` are those of the instant before.

    A frame that does not change is a repeated one only if other views, at least as many as do not change, show motion
    before a static camera: still scenes repeat in all views, and a static camera may film one next to a moving
    camera. If the view usually changes, motion of any kind in the others suffices.
    """
    faults = [fault_of(copy.mean, content) for copy, content in zip(copies, usual, strict=True)]
    if before is None:
        return faults
    changes = [change_between(*pair) for pair in zip(before, copies, strict=True)]
    shown = [change for change, fault in zip(changes, faults, strict=True) if fault is None]
    repeated, moving = (sum(getattr(change, name) for change in shown) for name in ("repeats", "moves"))
    is_seen = repeated <= sum(change.is_local for change in shown)
    return [
        Fault.REPEATED
        if fault is None and change.repeats and (is_seen or (content.changes and repeated <= moving))
        else fault
        for change, fault, content in zip(changes, faults, usual, strict=True)
    ]


class Change(NamedTuple):
    """Whether a frame repeats another one, whether anything moves between them, and only in a part of the picture."""

    repeats: bool
    moves: bool
    is_local: bool


def change_between(first: SmallCopy, second: SmallCopy) -> Change:
    """Compare two frames of a view."""
    parts = cv2.blur(cv2.absdiff(first.mean, second.mean), (3, 3))
    limit = min(max(float(np.ptp(first.mean)) / _CONTRAST, 1.0), _MAX_REPEATED)
    noise = float(cv2.absdiff(first.points, second.points).mean())
    moves = bool(parts.max() >= _MIN_MOTION)
    repeats = bool(parts.max() <= limit) and noise <= _MAX_NOISE
    return Change(repeats, moves, moves and bool(np.median(parts) <= _MAX_REPEATED))


def picture_area(pictures: Sequence[Picture]) -> Area | None:
    """Return where pictures [H, W] of one view, at least one, carry a picture, None if everywhere.

    A border has one level in all pictures, and ends at the convex outline of the content: bars, the surroundings of
    an image circle, a vignette mask. Dark or bright parts of a scene are less even, or have no such outline, or only
    all pictures together have it.
    """
    stack = np.stack(pictures)
    ends = (slice(0, 3), slice(-3, None))
    for level in sorted({int(np.median(stack[:, rows, columns])) for rows in ends for columns in ends}):
        apart = np.abs(stack.astype(np.int16) - level)
        mean = apart.mean(axis=0)
        limit = max(_BORDER_LEVELS, _RINGING * float(np.percentile(mean, 90)))
        area = _framed(mean <= limit)
        if area is None or not _is_even(stack.mean(axis=0), ~area) or not _is_filled(area, apart > limit):
            continue
        num_corners = 4 - int(area[[0, 0, -1, -1], [0, -1, 0, -1]].sum())
        darkest = min(_DARK, float(np.median(stack[:, area])))
        if num_corners == 4 or (num_corners >= 2 and level <= darkest and _is_straight(area)):
            return area
    return None


def _is_filled(area: Area, live: Bool[NDArray[np.bool_], "N H W"]) -> bool:
    """Return whether the live pixels of most single pictures reach from side to side of an area."""
    boxes = [cv2.boundingRect(cv2.medianBlur((one & area).astype(np.uint8), 3)) for one in live]
    sides = cv2.boundingRect(area.astype(np.uint8))[2:]
    return bool((np.median(boxes, axis=0)[2:] >= _MIN_EXTENT * np.array(sides)).all())


def _is_even(picture: NDArray[np.float64], border: NDArray[np.bool_]) -> bool:
    """Return whether the mean of pictures has one level in a border, away from the content and without captions."""
    away = cv2.erode(border.astype(np.uint8), np.ones((9, 9), np.uint8), borderValue=1) > 0
    values = cv2.blur(picture, (3, 3))[away if away.any() else border]
    level = np.median(values)
    spread = _UNEVEN * float(np.percentile(np.abs(picture[~border] - level), 90))
    return bool((np.abs(values - level) <= np.clip(spread, *_SPREADS)).mean() >= 1 - _MAX_CAPTIONS)


def _framed(dead: NDArray[np.bool_]) -> Area | None:
    """Return the convex area of content that a border of dead pixels frames, without its mixed edge."""
    live = cv2.morphologyEx((~dead).astype(np.uint8), cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(live)
    if count < 2:
        return None
    main = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
    outline, _ = cv2.findContours((labels == main).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.asarray(cv2.fillConvexPoly(np.zeros_like(live), cv2.convexHull(np.concatenate(outline)), (1,)))
    outside = filled == 0
    if filled.mean() < _MIN_CONTENT or outside.mean() < _MIN_BORDER or (~dead[outside]).mean() > _MAX_CAPTIONS:
        return None
    inner = np.asarray(cv2.erode(filled, np.ones((3, 3), np.uint8), borderValue=1)) > 0
    edge = (filled > 0) & ~inner
    near = cv2.dilate((~dead).astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    return inner if edge.any() and near[edge].mean() >= _MIN_TIGHT else None


def usual_content(pictures: Sequence[Picture], copies: Sequence[SmallCopy]) -> ViewContent:
    """Return the usual content of the pictures of a view that show something."""
    shown = [place for place, copy in enumerate(copies) if fault_of(copy.mean, ViewContent(saturated=1.0)) is None]
    if not shown:
        return ViewContent()
    area = picture_area([pictures[place] for place in shown])
    means = [copies[place].mean for place in shown]
    inside = np.ones(means[0].shape, bool) if area is None else scaled_area(area, _size(means[0]))
    return ViewContent(
        area=area,
        detail=float(np.median([_detail(mean, inside) for mean in means])),
        saturated=float(np.median([_saturated(mean[inside]) for mean in means])),
        changes=2 * sum(change_between(*pair).moves for pair in pairwise(copies)) > len(copies),
    )
