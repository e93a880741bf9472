"""The common timeline: at which instants the scene is reconstructed, and which frame of each view belongs to each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, UsageError
from page4d.scene.records import Level, Notice

DEFAULT_MAX_FRAMES = 100_000
_SLACK = 1.02
"""Half a frame period is stretched by this much, so that rounded time stamps do not lose frames."""

_IRREGULAR = 0.1
_DROPPED = 1.5
_DUPLICATED = 0.5


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The rhythm of one view, on its own clock. `fps` is the usual rate (one over the median period)."""

    fps: float
    duration_s: float
    num_frames: int
    dropped: int
    duplicated: int
    is_variable: bool


def timing(frame_times: NDArray[np.float64]) -> Timing:
    """Describe time stamps: rate, missing and doubled frames, and whether the rate varies on purpose.

    A rate is variable if more than a tenth of the periods differ from the median by more than a tenth; gaps are then
    not counted as dropped frames.
    """
    periods = np.diff(frame_times)
    if len(periods) == 0:
        return Timing(
            fps=0.0, duration_s=0.0, num_frames=len(frame_times), dropped=0, duplicated=0, is_variable=False
        )
    period = float(np.median(periods))
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

    Without `fps` the instants are the frames of the view with the fewest per second, inside the span that all views
    cover. `frames` and `stride` then cut that list as a Python slice does. An instant at which some view has no frame
    within half a frame period is left out and counted.

    Raises:
        InputError: if the views share no time.
        UsageError: if the selection is empty, or longer than `max_frames`.
    """
    timings = [timing(times) for times in frame_times]
    periods = [_period(times) for times in frame_times]
    first = max(float(times[0]) for times in frame_times)
    last = min(float(times[-1]) for times in frame_times)
    slack = max(periods) / 2
    if first > last + slack:
        raise InputError(
            "the videos do not overlap in time after their offsets", "correct the offsets in the sync file"
        )
    slowest = int(np.argmax([_mean_period(times) for times in frame_times]))
    if fps is not None:
        count = int(np.floor((last - first) * fps + 1e-6)) + 1
        grid = first + np.arange(max(count, 1)) / fps
    else:
        own = frame_times[slowest]
        grid = own[(own >= first - periods[slowest] * 1e-3 - slack) & (own <= last + slack)]
    grid = grid[slice(*frames, stride)]
    _check_length(grid, frames, max_frames)
    nearest = [_nearest(times, grid) for times in frame_times]
    # Where two views of different rates meet, the slower one's frame period bounds how far apart frames may be.
    paired = [
        np.abs(times[index] - grid) <= period / 2 * _SLACK
        for times, index, period in zip(frame_times, nearest, periods, strict=True)
    ]
    keep = np.all(paired, axis=0)
    if not keep.any():
        raise InputError("at no instant do all views have a frame", "correct the offsets in the sync file")
    times = grid[keep]
    notices = _rate_notices(names, timings, slowest, fps) + _span_notices(names, frame_times, times, len(grid))
    notices += _unpaired_notices(names, paired, grid, first - slack * _SLACK, last + slack * _SLACK)
    if len(times) == 1:
        notices.append(Notice("1 frame: no motion"))
    return Timeline(
        times=times,
        indices=tuple(tuple(int(i) for i in index[keep]) for index in nearest),
        notices=tuple(notices),
    )


def _period(times: NDArray[np.float64]) -> float:
    """Return the median time between frames; a lone frame pairs with anything within a 25th of a second."""
    return float(np.median(np.diff(times))) if len(times) > 1 else 1 / 25


def _mean_period(times: NDArray[np.float64]) -> float:
    return float(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else np.inf


def _nearest(times: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of the frame nearest to each wanted time; ties go to the earlier frame."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    chosen: NDArray[np.int64] = np.where(wanted - times[before] <= times[after] - wanted, before, after)
    return chosen


def _check_length(grid: NDArray[np.float64], frames: tuple[int | None, int | None], max_frames: int | None) -> None:
    if len(grid) == 0:
        start, stop = ("" if end is None else end for end in frames)
        raise UsageError(f"--frames {start}:{stop} selects nothing", "give a range inside the common span")
    limit = max_frames or DEFAULT_MAX_FRAMES
    if len(grid) > limit:
        raise UsageError(
            f"{len(grid):,} frames; the limit is {limit:,}", "give --stride, --fps or --frames, or raise --max-frames"
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
    names: Sequence[str], paired: Sequence[NDArray[np.bool_]], grid: NDArray[np.float64], first: float, last: float
) -> list[Notice]:
    inside = (grid >= first) & (grid <= last)
    notices = []
    for name, has_frame in zip(names, paired, strict=True):
        lost = grid[inside & ~has_frame]
        if len(lost):
            text = (
                f"{len(lost)} instants left out: {name} has no frame within half a period (first at {lost[0]:.3f} s)"
            )
            notices.append(Notice(text))
    return notices
