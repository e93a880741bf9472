"""Synchronization: the clock of every view, from a file, embedded time codes, audio, or a common start."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from page4d.choices import SyncMode
from page4d.conventions import ClockOrigin
from page4d.errors import InputError, Level, Notice, UsageError, counted, listed, shortened, unknown_name
from page4d.io import documents
from page4d.io.documents import DocumentError, DocumentMissingError
from page4d.io.input_files import composed, missing_path_hint
from page4d.scene.images import ImageFolderSource
from page4d.scene.records import MEASURED, SYNC_HINT, Clock, FrameSource
from page4d.scene.sound import AudioOffset, correlate_audio
from page4d.scene.stamps import DAY_NS, NS, TABLE_HINT, Stamps, date_in, find_stamp_tables, is_stamp_table
from page4d.scene.timeline import DROPPED, timing
from page4d.scene.video import TimeCode, VideoSource

SAME_START = "same start"
"""Method of clocks without evidence."""

_USUAL_START_S = 2.0
_USUAL_DELAY_S = 0.3
_STREAM_SUFFIXES = (".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".vob")

_DOUBLE_RATE = 48
"""Frame rate from which many cameras count one time code per two frames."""

_EXAMPLE = 'write {"views": {"cam01": {"offset_s": 0.25}}}'


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """One clock per view, and the method that determined them.

    `start_ns` is the time stamp of time 0, None where only names of images may have time stamps.
    """

    clocks: tuple[Clock, ...]
    method: str
    notices: tuple[Notice, ...] = ()
    origin: ClockOrigin = ClockOrigin.EARLIEST
    start_ns: int | None = None


_MAX_OFFSET_S = 1e6
_MAX_TIME_S = 4e9
_MIN_RATE, _MAX_RATE = 1e-3, 100.0
_USUAL_DRIFT = 0.05
"""Plausible clocks: 11 days, high speed at 25,000 fps played at 25, and a time lapse of one frame in 4 s.
The clock of a camera without either differs by less than 5 %."""


def describe_clocks(method: str, clocks: Sequence[Clock], sync: object) -> str:
    """Describe the clocks in use with their evidence in one line; `sync` is the option."""
    if method == SAME_START:
        if sync == SyncMode.NONE:
            return "all views start together, as ⟨sync=none⟩ states"
        nothing = "no sync file, common time codes, time stamps or frame numbers"
        measures = f"{MEASURED} or, with sound, ⟨sync=audio⟩ measures it"
        return f"assumed to start together ({nothing}); {measures}"
    starts, rates = ([getattr(clock, name) for clock in clocks] for name in ("offset_s", "rate"))
    drift = f", rates {min(rates):.7g} to {max(rates):.7g}" if max(rates) > min(rates) else ""
    deviations = [clock.std_seconds for clock in clocks if clock.std_seconds is not None]
    std = f" (+-{max(1000 * max(deviations), 1):.0f} ms)" if deviations else ""
    return f"from {method}: starts of views up to {max(starts) - min(starts):.3f} s apart{std}{drift}"


class _ClockEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
    offset_s: float = Field(default=0.0, ge=-_MAX_OFFSET_S, le=_MAX_OFFSET_S)
    rate: float = Field(default=1.0, ge=_MIN_RATE, le=_MAX_RATE)
    times_s: tuple[Annotated[float, Field(ge=-_MAX_TIME_S, le=_MAX_TIME_S)], ...] = Field(
        default=(), min_length=1, strict=False
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.times_s and self.model_fields_set > {"times_s"}:
            raise ValueError("give times_s, or offset_s and rate")
        if any(after <= before for before, after in pairwise(self.times_s)):
            raise ValueError("times_s do not increase")
        return self


_Views = Mapping[str, FrameSource]


@dataclass(frozen=True)
class _Evidence:
    """The clocks by one kind of evidence, of the views that have it."""

    kind: str
    clocks: Mapping[str, Clock]
    notices: Sequence[Notice] = ()
    origin: ClockOrigin = ClockOrigin.EARLIEST
    start_ns: int | None = None
    files: tuple[str, ...] = ()

    def used(self, names: Iterable[str], notices: Sequence[Notice]) -> Synchronisation:
        """Return the clocks of all views; those without evidence start at time 0."""
        clocks = tuple(self.clocks.get(name, Clock()) for name in names)
        return Synchronisation(
            clocks=clocks, method=self.kind, notices=tuple(notices), origin=self.origin, start_ns=self.start_ns
        )


_TOGETHER = _Evidence(SAME_START, {})


def synchronise(
    names: Sequence[str],
    sources: Sequence[FrameSource],
    mode: str,
    found_file: Path | None,
    *,
    folder: Path,
    all_names: Sequence[str],
    number_offsets: Sequence[float | None],
) -> Synchronisation:
    """Determine the clock of every view.

    `mode` is a file, or a `SyncMode`: `auto` uses the scene's sync file, else the first of tables of time stamps in
    the `folder`, time codes, time stamps in names and frame numbers that every view has, else those of some views
    with a warning, else a common start. `all_names` are the names that a sync file may contain, also of unused views.
    `number_offsets` are the start times in seconds of numbered image folders, None for other views.

    Raises:
        UsageError: if the sync file is invalid, or the mode is `people` or `motion`.
        InputError: if the views do not support the requested method.
    """
    views = dict(zip(names, sources, strict=True))
    file = Path(mode) if mode not in tuple(SyncMode) else found_file if mode == SyncMode.AUTO else None
    if file is not None:
        return _by_file(file, views, read_sync_file(file, all_names))
    if mode in _METHODS:
        evidence = _METHODS[mode](views)
        return evidence.used(names, evidence.notices)
    if mode != SyncMode.AUTO:
        raise UsageError(f"⟨sync={mode}⟩ does not apply here", "pass ⟨sync=FILE⟩, or another mode")
    tables = _tables(folder, views)
    if len(tables.clocks) == len(views):
        return tables.used(names, tables.notices)
    numbers = {name: start for name, start in zip(names, number_offsets, strict=True) if start is not None}
    found = [tables, _time_codes(views, is_required=False), _stamps_of_names(views), _frame_numbers(views, numbers)]
    for evidence in found:
        if len(evidence.clocks) == len(views):
            text = f"{listed(tables.files)}: not used, as not every view has one; the views have {evidence.kind}"
            unused = [Notice(text)] if tables.files else []
            return evidence.used(names, (*tables.notices, *unused, *evidence.notices))
    return _of_some_views(views, found)


def _of_some_views(views: _Views, found: Sequence[_Evidence]) -> Synchronisation:
    """Use the first evidence by which some views differ, and report it; the other views start with the first."""
    notices = [notice for evidence in found for notice in evidence.notices]
    for evidence in found:
        known = evidence.clocks
        starts = [clock.offset_s for clock in known.values()]
        if not known or (max(starts) == min(starts) and not evidence.files):
            continue
        ends = [known.get(name, Clock()).to_common(source.frame_times)[-1] for name, source in views.items()]
        others = listed([name for name in views if name not in known])
        apart = f" start {max(starts) - min(starts):.3f} s apart" if len(known) > 1 else ""
        differ = f"{listed(known)}{apart} by {evidence.kind}"
        if max(starts) > min(ends):
            notices.append(Notice(f"{differ}, which is not used: the views would not overlap in time"))
            continue
        first = min(known, key=lambda name: known[name].offset_s)
        assumed = f"{others} without it: assumed to start with {first}"
        notices.append(Notice(f"{differ}; {assumed}; ⟨sync=FILE⟩ states the offsets"))
        return replace(evidence.used(views, notices), method=f"{evidence.kind} ({len(known)} of {len(views)} views)")
    notices += _file_start_notice(views) or _named_start_notice(views)
    return _TOGETHER.used(views, notices)


def _tables(folder: Path, views: _Views) -> _Evidence:
    """Return the clocks by tables of time stamps.

    Raises:
        InputError: if a table is damaged, or has not as many times as its view has frames.
    """
    paths = {name: getattr(source, "path", folder) for name, source in views.items()}
    tables, are_certain, notices = find_stamp_tables(folder, paths)
    stamps: dict[str, NDArray[Any]] = {}
    try:
        for name, source in views.items():
            if table := tables.get(name):
                times = table.in_ns(1 / (timing(source.frame_times).fps or 30))
                stamps[name] = _of_frames(times, source, table.label)
    except InputError as error:
        if are_certain:
            raise
        notices.append(Notice(f"{error.marked_message}; they are not used"))
        stamps = {}
    start = min((int(ns[0]) for ns in stamps.values()), default=0)
    clocks = {name: _frame_clock((ns - start) / NS, views[name]) for name, ns in stamps.items()}
    files = tuple(sorted({tables[name].label for name in stamps}))
    start_ns = start if stamps else None
    return _Evidence(f"time stamps in {listed(files)}", clocks, notices, ClockOrigin.STAMPS, start_ns, files)


def _of_frames(times: NDArray[Any], source: FrameSource, label: str) -> NDArray[Any]:
    """Return the times of the usable frames of a view, of those of all frames of the file.

    Raises:
        InputError: if these are not as many as the frames.
    """
    count, positions = len(source.frame_times), getattr(source, "positions", None)
    if len(times) == count:
        return times
    if positions is not None and len(times) > positions[-1] and positions[-1] + 1 > count:
        return np.asarray(times[positions])
    text = f"{label} has {len(times)} time stamps for {counted(count, 'frame')} of {source.label}"
    raise InputError(text, TABLE_HINT)


def _frame_clock(times: NDArray[np.float64], source: FrameSource) -> Clock:
    """Return a clock with the common times of all frames; its rate is that between frames that follow each other."""
    steps, own = np.diff(times), np.diff(source.frame_times)
    usual = steps < DROPPED * np.median(steps) if len(steps) else np.zeros(0, bool)
    rate = float(steps[usual].mean() / own[usual].mean()) if usual.any() else 1.0
    return Clock(
        offset_s=float(times[0]), rate=min(max(rate, _MIN_RATE), _MAX_RATE), frame_times=tuple(times.tolist())
    )


def _by_file(file: Path, views: _Views, clocks: dict[str, Clock]) -> Synchronisation:
    """Return the clocks of a sync file; dates are counted from the first of them.

    Raises:
        UsageError: if only some views have dates.
        InputError: if a view has not as many times as frames.
    """
    notices = _file_notices(file, views, clocks)
    timed = [name for name in views if name in clocks and clocks[name].frame_times]
    start = min((clocks[name].offset_s for name in timed), default=0.0)
    is_dated = start > _MAX_OFFSET_S
    if others := [name for name in views if is_dated and name not in timed]:
        text = f"{file.name}: times_s of {listed(timed)} are dates, {listed(others)} has none"
        raise UsageError(text, "give all views times_s")
    for name in timed:
        times = _of_frames(np.array(clocks[name].frame_times), views[name], f"{file.name}: {name}")
        clocks[name] = _frame_clock(times - start if is_dated else times, views[name])
    origin, start_ns = (ClockOrigin.STAMPS, round(start * NS)) if is_dated else (ClockOrigin.FILE, None)
    return _Evidence(f"file {file.name}", clocks, origin=origin, start_ns=start_ns).used(views, notices)


def _stamps_of_names(views: _Views) -> _Evidence:
    """Return the clocks by time stamps in file names; those since another origin than the first are not compared."""
    stamps: dict[str, Stamps | None] = {name: getattr(source, "stamps", None) for name, source in views.items()}
    first = next((one for one in stamps.values() if one is not None), None)
    starts = {
        name: one.first_ns - first.first_ns
        for name, one in stamps.items()
        if first is not None and one is not None and one.origin == first.origin
    }
    if first is not None and first.origin == "midnight":
        starts = {name: (start + DAY_NS // 2) % DAY_NS - DAY_NS // 2 for name, start in starts.items()}
    clocks = {name: Clock(offset_s=(start - min(starts.values())) / NS) for name, start in starts.items()}
    return _Evidence("time stamps in the file names", clocks, origin=ClockOrigin.STAMPS)


def start_of_clock(sources: Sequence[FrameSource], clocks: Sequence[Clock]) -> int | None:
    """Return the time stamp in nanoseconds of time 0 of the common clock, by the first view with time stamps."""
    for source, clock in zip(sources, clocks, strict=True):
        stamps: Stamps | None = getattr(source, "stamps", None)
        if stamps is not None:
            return stamps.first_ns - round(clock.offset_s * NS)
    return None


def _file_start_notice(views: _Views) -> list[Notice]:
    """Report files whose time stamps begin at different times, as those of one recorder with one clock.

    Short delays are usual, as the sound may begin first, and transport streams begin at any time up to 2 s.
    """
    videos = [(name, source) for name, source in views.items() if isinstance(source, VideoSource)]
    if len(videos) < 2:
        return []
    (first, earliest), *_, (last, latest) = sorted(videos, key=lambda video: video[1].start_s)
    late = latest.start_s - earliest.start_s
    is_usual = earliest.start_s < _USUAL_START_S
    period = 1 / (timing(latest.frame_times).fps or 25)
    is_stream = any(source.path.suffix.lower() in _STREAM_SUFFIXES for _, source in videos)
    if late < (_USUAL_DELAY_S if is_usual else period / 2) or (is_usual and is_stream):
        return []
    if latest.start_s > min(source.start_s + source.frame_times[-1] for _, source in videos):
        return []
    text = f"the time stamps of {first} begin at {earliest.start_s:.3f} s, those of {last} at {latest.start_s:.3f} s"
    return [Notice(f"{text}: not used; if one recorder wrote both, give the offsets by ⟨sync=FILE⟩")]


def _named_start_notice(views: _Views) -> list[Notice]:
    """Report videos whose names state different starts; what is smaller than the last digit is rounding."""
    stems = [source.path.stem for source in views.values() if isinstance(source, VideoSource)]
    starts = sorted((start.ns, stem, start.unit_ns) for stem in stems if (start := date_in(stem)) is not None)
    if len(starts) < max(len(views), 2):
        return []
    (first_ns, first, _), *_, (last_ns, last, _) = starts
    apart = last_ns - first_ns
    if apart <= max(*(unit_ns for _, _, unit_ns in starts), NS // 25):
        return []
    text = f"by their names, the videos start up to {apart / NS:g} s apart ({first}, {last})"
    return [Notice(f"{text}: not used; give the offsets by ⟨sync=FILE⟩, or measure them")]


def _frame_numbers(views: _Views, starts: Mapping[str, float]) -> _Evidence:
    """Return the clocks by the frame numbers of images.

    Images that are as many with other numbers are reported: numbered from 0 and from 1, rather than recorded at
    other times.
    """
    notices: list[Notice] = []
    numbered = [(views[name], start) for name, start in starts.items()]
    folders = [(source, start) for source, start in numbered if isinstance(source, ImageFolderSource)]
    for folder, start in folders[1:]:
        first, offset = folders[0]
        if start != offset and len(folder.files) == len(first.files) and not notices:
            found = ", ".join(f"{source.label} begins with {source.files[0].name}" for source in (first, folder))
            notices.append(Notice(f"{found}: equal numbers are paired; pass ⟨sync=none⟩ to pair the first images"))
    clocks = {name: Clock(offset_s=start) for name, start in starts.items()}
    return _Evidence("frame numbers in the file names", clocks, notices)


def _file_notices(file: Path, names: Iterable[str], clocks: dict[str, Clock]) -> list[Notice]:
    """Name the views without an entry, and those with clocks that no camera has at its own frame rate."""
    texts = []
    if missing := [name for name in names if name not in clocks]:
        texts.append(f"{file.name} has no entry for {listed(missing)}: offset 0 s and rate 1 are used")
    rates = {name: clocks[name].rate for name in names if name in clocks}
    if unusual := [f"{name} ({rate:g})" for name, rate in rates.items() if abs(rate - 1) > _USUAL_DRIFT]:
        texts.append(f"{file.name}: {listed(unusual)}: a rate other than 1 means slow motion or a time lapse")
    return [Notice(text) for text in texts]


def read_sync_file(path: Path, names: Sequence[str]) -> dict[str, Clock]:
    """Read `{"views": {"cam01": {"offset_s": 0.25, "rate": 1.0}, ...}}` from JSON or the same from TOML.

    The table of views may also be at the top level. Both values are optional; `times_s` has the common times of all
    frames instead.

    Raises:
        UsageError: with the line of a syntax error, or the view of an invalid entry.
    """
    document = _parse(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path.name}: line 1: not a table of views", _EXAMPLE)
    views = document.get("views", document)
    if not isinstance(views, dict):
        raise UsageError(f"{path.name}: 'views' is not a table", _EXAMPLE)
    outside = [name for name in names if views is not document and name in document]
    if outside:
        raise UsageError(f"{path.name}: {listed(outside)} is not in 'views'", f"move it into 'views': {_EXAMPLE}")
    clocks = {}
    for written, entry in views.items():
        name = composed(written)
        if name not in names:
            raise unknown_name("view", name, names, f"{path.name}: ")
        if not isinstance(entry, dict):
            raise UsageError(f"{path.name}: view '{name}' is not a table", _EXAMPLE)
        try:
            values = _ClockEntry.model_validate(entry)
        except ValidationError as error:
            raise UsageError(
                f"{path.name}: view '{shortened(name)}': {documents.first_violation(error, 'entry')}",
                f"give offset_s in seconds after another view (not a date), at most {_MAX_OFFSET_S:,.0f}; "
                f"and rate, {_MIN_RATE:g} to {_MAX_RATE:g}",
            ) from error
        times = values.times_s
        clocks[name] = Clock(offset_s=times[0] if times else values.offset_s, rate=values.rate, frame_times=times)
    return clocks


def _parse(path: Path) -> object:
    if is_stamp_table(path, ()):
        raise UsageError(
            f"{path.name} is a table of time stamps, not a sync file",
            "put it into the folder of the scene or the camera, and pass ⟨sync=auto⟩",
        )
    try:
        text = documents.read_text(path)
        return documents.parse_toml(text) if path.suffix.lower() == ".toml" else documents.parse_json(text)
    except DocumentMissingError:
        hint = missing_path_hint(path, f"give a file, or one of: {', '.join(SyncMode)}", tuple(SyncMode))
        raise UsageError(f"sync file '{shortened(str(path))}' does not exist", hint) from None
    except DocumentError as error:
        name = shortened(path.name or str(path))
        raise UsageError(f"{name}: {error}", "correct the file, or write JSON or TOML in UTF-8") from error


def _by_audio(views: _Views) -> _Evidence:
    """Compare the sound of every view with that of the first, and of views that do not match with the others.

    Raises:
        InputError: if a view has no sound or no time stamps, or its sound matches no view with a known clock.
    """
    paths = {}
    for name, source in views.items():
        if not isinstance(source, VideoSource) or not source.has_audio:
            raise InputError(f"{source.label} has no audio track", SYNC_HINT)
        if not source.is_timed:
            text = f"{source.label} has no time stamps, which audio synchronization requires"
            raise InputError(text, "pass ⟨sync=FILE⟩")
        paths[name] = source.path
    known, best, notices = [next(iter(views))], AudioOffset(0.0, 0.0, 1.0), []
    clocks = {known[0]: Clock(std_seconds=0.0)}
    for first in known:
        for name in [name for name in views if name not in clocks]:
            offset = correlate_audio(paths[first], paths[name])
            if offset.doubt:
                best = max(best, offset, key=lambda one: one.score)
                continue
            known.append(name)
            of_first, std = clocks[first], float(np.hypot(clocks[first].std_seconds or 0.0, offset.std_seconds))
            start, rate = of_first.offset_s + of_first.rate * offset.seconds, of_first.rate * offset.rate
            clocks[name] = Clock(offset_s=start, rate=round(rate, 9), std_seconds=std)
            text = f"{name} starts {offset.seconds:+.4f} s after {first} by audio correlation"
            drifts = f", with a rate of {offset.rate:.6f} (+-{offset.rate_std:.6f})" if offset.rate_std > 0 else ""
            notices.append(Notice(f"{text} (score {offset.score:.0f}){drifts}", Level.INFO))
    if missing := [name for name in views if name not in clocks]:
        text = f"audio of {listed(missing)} does not match that of {listed(known)} ({best.doubt})"
        raise InputError(text, SYNC_HINT)
    return _Evidence("audio", clocks, notices)


def _time_codes(views: _Views, *, is_required: bool) -> _Evidence:
    """Return the clocks by the time codes of the views, relative to the earliest.

    Raises:
        InputError: if time codes drift apart; if they are required, also for a view without one.
    """
    starts: dict[str, float] = {}  # in seconds since midnight
    rates: dict[str, float] = {}
    notices: list[Notice] = []
    drifting: dict[bool, tuple[str, str]] = {}
    unstated: set[str] = set()
    day_s = 1.0
    for name, source in views.items():
        code: TimeCode | None = getattr(source, "timecode", None)
        if code is None:
            if is_required:
                raise InputError(f"{source.label} has no embedded time code", SYNC_HINT)
            continue
        measured = timing(source.frame_times).fps or code.fps
        fps = code.fps if code.is_stated or abs(code.fps / measured - 1) < _USUAL_DRIFT else measured
        try:
            start = timecode_seconds(code.text, fps)
        except InputError as error:
            if is_required:
                raise
            notices.append(Notice(f"{source.label}: {error.marked_message}; it is not used"))
            continue
        mark = code.text[8]
        if not starts:
            day_s = timecode_seconds(f"24:00:00{mark}00", fps)
        starts[name], rates[name] = start, fps
        kind = "is of a whole rate" if mark == ":" else "is drop-frame"
        drifting.setdefault(_is_ntsc(fps) and mark == ":", (source.label, kind))
        if not code.is_stated and round(fps) >= _DOUBLE_RATE and int(code.text[9:]) < round(fps) // 2:
            unstated.add(source.label)
    if len(drifting) > 1:
        label, kind = drifting[False]
        text = f"the time code of {label} {kind}, that of {drifting[True][0]} is not: they drift apart"
        raise InputError(text, SYNC_HINT)
    # Differences wrap around at midnight: the shorter one is used.
    first = next(iter(starts.values()), 0.0)
    starts = {name: (start - first + day_s / 2) % day_s - day_s / 2 for name, start in starts.items()}
    earliest = min(starts.values(), default=0.0)
    clocks = {name: Clock(offset_s=one - earliest, std_seconds=0.5 / rates[name]) for name, one in starts.items()}
    if len(unstated) == len(clocks) and any(clock.offset_s % 1 for clock in clocks.values()):
        labels = listed(sorted(unstated))
        notices.append(Notice(f"{labels}: the rate of the time code is not stated; one number per frame is assumed"))
    return _Evidence("time code", clocks, notices)


def timecode_seconds(code: str, fps: float) -> float:
    """Convert `HH:MM:SS:FF` (or `;FF` for drop-frame; up to 4 digits at high rates) to seconds since midnight.

    A measured `fps` is rounded to the nearest integer rate, or to that divided by 1.001: over a frame count since
    midnight, the error of a measured rate would add up to minutes.

    Raises:
        InputError: if the text is not a time code.

    Source: SMPTE ST 12-1: drop-frame counting skips 2 (at 60: 4) numbers each minute except every tenth.
    """
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)([:;.])(\d{2,4})", code)
    if not match:
        raise InputError(f"'{code}' is not a time code", SYNC_HINT)
    hours, minutes, seconds, frames = (int(match[group]) for group in (1, 2, 3, 5))
    nominal = max(round(fps), 1)
    if frames >= nominal:
        raise InputError(f"'{code}' is not a time code of {nominal} numbers per second", SYNC_HINT)
    count = ((hours * 60 + minutes) * 60 + seconds) * nominal + frames
    drops = match[4] != ":" and nominal % 30 == 0
    if drops:
        total_minutes = hours * 60 + minutes
        count -= nominal // 15 * (total_minutes - total_minutes // 10)
    is_ntsc = drops or _is_ntsc(fps)
    return count * (1.001 if is_ntsc else 1.0) / nominal


def _is_ntsc(fps: float) -> bool:
    """Return whether a measured rate is closer to an integer rate divided by 1.001 than to the integer rate."""
    return fps > 0 and abs(fps * 1.001 - round(fps)) < abs(fps - round(fps))


_METHODS: Mapping[str, Callable[[_Views], _Evidence]] = {
    SyncMode.NONE: lambda _: _TOGETHER,
    SyncMode.AUDIO: _by_audio,
    SyncMode.TIMECODE: partial(_time_codes, is_required=True),
}
"""Modes that use one kind of evidence, which every view must have."""
