"""Static or moving, for each view, from a few pictures spread over the capture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.rig.frame_motion import (
    GONE_SHARE,
    MIN_CORNERS,
    Comparison,
    Picture,
    compare_pictures,
    compare_together,
    find_corners,
    normalize_contrast,
)
from page4d.scene.records import FrameSource, Image, Notice, Scene, View
from page4d.scene.video import VideoSource

LONG_SIDE = 256
"""Long side of the compared pictures: noise of cameras and of compression is averaged."""

NUM_PICTURES = 12
"""Pictures of a view."""

MAX_OTHERS = 0.1
"""Share of pictures of a static camera that may disagree: a hand that stops the recording, a passing vehicle."""

MAX_DECODED = 1500
"""Frames decoded for a view: 20 s of a 4K video on two cores. Videos that can be sought need far fewer; of others,
the beginning is measured."""

_MIN_GROUP = 2
"""Other pictures of a camera at rest in one place, from which it was moved to another."""

_SEEKABLE = (".mp4", ".mov", ".m4v", ".3gp", ".mkv", ".webm")
"""Suffixes of containers in which page4d seeks."""

_BAR_LEVELS = 8
"""Range of grey levels within rows and columns of black bars, which compression makes uneven."""

_BAR_MARGIN = 3
"""Rows and columns removed with a bar: tracking windows must not see its edge, which never moves."""


@dataclass(frozen=True, kw_only=True)
class ViewMotion:
    """Whether the camera of a view moves, measured in pictures with a long side of 256 px.

    `is_static` is None if the pictures do not determine it. `share` is the median share of corners that stay, and
    `displacement_px` the median displacement from the picture of reference, of a moving camera over the pictures that
    moved; None where no corners are found again. `num_frames` pictures were compared. `reason` states why nothing is
    determined, or when a camera moved that is still at other times.
    """

    view: str
    is_static: bool | None
    share: float | None = None
    displacement_px: float | None = None
    num_frames: int = 0
    reason: str = ""


def measure_camera_motion(scene: Scene, progress: Callable[[int, int], None] | None = None) -> tuple[ViewMotion, ...]:
    """Measure for each view whether its camera moves; `progress` receives the number of measured views and of all.

    A view whose frames cannot be decoded is not determined; the run that needs them reports it.
    """
    found = []
    for view in scene.views:
        try:
            instants = choose_pictures(view)
            pictures = read_pictures(view.source, [view.indices[instant] for instant in instants])
        except InputError as error:
            found.append(ViewMotion(view=view.name, is_static=None, reason=error.message))
        else:
            found.append(measure_motion(view.name, pictures, scene.times[list(instants)]))
        if progress is not None:
            progress(len(found), scene.num_views)
    return tuple(found)


def calibrated_motion_notices(scene: Scene, motions: Sequence[ViewMotion]) -> tuple[Notice, ...]:
    """Warn of views that move although their calibration has one pose."""
    moving = {motion.view for motion in motions if motion.is_static is False}
    return tuple(
        Notice(f"{view.name} moves, but its calibration has one pose; the result is wrong while it moves")
        for view in scene.views
        if view.name in moving and view.camera is not None and view.camera.world_to_camera.ndim == 2
    )


def choose_pictures(view: View, count: int = NUM_PICTURES) -> tuple[int, ...]:
    """Return instants spread over the capture, the first included, at key frames where a video has them.

    Where seeking does not bound the number of decoded frames, the instants are of the beginning.
    """
    span = len(view.indices)
    while True:
        chosen = tuple(dict.fromkeys(int(instant) for instant in np.linspace(0, span - 1, count).round()))
        if len(chosen) == count:
            chosen = _at_key_frames(view, chosen)
        if span <= count or _num_decoded(view.source, [view.indices[instant] for instant in chosen]) <= MAX_DECODED:
            return chosen
        span = max(span // 2, count)


def _at_key_frames(view: View, instants: Sequence[int]) -> tuple[int, ...]:
    """Move instants to the next key frame, at most half of their spacing ahead."""
    source = view.source
    if not isinstance(source, VideoSource) or source.pts is None:
        return tuple(instants)
    pts = source.pts[list(view.indices)]
    at_key = np.flatnonzero(np.isin(pts, source.key_pts))
    moved = []
    for instant in instants:
        after = at_key[np.searchsorted(at_key, instant) :][:1]
        ahead = int(after[0]) - instant if len(after) else 0
        moved.append(instant + ahead if ahead <= (instants[1] - instants[0]) // 2 else instant)
    return tuple(moved)


def _num_decoded(source: FrameSource, indices: Sequence[int]) -> int:
    """Return how many frames are decoded to read these indices: all from the last one or its key frame on."""
    if not isinstance(source, VideoSource):
        return len(indices)
    keys = np.zeros(1, np.int64) if source.pts is None else np.searchsorted(source.pts, source.key_pts)
    seeks = source.path.suffix.lower() in _SEEKABLE
    total, last = 0, 0
    for index in indices:
        start = int(keys[max(int(np.searchsorted(keys, index, side="right")) - 1, 0)])
        total += index - (max(last, start) if seeks else last)
        last = index
    return total


def read_pictures(source: FrameSource, indices: Sequence[int]) -> list[Picture]:
    """Decode frames as grey pictures with a long side of at most 256 px.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    scale = min(LONG_SIDE / max(source.size), 1.0)
    size = (max(round(source.size[0] * scale), 1), max(round(source.size[1] * scale), 1))
    with source.open(size) as reader:
        return [_gray(pixels) for pixels in reader.read(indices)]


def _gray(pixels: Image) -> Picture:
    shallow = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
    return np.asarray(shallow if shallow.ndim == 2 else cv2.cvtColor(shallow, cv2.COLOR_RGB2GRAY))


def measure_motion(name: str, pictures: Sequence[Picture], times: NDArray[np.float64]) -> ViewMotion:
    """Measure whether the camera of pictures [H, W] of one view moves; `times` are in seconds.

    The first, the middle and the last picture are references, and the one that most pictures agree with counts:
    a lamp, a person at the lens or a hand at the camera can spoil any of them.
    """
    undetermined = ViewMotion(view=name, is_static=None, num_frames=len(pictures))
    if len(pictures) < 2:
        return replace(undetermined, reason="1 instant")
    plain = [normalize_contrast(picture) for picture in _without_bars(pictures)]
    corners = [find_corners(picture) for picture in plain]
    judged: list[ViewMotion] = []
    lost: dict[int, set[int]] = {}
    for reference in dict.fromkeys((0, len(plain) // 2, len(plain) - 1)):
        if len(corners[reference]) < MIN_CORNERS:
            continue
        others = [index for index in range(len(plain)) if index != reference]
        found = [
            compare_pictures(plain[reference], plain[index], corners[reference])
            if len(corners[index]) >= MIN_CORNERS
            else Comparison(has_moved=None)
            for index in others
        ]
        found = compare_together(found, corners[reference], plain[reference].shape)
        if sum(one.has_moved is False for one in found) >= _MIN_GROUP:
            lost[reference] = {index for index, one in zip(others, found, strict=True) if one.is_lost}
        judged.append(_judge(undetermined, found, times[reference], times[others]))
        if judged[-1].is_static and not judged[-1].reason:
            break
    if not judged:
        return replace(undetermined, reason="too few corners")
    best = max(judged, key=_rank)
    if best.is_static is not None:
        return best
    if any(second in lost[first] and first in lost[second] for first in lost for second in lost):
        return replace(best, is_static=False, reason="still at times, but not in one place")
    if all(one.share is not None and one.share < GONE_SHARE for one in judged):
        return replace(best, is_static=False, reason="")
    return best


def _rank(motion: ViewMotion) -> tuple[int, float]:
    return {None: 0, False: 1, True: 2}[motion.is_static], motion.share or 0.0


def _judge(base: ViewMotion, found: Sequence[Comparison], at: float, times: NDArray[np.float64]) -> ViewMotion:
    """Judge a view by comparisons of its pictures with the one at the time `at`."""
    moved = [one for one in found if one.has_moved]
    still = [one for one in found if one.has_moved is False]
    lost = [one for one in found if one.is_lost]
    if 2 * (len(moved) + len(still) + len(lost)) < len(found):
        return replace(base, reason="too few corners are found again")
    most = MAX_OTHERS * len(found)
    is_static: bool | None = False if len(moved) > most else None
    if len(moved) + len(lost) <= most and 2 * len(still) >= len(found):
        is_static = True
    shown = still if is_static else moved or lost
    shifts = [one.displacement_px for one in shown if one.displacement_px is not None]
    judged = replace(
        base,
        is_static=is_static,
        share=float(np.median([one.share for one in (*moved, *still, *lost)])),
        displacement_px=float(np.median(shifts)) if shifts else None,
    )
    moments = [time for time, one in zip(times, found, strict=True) if one.has_moved or one.is_lost]
    if is_static is None:
        share = f"{len(lost)} of {len(found)} pictures"
        return replace(judged, reason=f"corners neither stay nor move together in {share}")
    if is_static and moments:
        return replace(judged, reason=f"except at {moments[0]:.1f} s")
    if is_static is False and len(still) >= 1 + most:
        return replace(judged, reason=f"not at all times: still around {at:.1f} s, moved at {moments[0]:.1f} s")
    return judged


def _without_bars(pictures: Sequence[Picture]) -> list[Picture]:
    """Remove rows and columns of one level at the borders of all pictures, as of a letterbox."""
    stacked = np.stack(pictures)
    rows = (stacked.max(axis=2).astype(int) - stacked.min(axis=2)).max(axis=0) > _BAR_LEVELS
    columns = (stacked.max(axis=1).astype(int) - stacked.min(axis=1)).max(axis=0) > _BAR_LEVELS
    top, bottom = _content(rows)
    left, right = _content(columns)
    return [np.ascontiguousarray(picture[top:bottom, left:right]) for picture in pictures]


def _content(varies: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the range of rows or columns between two bars; all where nothing varies."""
    places = np.flatnonzero(varies)
    if not len(places):
        return 0, len(varies)
    first, stop = int(places[0]), int(places[-1]) + 1
    begin = first + _BAR_MARGIN if first else 0
    end = stop - _BAR_MARGIN if stop < len(varies) else stop
    return (begin, end) if begin < end else (0, len(varies))
