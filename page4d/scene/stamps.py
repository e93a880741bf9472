"""Time stamps of frames, as whole nanoseconds: in the names of images, and in tables that recorders write.

Double precision holds a date to about 0.2 microseconds: times are differences to the first stamp, kept whole.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from io import BytesIO
from itertools import compress, pairwise, repeat
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from page4d.errors import InputError, Level, Notice
from page4d.io.documents import DocumentError, parse_json, read_bytes, read_text

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
_LAST_NS = 2**63


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
_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)(?!\d)")
_EPOCH = re.compile(
    r"(?<!\d)(?:(\d{19})|(\d{16})|(\d{13})(?:[.,](\d+))?|(\d{10})(?:[.,](\d+)|[_-](\d{9}|\d{6}))?)(?!\d)"
)
_CLOCK = re.compile(r"(?<!\d)(\d\d)([-:_.])(\d\d)\2(\d\d)(?:([.,])(\d{1,9})|[-_:](\d{9}|\d{6}|\d{3}))(?!\d)")
_PACKED_CLOCK = re.compile(r"(?<!\d)(\d\d)()(\d\d)(\d\d)()()[-_](\d{9}|\d{6}|\d{3})(?!\d)")
"""Like `123015_960`: may be two counts, of which the first changes with every frame, not every second."""
_ELAPSED = re.compile(r"(?<!\d)(\d{1,9})\.(\d{3,9})(?!\d)")


def date_in(stem: str) -> _Read | None:
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
    zone = _ZONE.match(stem, match.end()) if match[6] == ":" else None
    minutes = int(f"{zone[1]}1") * (int(zone[2]) * 60 + int(zone[3])) if zone else 0
    ns = (int(moment.timestamp()) - minutes * 60) * NS + decimals
    return _Read(ns, unit, bool(match[6] and (match[9] or not match[11])))


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


def _clock(stem: str, form: re.Pattern[str] = _CLOCK) -> _Read | None:
    """Read a time of day with decimals, such as `12-30-15.960`; without decimals it may be a date."""
    match = form.search(stem)
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
    (date_in, "1970", _LONGEST_PERIOD_NS),
    (_epoch, "1970", _LONGEST_PERIOD_NS),
    (_clock, "midnight", _LONGEST_PERIOD_NS),
    (partial(_clock, form=_PACKED_CLOCK), "midnight", NS),
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
                # As many digits as µs since 1970 have the ns of a clock that was started weeks ago.
                is_either = read is _epoch and stamps[0].unit_ns == 1000 and not stamps[0].is_plain
                if are_periodic(ns, _SHORTEST_PERIOD_NS, 10 * NS if is_either else longest_ns):
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


def are_periodic(values: NDArray[Any], shortest: int = 1, longest: int = _LAST_NS) -> bool:
    """Return whether most gaps between different values are about one period, or whole periods as by lost frames."""
    gaps = np.sort(np.diff(np.sort(values)))
    if not len(gaps):
        return True
    period = gaps[(len(gaps) - 1) // 2]
    if gaps[0] <= 0 or not shortest <= period <= longest:
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


_TABLE_WORDS = r"time[ _-]?stamps?|frame[ _-]?times?"
_TABLE_NAME = re.compile(rf"{_TABLE_WORDS}|^times$", re.IGNORECASE)
_OWN_TABLE = re.compile(r"[ _.-]*(ts|times?|time[ _-]?sync|frames?|pts)", re.IGNORECASE)
"""What follows the name of a view in that of a table which is used if it fits."""

_PLAIN_TABLE_NAME = re.compile(
    rf"[ _.-]*(synchronized|recorded|camera|video|colou?r|rgb)?[ _.-]*({_TABLE_WORDS})([ _-]history)?", re.IGNORECASE
)
_OTHER_SENSOR = re.compile(
    r"(?<![a-z])(depth|infra(red)?\d?|ir|imu|accel\w*|gyro\w*|gps|audio)(?![a-z])", re.IGNORECASE
)
TABLE_FOLDER = "timestamps"
_TABLE_FOLDERS = (".", TABLE_FOLDER, f"{TABLE_FOLDER}/camera_timestamps")
_TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".npy", ".json")
_MAX_TABLE_BYTES = 1 << 26
_MAX_DIGITS = 30
TABLE_HINT = "correct or rename the file, or pass ⟨sync=none⟩"

_VIEW_COLUMN = re.compile(r"(cam(era)?|view|port|serial|device)([ _.]?(id|name|index|number))?", re.IGNORECASE)
_TIME_COLUMN = re.compile(r"time|stamp|^ts?$|^pts$", re.IGNORECASE)
_OTHER_COLUMN = re.compile(r"duration|delta|interval|previous|rate|index|number", re.IGNORECASE)
_UNITS = tuple(
    (re.compile(rf"(?<![a-z])({names})(?![a-z])", re.IGNORECASE), unit_ns)
    for names, unit_ns in (
        (r"ns|nano\w*", 1),
        (r"[uµμ]s|micro\w*", 1000),
        (r"ms|milli\w*", 1_000_000),
        (r"s|secs?|seconds?", NS),
    )
)


@dataclass(frozen=True)
class StampTable:
    """Time stamps of all frames of a view in the file `label`; `unit_ns` is None if the file does not state it."""

    label: str
    values: tuple[Decimal, ...]
    unit_ns: int | None

    @property
    def date_unit_ns(self) -> int | None:
        """The unit with which the first value is a date, None if there is none."""
        units = [unit for _, unit in _UNITS] if self.unit_ns is None else [self.unit_ns]
        return next((unit for unit in units if 1 <= self.values[0] * unit / NS / NS < 4), None)

    def in_ns(self, period_s: float) -> NDArray[np.int64]:
        """Return nanoseconds; an unknown unit is that of a date, or else the closest to the period of the frames.

        A clock that was started weeks ago has as many ns as a date has µs: the period decides if it fits one alone.

        Raises:
            InputError: if a time is not between the years 1677 and 2262.
        """
        gaps = sorted(float(after - before) for before, after in pairwise(self.values)) or [period_s]
        misfits = {unit: abs(np.log(gaps[len(gaps) // 2] / period_s * unit / NS)) for _, unit in _UNITS}
        closest = min(misfits, key=lambda unit: misfits[unit])
        date = self.date_unit_ns
        is_clock = date is not None and misfits[date] > np.log(30) and misfits[closest] < np.log(2)
        unit = self.unit_ns or (closest if date is None or is_clock else date)
        if max(abs(value) for value in self.values) * unit >= _LAST_NS:
            raise InputError(f"{self.label}: {self.values[-1]:.6g} is no time of a frame", TABLE_HINT)
        return np.array([int(value * unit) for value in self.values], dtype=np.int64)


def is_stamp_table(file: Path, views: Iterable[str]) -> bool:
    """Return whether a file is named as a table of time stamps, or as a view and has a column of time stamps."""
    if file.suffix.lower() not in _TABLE_SUFFIXES or not file.is_file():
        return False
    if file.stem not in views or file.suffix.lower() in (".npy", ".json"):
        ends = [file.stem[match.end() :] for view in views if (match := _find_name(view, file.stem))]
        is_other = _OTHER_SENSOR.search(file.stem) and not ends
        return any(map(_OWN_TABLE.fullmatch, ends)) or (_TABLE_NAME.search(file.stem) is not None and not is_other)
    try:
        with file.open("rb") as opened:
            return re.search(rb"time[ _-]?stamp", opened.readline(4096), re.IGNORECASE) is not None
    except OSError:
        return False


def find_stamp_tables(folder: Path, views: Mapping[str, Path]) -> tuple[dict[str, StampTable], bool, list[Notice]]:
    """Find time stamps of frames in CSV, text, NPY or JSON files of a scene, or of the folder of a view.

    Also return whether the tables are named so, or may be those of something else, and notices.

    A file whose name contains that of a view belongs to it; another one has a column of views, columns with names of
    views, or the times of all of them.

    Raises:
        InputError: if the times of a view do not increase, or its file cannot be read.

    Source: Caliscope (`timestamps.csv` with `cam_id` and `frame_time`, earlier `frame_time_history.csv` with `port`);
    skellycam (`timestamps/<view>_timestamps.csv` with `timestamp_unix_utc_ns`, later
    `timestamps/camera_timestamps/*.<view>.timestamps.csv` with `timestamp.utc.seconds`); KITTI (`timestamps.txt`).
    """
    tables: dict[str, StampTable] = {}
    others: dict[str, StampTable] = {}
    notices: list[Notice] = []
    places: list[tuple[Path, str | None]] = [(folder / name, None) for name in _TABLE_FOLDERS]
    own = [(place, view) for view, path in views.items() for place in (path, path.parent) if place != folder]
    shared = Counter(place for place, _ in own)
    places += [(place, view) for place, view in own if shared[place] == 1]
    for place, of_view in places:
        # A path of each of many images would take long.
        names = os.listdir(place) if place.is_dir() else ()  # noqa: PTH208
        for name in sorted(name for name in names if name.lower().endswith(_TABLE_SUFFIXES)):
            file = place / name
            if not is_stamp_table(file, views):
                continue
            label = file.relative_to(folder).as_posix()
            named = {name: _find_name(name, file.stem) for name in views}
            owner = of_view or max((name for name, match in named.items() if match), key=len, default=None)
            match = named.get(owner or "")
            is_plain = _PLAIN_TABLE_NAME.fullmatch(file.stem[match.end() if match else 0 :]) is not None
            try:
                columns = _columns(file, label)
                rows, is_shared = _rows(columns, [owner] if owner else list(views))
                known = {view: table for view, of_rows in rows.items() if (table := _times(label, of_rows))}
            except InputError as error:
                if owner and is_plain:
                    raise
                notices.append(Notice(f"{error.marked_message}; it is not used", Level.INFO))
                continue
            is_certain = is_plain and (owner or not is_shared)
            (tables if is_certain else others).update(known)
            if not known:
                level = Level.WARNING if is_plain else Level.INFO
                notices.append(Notice(f"{label}: no times of the views; it is not used", level))
    return tables or others, bool(tables), notices


def _columns(file: Path, label: str) -> dict[str, list[str]]:
    """Return the columns of a table by name; those of a table without names are numbered."""
    try:
        if file.suffix.lower() == ".npy":
            return _columns_of_array(read_bytes(file, _MAX_TABLE_BYTES))
        text = read_text(file, _MAX_TABLE_BYTES)
        if file.suffix.lower() == ".json":
            document = parse_json(text)
            lists = document.items() if isinstance(document, dict) else [("0", document)]
            return {name: [str(value) for value in cells] for name, cells in lists if isinstance(cells, list)}
        lines = [line for line in text.splitlines() if line.strip()]
        header = next((line for line in lines if _TIME_COLUMN.search(line)), None)
        lines = [line for line in lines if line is header or not line.startswith("#")]
        is_comment = bool(lines) and lines[0].startswith("#")
        lines = [line.lstrip("# ") for line in lines]
        delimiter = next((each for each in "\t;," if lines and each in lines[0]), None)
        if delimiter is not None:
            rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter)]
        else:  # a date may contain a space
            rows = [line.split() if _number(line) is None else [line] for line in lines]
    except (DocumentError, ValueError, EOFError, csv.Error) as error:
        raise InputError(f"{label} cannot be read: {error}", TABLE_HINT) from error
    if not rows:
        return {}
    if is_comment and len(rows) > 1 and len(rows[0]) > len(rows[1]):
        del rows[0]  # such as `# timestamp format v2`
    has_names = all(_number(cell) is None for cell in rows[0])
    names = rows[0] if has_names else [str(place) for place in range(len(rows[0]))]
    body = [row for row in rows[has_names:] if len(row) >= len(names)]
    return {name: [row[place] for row in body] for place, name in enumerate(names)}


def _columns_of_array(content: bytes) -> dict[str, list[str]]:
    """Return the rows or columns of an NPY file, the longer ones; none of Python objects, which may be programs.

    Source: campy (`frametimes.npy` with frame numbers and times), RH20T (`timestamps.npy` with a dictionary).
    """
    if not content.startswith(MAGIC_PREFIX):  # NumPy takes other content for an archive or a pickle
        return {}
    try:
        array = np.load(BytesIO(content), allow_pickle=False)
    except ValueError:
        return {}
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.size:
        return {}
    columns = array if array.shape[1] >= array.shape[0] else array.T
    return {str(place): [str(value) for value in column] for place, column in enumerate(columns.tolist())}


def _find_name(view: str, text: str) -> re.Match[str] | None:
    """Find the name of a view between other words."""
    return re.search(rf"(?<![^\W_]){re.escape(view)}(?![^\W_])", text)


def _rows(columns: Mapping[str, list[str]], views: Sequence[str]) -> tuple[dict[str, dict[str, list[str]]], bool]:
    """Return the columns of times of every view, and whether they are those of all views.

    They are the columns that have the name of a view, without empty cells, or else the rows that a column of views
    names or numbers.
    """
    own = {
        view: {
            f"time {name}": [cell for cell in cells if cell.lower() not in ("", "nan")]
            for name, cells in columns.items()
            if not name.isdecimal() and _find_name(view, name)
        }
        for view in views
    }
    if any(own.values()):
        return own, False
    by_view = next((name for name in columns if _VIEW_COLUMN.fullmatch(name)), None)
    numbers = {view: str(int(match[1])) for view in views if (match := re.search(r"(\d+)$", view))}
    chosen = {}
    for view in views:
        number = numbers.get(view)
        keys = {view, number if list(numbers.values()).count(number or "") == 1 else None}
        kept = repeat(True) if by_view is None else [cell in keys for cell in columns[by_view]]
        chosen[view] = {name: list(compress(cells, kept)) for name, cells in columns.items()}
    return chosen, by_view is None


def _number(cell: str) -> Decimal | None:
    """Return a finite number, or a date or time of day in nanoseconds; None for other text."""
    try:
        value = Decimal(cell.strip().replace(",", "."))
        return value if value.is_finite() and abs(value.adjusted()) < _MAX_DIGITS else None
    except InvalidOperation:
        stamp = date_in(cell) or _clock(cell) if ":" in cell else None
        return None if stamp is None else Decimal(stamp.ns)


def _times(label: str, columns: Mapping[str, Sequence[str]]) -> StampTable | None:
    """Return the column of times: dates first, else the first one that is called so; None without times."""
    has_names = not all(name.isdecimal() for name in columns)
    found: list[StampTable] = []
    for name, cells in columns.items():
        values = tuple(value for cell in cells if (value := _number(cell)) is not None)
        is_count = len(columns) > 1 and all(value == values[0] + place for place, value in enumerate(values))
        is_called_so = bool(_TIME_COLUMN.search(name)) and not _OTHER_COLUMN.search(name)
        if values and len(values) == len(cells) and (is_called_so if has_names else not is_count):
            unit = next((unit for pattern, unit in _UNITS if pattern.search(name)), None)
            found.append(StampTable(label, values, 1 if ":" in cells[0] else unit))
    if not found:
        return None
    table = min(found, key=lambda each: each.date_unit_ns is None)
    for place, (before, after) in enumerate(pairwise(table.values), start=2):
        if after <= before:
            raise InputError(f"{label}: time {place} of {len(table.values)} is not after the one before", TABLE_HINT)
    return table
