"""Common timeline of a scene: its instants, and the frame of each view at each instant."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, Level, Notice, UsageError, counted, listed

_CLOCK_HINT = "correct the clocks (⟨sync=FILE⟩), or pass ⟨sync=none⟩"
DEFAULT_MAX_FRAMES = 100_000
PAIRING_SLACK = 1.02
"""Tolerance factor on half a frame period, for rounded time stamps."""

_EQUAL_RATE_TOLERANCE = 1e-4
"""Relative difference of two rates attributed to rounded time stamps."""

_MAX_STEPS = 1e15
"""Bound on the number of instants before conversion to an integer."""

_IRREGULAR = 0.1
"""Relative deviation of an irregular period, and minimum share of irregular periods at a variable rate."""

_MOST_DROPPED = 0.25
"""Maximum share of gaps that are attributed to dropped frames: a camera halves its rate in low light."""

DROPPED = 1.5
_DUPLICATED = 0.5
"""Periods above or below these multiples of the usual period are due to dropped or duplicated frames."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Frame timing of one view on its own clock; `fps` is the inverse of the usual period."""

    fps: float
    duration_s: float
    num_frames: int
    dropped: int = 0
    duplicated: int = 0
    is_variable: bool = False


def timing(frame_times: NDArray[np.float64]) -> Timing:
    """Estimate the frame rate, the number of dropped and duplicated frames, and whether the rate is variable.

    A rate is variable if more than 10 % of the periods differ from the usual one, or from a multiple of it as by
    dropped frames, by more than 10 % of it, or if more than 25 % are such multiples; dropped and duplicated frames
    are then not counted.
    """
    periods = np.diff(frame_times)
    if len(periods) == 0:
        return Timing(fps=0.0, duration_s=0.0, num_frames=len(frame_times))
    period = _period(frame_times)
    irregular = np.abs(periods - period * np.maximum(np.round(periods / period), 1)) > _IRREGULAR * period
    variable = bool(irregular.mean() > _IRREGULAR or (periods > DROPPED * period).mean() > _MOST_DROPPED)
    gaps = periods[periods > DROPPED * period] / period
    return Timing(
        fps=1 / period,
        duration_s=float(frame_times[-1] - frame_times[0]) + period,
        num_frames=len(frame_times),
        dropped=0 if variable else int(np.sum(np.round(gaps) - 1)),
        duplicated=0 if variable else int(np.sum(periods < _DUPLICATED * period)),
        is_variable=variable,
    )


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Selected instants in seconds, and for each view the index of its frame at each instant."""

    times: NDArray[np.float64]
    indices: tuple[tuple[int, ...], ...]
    notices: tuple[Notice, ...] = ()


def build_timeline(
    names: Sequence[str],
    frame_times: Sequence[NDArray[np.float64]],
    *,
    fps: float | None = None,
    frames: tuple[int | None, int | None] = (None, None),
    stride: int = 1,
    max_frames: int | None = None,
) -> Timeline:
    """Select instants and pair each with the nearest frame of every view; `frame_times` are on the common clock.

    Without `fps` the instants are the frames of the view with the lowest frame rate, within the common span of all
    views. `frames` and `stride` select from them like a Python slice. Instants at which a view has no frame within
    half a frame period are left out and reported.

    Raises:
        InputError: if the views do not overlap in time.
        UsageError: if the selection is empty or longer than `max_frames`.
    """
    timings = [timing(times) for times in frame_times]
    reaches = [_longest_period(times) / 2 * PAIRING_SLACK for times in frame_times]
    first = max(float(times[0]) - reach for times, reach in zip(frame_times, reaches, strict=True))
    last = min(float(times[-1]) + reach for times, reach in zip(frame_times, reaches, strict=True))
    if first > last:
        raise InputError("the videos do not overlap in time after their clock offsets are applied", _CLOCK_HINT)
    slowest = _slowest(frame_times)
    if fps is not None:
        start = max(float(times[0]) for times in frame_times)
        duration = min(float(times[-1]) for times in frame_times) - start
        every = range(int(min(max(duration * fps + 1e-6, 0), _MAX_STEPS)) + 1)
        steps = every[slice(*frames, stride)]
        _check_length(len(steps), frames, max_frames)
        grid, span = start + np.asarray(steps) / fps, (start, start + every[-1] / fps)
    else:
        grid = frame_times[slowest]
        grid = grid[(grid >= first) & (grid <= last)]
        if len(grid) == 0:
            raise _no_common_instant()
        every, span = range(len(grid)), (grid[0], grid[-1])
        grid = grid[slice(*frames, stride)]
        _check_length(len(grid), frames, max_frames)
    nearest = [nearest_frames(times, grid) for times in frame_times]
    paired = [
        np.abs(times[index] - grid) <= reach
        for times, index, reach in zip(frame_times, nearest, reaches, strict=True)
    ]
    keep = np.all(paired, axis=0)
    if not keep.any():
        raise _no_common_instant()
    times = grid[keep]
    notices = _rate_notices(names, timings, slowest, fps) + _span_notices(names, frame_times, span, len(every))
    notices += _unpaired_notices(names, paired, grid)
    if fps is None and stride == 1:
        notices += _gap_notices(names, frame_times, reaches, slowest, (times[0], times[-1]))
    if len(times) == 1:
        notices.append(Notice("1 instant: motion cannot be estimated"))
    return Timeline(
        times=times, indices=tuple(tuple(int(i) for i in index[keep]) for index in nearest), notices=tuple(notices)
    )


def _period(times: NDArray[np.float64]) -> float:
    """Return the usual frame period in seconds, 1/25 for a single frame.

    It is the mean of the periods near the median; the median itself is biased by time stamps in whole milliseconds.
    """
    gaps = np.diff(times)
    gaps = np.sort(gaps[gaps > 0])  # two times may be equal on a clock with a large offset
    if len(gaps) == 0:
        return 1 / 25
    median = gaps[(len(gaps) - 1) // 2]  # an existing gap: the mean of the middle two may be far from all
    return float(gaps[(gaps >= _DUPLICATED * median) & (gaps <= DROPPED * median)].mean())


def _longest_period(times: NDArray[np.float64]) -> float:
    """Return the longest period that is not due to dropped frames."""
    period, gaps = _period(times), np.diff(times)
    return float(gaps[gaps <= DROPPED * period].max(initial=period))


def _slowest(frame_times: Sequence[NDArray[np.float64]]) -> int:
    """Return the first view with the longest usual period; a view with a single frame is the slowest."""
    periods = np.array([_period(times) if len(times) > 1 else np.inf for times in frame_times])
    return int(np.argmax(periods >= (1 - _EQUAL_RATE_TOLERANCE) * periods.max()))


def _no_common_instant() -> InputError:
    return InputError("there is no instant at which every view has a frame", _CLOCK_HINT)


def nearest_frames(times: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the frame nearest to each wanted time; in a tie the earlier frame."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    chosen: NDArray[np.int64] = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    return chosen


def _check_length(count: int, frames: tuple[int | None, int | None], max_frames: int | None) -> None:
    """Check the number of instants before they are allocated."""
    if count == 0:
        start, stop = ("" if end is None else end for end in frames)
        raise UsageError(f"⟨frames={start}:{stop}⟩ selects nothing", "give a range within the common span")
    limit = max_frames or DEFAULT_MAX_FRAMES
    if count > limit:
        raise UsageError(
            f"{count:,} frames; the limit is {limit:,}", "give ⟨stride⟩, ⟨fps⟩ or ⟨frames⟩, or raise ⟨max_frames⟩"
        )


def _rate_notices(names: Sequence[str], timings: Sequence[Timing], slowest: int, fps: float | None) -> list[Notice]:
    rates = [view.fps for view in timings]
    variable = [name for name, view in zip(names, timings, strict=True) if view.is_variable]
    text = "variable frame rate; frames are selected by time stamp"
    notices = [Notice(f"{name}: {text}", Level.INFO) for name in variable]
    known = [rate for rate in rates if rate > 0]
    if fps is not None:
        slower = [name for name, rate in zip(names, rates, strict=True) if 0 < rate < fps / 1.02]
        if slower:
            notices.append(Notice(f"⟨fps={fps:g}⟩ exceeds the frame rate of {listed(slower)}: frames are repeated"))
    elif known and max(known) > 1.02 * min(known):
        faster = [rate for rate in known if rate > 1.02 * rates[slowest]]
        others = listed([f"{rate:.4g}" for rate in sorted(set(faster))])
        if faster:
            step = max(faster) / rates[slowest] if rates[slowest] else 1
            every = f", one frame in {round(step)}" if abs(step - round(step)) < 0.02 else ""
            text = f"{names[slowest]} is {rates[slowest]:.4g} fps, others {others}; pairing by time{every}"
            notices.append(Notice(text))
    return notices


def _span_notices(
    names: Sequence[str], frame_times: Sequence[NDArray[np.float64]], span: tuple[float, float], count: int
) -> list[Notice]:
    ends = np.array([view[-1] + _period(view) for view in frame_times])
    starts = np.array([view[0] for view in frame_times])
    tolerance = max(_period(view) for view in frame_times) * 1.01
    parts = []
    if starts.max() - starts.min() > tolerance:
        parts.append(f"{names[int(starts.argmax())]} starts last")
    if ends.max() - ends.min() > tolerance:
        parts.append(f"{names[int(ends.argmin())]} ends first")
    if not parts:
        return []
    return [Notice(f"common span {span[0]:.2f}-{span[1]:.2f} s ({counted(count, 'frame')}); {', '.join(parts)}")]


def _unpaired_notices(
    names: Sequence[str], paired: Sequence[NDArray[np.bool_]], grid: NDArray[np.float64]
) -> list[Notice]:
    lost = [(name, grid[~has_frame]) for name, has_frame in zip(names, paired, strict=True)]
    lacks = "has no frame within half a frame period"
    return [
        Notice(f"{counted(len(times), 'instant')} left out: {name} {lacks} (first at {times[0]:.3f} s)")
        for name, times in lost
        if len(times)
    ]


def _gap_notices(
    names: Sequence[str],
    frame_times: Sequence[NDArray[np.float64]],
    reaches: Sequence[float],
    slowest: int,
    span: tuple[float, float],
) -> list[Notice]:
    """Report instants at which the view that determines them dropped a frame, and another view has one."""
    own = frame_times[slowest]
    period = _period(own)
    gaps = [
        (before, round((after - before) / period))
        for before, after in pairwise(own[(own >= span[0]) & (own <= span[1])].tolist())
        if after - before > DROPPED * period
    ]
    if not 0 < sum(count for _, count in gaps) < DEFAULT_MAX_FRAMES or timing(own).is_variable:
        return []
    lost = np.concatenate([before + period * np.arange(1, count) for before, count in gaps])
    others = [pair for place, pair in enumerate(zip(frame_times, reaches, strict=True)) if place != slowest]
    has_other = [np.abs(times[nearest_frames(times, lost)] - lost) <= reach for times, reach in others]
    return _unpaired_notices([names[slowest]], [~np.any(has_other, axis=0)], lost) if others else []
