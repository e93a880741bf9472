"""The common timeline: at which instants the scene is reconstructed, and which frame of each view belongs to each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, UsageError
from page4d.scene.records import Level, Notice

_CORRECT_CLOCKS = "correct the clocks (--sync FILE), or pass --sync none"
DEFAULT_MAX_FRAMES = 100_000
_SLACK = 1.02
"""Half a frame period is stretched by this much, so that rounded time stamps do not lose frames."""

_SAME_RATE = 1e-4
"""Relative difference of two rates that the rounding of time stamps explains."""

_COUNTLESS = 1e15
_IRREGULAR = 0.1
_DROPPED = 1.5
_DUPLICATED = 0.5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The rhythm of one view, on its own clock. `fps` is one over the usual period."""

    fps: float
    duration_s: float
    num_frames: int
    dropped: int
    duplicated: int
    is_variable: bool


def timing(frame_times: NDArray[np.float64]) -> Timing:
    """Describe time stamps: rate, missing and doubled frames, and whether the rate varies on purpose.

    A rate is variable if more than a tenth of the periods differ from the usual one by more than a tenth; gaps are
    then not counted as dropped frames.
    """
    periods = np.diff(frame_times)
    if len(periods) == 0:
        return Timing(
            fps=0.0, duration_s=0.0, num_frames=len(frame_times), dropped=0, duplicated=0, is_variable=False
        )
    period = _period(frame_times)
    odd = np.abs(periods - period) > _IRREGULAR * period
    variable = bool(odd.mean() > _IRREGULAR)
    gaps = periods[periods > _DROPPED * period] / period
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
    """The chosen instants in seconds, and per view the index of its frame at each of them."""

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
    """Choose instants and pair each with the nearest frame of every view; `frame_times` are on the common clock.

    Without `fps` the instants are the frames of the view with the fewest per second, inside the span in which all
    views have frames. `frames` and `stride` then cut that list as a Python slice does. An instant at which some view
    has no frame within half a frame period is left out and counted.

    Raises:
        InputError: if the views share no time.
        UsageError: if the selection is empty, or longer than `max_frames`.
    """
    timings = [timing(times) for times in frame_times]
    reaches = [_longest_period(times) / 2 * _SLACK for times in frame_times]
    first = max(float(times[0]) - reach for times, reach in zip(frame_times, reaches, strict=True))
    last = min(float(times[-1]) + reach for times, reach in zip(frame_times, reaches, strict=True))
    if first > last:
        raise InputError(
            "the videos do not overlap in time after their offsets",
            "correct the clocks (--sync FILE), or pass --sync none",
        )
    slowest = _slowest(frame_times)
    if fps is not None:
        start = max(float(times[0]) for times in frame_times)
        duration = min(float(times[-1]) for times in frame_times) - start
        steps = range(int(min(max(duration * fps + 1e-6, 0), _COUNTLESS)) + 1)[slice(*frames, stride)]
        _check_length(len(steps), frames, max_frames)
        grid = start + np.asarray(steps) / fps
    else:
        own = frame_times[slowest]
        grid = own[(own >= first) & (own <= last)]
        if len(grid) == 0:
            raise _unpaired()
        grid = grid[slice(*frames, stride)]
        _check_length(len(grid), frames, max_frames)
    nearest = [nearest_frames(times, grid) for times in frame_times]
    paired = [
        np.abs(times[index] - grid) <= reach
        for times, index, reach in zip(frame_times, nearest, reaches, strict=True)
    ]
    keep = np.all(paired, axis=0)
    if not keep.any():
        raise _unpaired()
    times = grid[keep]
    notices = _rate_notices(names, timings, slowest, fps) + _span_notices(names, frame_times, times, len(grid))
    notices += _unpaired_notices(names, paired, grid)
    if len(times) == 1:
        notices.append(Notice("1 frame: no motion"))
    return Timeline(
        times=times,
        indices=tuple(tuple(int(i) for i in index[keep]) for index in nearest),
        notices=tuple(notices),
    )


def _period(times: NDArray[np.float64]) -> float:
    """Return the usual time between frames; a lone frame counts as a 25th of a second.

    It is the mean of the periods near the median: time stamps in whole milliseconds would move the median itself.
    """
    if len(times) < 2:
        return 1 / 25
    gaps = np.diff(times)
    median = np.median(gaps)
    return float(gaps[(gaps >= _DUPLICATED * median) & (gaps <= _DROPPED * median)].mean())


def _longest_period(times: NDArray[np.float64]) -> float:
    """Return the longest time between frames with none dropped: time stamps are rounded, and phones waver."""
    period, gaps = _period(times), np.diff(times)
    return float(gaps[gaps <= _DROPPED * period].max(initial=period))


def _slowest(frame_times: Sequence[NDArray[np.float64]]) -> int:
    """Return the view with the longest usual period, a lone frame before all; the first of several as slow."""
    periods = np.array([_period(times) if len(times) > 1 else np.inf for times in frame_times])
    return int(np.argmax(periods >= (1 - _SAME_RATE) * periods.max()))


def _unpaired() -> InputError:
    return InputError(
        "at no instant do all views have a frame", "correct the clocks (--sync FILE), or pass --sync none"
    )


def nearest_frames(times: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the frame nearest to each wanted time; ties go to the earlier frame."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    chosen: NDArray[np.int64] = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    return chosen


def _check_length(count: int, frames: tuple[int | None, int | None], max_frames: int | None) -> None:
    """Refuse a selection of nothing or of too much, before memory is taken for it."""
    if count == 0:
        start, stop = ("" if end is None else end for end in frames)
        raise UsageError(f"--frames {start}:{stop} selects nothing", "give a range inside the common span")
    limit = max_frames or DEFAULT_MAX_FRAMES
    if count > limit:
        raise UsageError(
            f"{count:,} frames; the limit is {limit:,}", "give --stride, --fps or --frames, or raise --max-frames"
        )


def _rate_notices(names: Sequence[str], timings: Sequence[Timing], slowest: int, fps: float | None) -> list[Notice]:
    notices = []
    rates = [timing.fps for timing in timings]
    for name, timing_ in zip(names, timings, strict=True):
        if timing_.is_variable:
            notices.append(Notice(f"{name}: variable frame rate; frames are taken by time stamp", Level.INFO))
    known = [rate for rate in rates if rate > 0]
    if fps is not None:
        slower = [name for name, rate in zip(names, rates, strict=True) if 0 < rate < fps / 1.02]
        if slower:
            notices.append(Notice(f"--fps {fps:g} is above the rate of {', '.join(slower)}: their frames repeat"))
    elif known and max(known) > 1.02 * min(known):
        faster = [rate for rate in known if rate > 1.02 * rates[slowest]]
        others = ", ".join(f"{rate:.4g}" for rate in sorted(set(faster)))
        if faster:
            step = max(faster) / rates[slowest] if rates[slowest] else 1
            every = f", every {_ordinal(round(step))} frame" if abs(step - round(step)) < 0.02 else ""
            text = f"{names[slowest]} is {rates[slowest]:.4g} fps, others {others}; pairing by time{every}"
            notices.append(Notice(text))
    return notices


def _ordinal(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _span_notices(
    names: Sequence[str], frame_times: Sequence[NDArray[np.float64]], times: NDArray[np.float64], count: int
) -> list[Notice]:
    ends = np.array([own[-1] + _period(own) for own in frame_times])
    starts = np.array([own[0] for own in frame_times])
    tolerance = max(_period(own) for own in frame_times) * 1.01
    parts = []
    if starts.max() - starts.min() > tolerance:
        parts.append(f"{names[int(starts.argmax())]} starts last")
    if ends.max() - ends.min() > tolerance:
        parts.append(f"{names[int(ends.argmin())]} ends first")
    if not parts:
        return []
    return [Notice(f"common span {times[0]:.2f}-{times[-1]:.2f} s ({count} frames); {', '.join(parts)}")]


def _unpaired_notices(
    names: Sequence[str], paired: Sequence[NDArray[np.bool_]], grid: NDArray[np.float64]
) -> list[Notice]:
    notices = []
    for name, has_frame in zip(names, paired, strict=True):
        lost = grid[~has_frame]
        if len(lost):
            count = "1 instant" if len(lost) == 1 else f"{len(lost)} instants"
            text = f"{count} left out: {name} has no frame within half a period (first at {lost[0]:.3f} s)"
            notices.append(Notice(text))
    return notices
