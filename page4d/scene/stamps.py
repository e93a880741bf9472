"""Time stamps of frames, as whole nanoseconds: in the names of images, and in tables that recorders write.

Double precision holds a date to about 0.2 microseconds: times are differences to the first stamp, kept whole.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NS = 1_000_000_000
DAY_NS = 86_400 * NS

Origin = Literal["1970", "midnight", "unknown"]
"""What the time stamp 0 is. Dates without a time zone count as UTC."""

_MIN_DATES = 5
"""Fewest images with dates to the second that are a recording, not single photos."""

_REGULAR_SHARE = 0.75
_LONGEST_GAP = 10
"""Largest number of periods of a gap that is attributed to lost frames."""

_LONGEST_PERIOD_NS = 3600 * NS
_SHORTEST_PERIOD_NS = 10_000


@dataclass(frozen=True)
class Stamps:
    """Time stamp of the first frame of a view in nanoseconds since `origin`."""

    first_ns: int
    origin: Origin


@dataclass(frozen=True)
class _Read:
    """A time in a name: nanoseconds, those of its last digit, and whether its notation is that of times alone."""

    ns: int
    unit_ns: int
    is_plain: bool


def _fraction(digits: str | None, unit_ns: int = NS) -> tuple[int, int]:
    """Return the nanoseconds of decimals of a unit, and of the last of these digits."""
    digits = (digits or "")[:9]
    return int(digits or 0) * unit_ns // 10 ** len(digits), max(unit_ns // 10 ** len(digits), 1)


_DATE = re.compile(
    r"(?<!\d)((?:199|20\d)\d)([-_.]?)(\d\d)\2(\d\d)[T_ -]?(\d\d)([-:_.]?)(\d\d)\6(\d\d)"
    r"(?:([.,])(\d{1,9})|[_-]?(\d{9}|\d{6}|\d{3}))?(?!\d)"
)
_EPOCH = re.compile(
    r"(?<!\d)(?:(\d{19})|(\d{16})|(\d{13})(?:[.,](\d+))?|(\d{10})(?:[.,](\d+)|[_-](\d{9}|\d{6}))?)(?!\d)"
)
_CLOCK = re.compile(r"(?<!\d)(\d\d)([-:_.])(\d\d)\2(\d\d)(?:([.,])(\d{1,9})|[-_:](\d{9}|\d{6}|\d{3}))(?!\d)")
_ELAPSED = re.compile(r"(?<!\d)(\d{1,9})\.(\d{3,9})(?!\d)")


def _date(stem: str) -> _Read | None:
    """Read `2024-05-01_12-30-15.960` in its usual forms, with or without separators and decimals."""
    match = _DATE.search(stem)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 7, 8))
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    decimals, unit = _fraction(match[10] or match[11])
    return _Read(int(moment.timestamp()) * NS + decimals, unit, bool(match[6] and (match[9] or not match[11])))


def _epoch(stem: str) -> _Read | None:
    """Read whole ns, µs, ms or s since 1970, the last two also with decimals, of the years 2001 to 2096.

    Source: EuRoC (ns), RGB-D TUM (s with decimals), librealsense `rs-convert` (ms with decimals), ROS (s and ns).
    """
    match = _EPOCH.search(stem)
    if match is None:
        return None
    ns, us, ms, of_ms, s, of_s, after_s = match.groups()
    decimals, unit = _fraction(of_ms, 1_000_000) if ms else _fraction(of_s or after_s)
    unit = 1 if ns else 1000 if us else unit
    value = int(ns or 0) + int(us or 0) * 1000 + int(ms or 0) * 1_000_000 + int(s or 0) * NS + decimals
    return _Read(value, unit, bool(of_ms or of_s)) if NS <= value // NS < 4 * NS else None


def _clock(stem: str) -> _Read | None:
    """Read a time of day with decimals, such as `12-30-15.960`; without decimals it may be a date."""
    match = _CLOCK.search(stem)
    if match is None:
        return None
    hours, minutes, seconds = (int(match[group]) for group in (1, 3, 4))
    decimals, unit = _fraction(match[6] or match[7])
    ns = ((hours * 60 + minutes) * 60 + seconds) * NS + decimals
    is_plain = match[2] != "." and len(match[6] or "") in (3, 6, 9)
    return _Read(ns, unit, is_plain) if hours < 24 and minutes < 60 and seconds < 60 else None


def _elapsed(stem: str) -> _Read | None:
    """Read seconds with decimals since an unknown time, such as `12.345678`."""
    match = _ELAPSED.search(stem)
    if match is None:
        return None
    decimals, unit = _fraction(match[2])
    return _Read(int(match[1]) * NS + decimals, unit, False)


_FORMS: tuple[tuple[Callable[[str], _Read | None], Origin, int], ...] = (
    (_date, "1970", _LONGEST_PERIOD_NS),
    (_epoch, "1970", _LONGEST_PERIOD_NS),
    (_clock, "midnight", _LONGEST_PERIOD_NS),
    (_elapsed, "unknown", NS),
)
"""Notations, what their 0 is, and the longest period: that of elapsed times could be of milliseconds."""


def stamps_of_names(views: Sequence[Sequence[str]]) -> list[tuple[Origin, NDArray[np.int64]] | None]:
    """Return the time stamps in the file stems of views, None for views whose names are no plain times.

    The names of a view have one notation, and are regularly spaced. Numbers that step by one are none, and where the
    notation could be that of a frame number, seconds must vary: `2.0100`, `2.0200` may be a take and its frames.
    """
    found: list[tuple[Origin, NDArray[np.int64]] | None] = [None] * len(views)
    for read, origin, longest_ns in _FORMS:
        candidates: dict[int, tuple[list[_Read], NDArray[np.int64]]] = {}
        for place, stems in enumerate(views):
            if found[place] is None and (stamps := _all_read(read, stems)):
                ns = np.array([stamp.ns for stamp in stamps], dtype=np.int64)
                ns = _across_midnight(ns) if origin == "midnight" else ns
                if _is_regular(ns, longest_ns):
                    candidates[place] = (stamps, ns)
        if _are_plain(read, list(candidates.values())):
            found = [(origin, candidates[at][1]) if at in candidates else known for at, known in enumerate(found)]
    return found


def _all_read(read: Callable[[str], _Read | None], stems: Sequence[str]) -> list[_Read]:
    """Return the time stamps of all stems in one notation, or none."""
    stamps: list[_Read] = []
    for stem in stems:
        stamp = read(stem)
        if stamp is None or (stamps and stamp.is_plain != stamps[0].is_plain):
            return []
        stamps.append(stamp)
    # Python writes times without trailing zeros; other notations with decimals have one length.
    is_fixed = read is not _epoch and len({stamp.unit_ns for stamp in stamps}) > 1
    return [] if is_fixed else stamps


def _across_midnight(ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add a day to the times before a gap of more than half a day: the recording began before midnight."""
    order = np.sort(ns)
    gaps = np.diff(order)
    if not len(gaps) or gaps.max() < DAY_NS // 2:
        return ns
    return np.where(ns <= order[int(gaps.argmax())], ns + DAY_NS, ns)


def _is_regular(ns: NDArray[np.int64], longest_ns: int) -> bool:
    """Return whether most gaps are about one period, or whole periods as by lost frames."""
    gaps = np.diff(np.sort(ns))
    if not len(gaps):
        return True
    period = np.sort(gaps)[(len(gaps) - 1) // 2]
    if gaps.min() <= 0 or not _SHORTEST_PERIOD_NS <= period <= longest_ns:
        return False
    ratio = gaps / period
    count = np.round(ratio)
    near = (np.abs(ratio - count) <= 0.25) & (count >= 1) & (count <= _LONGEST_GAP)
    return bool((near | (np.abs(ratio - 1) < 0.5)).mean() >= _REGULAR_SHARE)


def _are_plain(
    read: Callable[[str], _Read | None], views: Sequence[tuple[Sequence[_Read], NDArray[np.int64]]]
) -> bool:
    """Return whether regular numbers of views are times rather than frame numbers."""
    if max((len(ns) for _, ns in views), default=0) < 2:
        return False
    varies = len(np.unique(np.concatenate([ns // NS for _, ns in views]))) > 1
    is_counted = any(len(ns) > 1 and np.median(np.diff(np.sort(ns))) == stamps[0].unit_ns for stamps, ns in views)
    if all(stamps[0].is_plain for stamps, _ in views):
        return varies or not is_counted
    if read is _epoch:
        return not is_counted
    is_to_the_second = any(stamps[0].unit_ns == NS for stamps, _ in views)
    return varies and not is_counted and not (is_to_the_second and any(_may_be_numbered(ns) for _, ns in views))


def _may_be_numbered(ns: NDArray[np.int64]) -> bool:
    """Return whether HHMMSS, read as one number, has the regular steps of frame numbers; True for few images."""
    clock = np.sort(ns) // NS % 86_400
    steps = np.diff(clock // 3600 * 10_000 + clock // 60 % 60 * 100 + clock % 60)
    if len(steps) + 1 < _MIN_DATES:
        return True
    step = max(int(steps.min()), 1)
    return bool((steps % step == 0).all() and steps.max() <= _LONGEST_GAP * step)
