"""Synchronisation: the clock of every view, from a file, embedded time codes, sound, or the same start."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from page4d.errors import InputError, UsageError
from page4d.scene.audio import MAX_RIVAL, MIN_SCORE, correlate_sound
from page4d.scene.records import Clock, FrameSource, Level, Notice
from page4d.scene.timeline import timing
from page4d.scene.video import VideoSource

MODES = ("auto", "none", "audio", "timecode")
"""What `--sync` takes beside a file."""

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Synchronisation:
    """One clock per view, and how they were found."""

    clocks: tuple[Clock, ...]
    method: str
    notices: tuple[Notice, ...] = ()


class _ClockEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
    offset_s: float = 0.0
    rate: float = Field(default=1.0, gt=0)


def synchronise(
    names: Sequence[str],
    sources: Sequence[FrameSource],
    mode: str,
    found_file: Path | None,
    *,
    all_names: Sequence[str] | None = None,
    number_offsets: Sequence[float] | None = None,
) -> Synchronisation:
    """Find the clock of every view.

    `mode` is a file, or one of `MODES`: `auto` takes the scene's own sync file, else time codes if every view has
    one, else frame numbers if every view is a numbered image folder, else the same start, and says which. `all_names`
    are the names a sync file may mention (views that are not used this time); `number_offsets` are the starts in
    seconds of numbered image folders, if all views are such.

    Raises:
        UsageError: for a sync file that is wrong.
        InputError: if the method asked for is not possible with these views.
    """
    file = Path(mode) if mode not in MODES else found_file if mode == "auto" else None
    if file is not None:
        named = read_sync_file(file, all_names or names)
        return Synchronisation(
            clocks=tuple(named.get(name, Clock()) for name in names),
            method=f"file {file.name}",
            notices=_unnamed(names, named, file),
        )
    if mode == "audio":
        return _by_audio(names, sources)
    codes = [getattr(source, "timecode", None) for source in sources]
    if mode == "timecode" or (mode == "auto" and all(codes)):
        return _by_timecode(sources, codes)
    if mode == "auto" and number_offsets is not None:
        clocks = tuple(Clock(offset_s=offset) for offset in number_offsets)
        return Synchronisation(clocks=clocks, method="frame numbers in the file names")
    start = Notice("views are taken to start together (no sync file, time code or frame numbers)", Level.INFO)
    return Synchronisation(
        clocks=(Clock(),) * len(names), method="same start", notices=() if mode == "none" else (start,)
    )


def read_sync_file(path: Path, names: Sequence[str]) -> dict[str, Clock]:
    """Read `{"views": {"cam01": {"offset_s": 0.25, "rate": 1.0}, ...}}` from JSON or the same from TOML.

    The table of views may also stand at the top. Both values are optional.

    Raises:
        UsageError: with the line for bad syntax, or the view for a bad or unknown entry.
    """
    document = _parse(path)
    views = document.get("views", document)
    if not isinstance(views, Mapping):
        raise UsageError(f"{path.name}: 'views' is not a table", 'write {"views": {"cam01": {"offset_s": 0.25}}}')
    clocks = {}
    for name, entry in views.items():
        if name not in names:
            raise UsageError(
                f"{path.name} names '{name}', videos are {', '.join(names)}", "name the views without suffix"
            )
        try:
            values = _ClockEntry.model_validate(entry)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "entry"
            raise UsageError(
                f"{path.name}: view '{name}': {key}: {first['msg']}",
                "give offset_s and rate as finite numbers, rate > 0",
            ) from error
        clocks[name] = Clock(offset_s=values.offset_s, rate=values.rate)
    return clocks


def _parse(path: Path) -> dict[str, Any]:
    if not path.is_file():
        choices = ", ".join(MODES)
        raise UsageError(f"sync file '{path}' does not exist", f"give a file, or one of: {choices}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
        document = (
            tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, parse_constant=_refuse_constant)
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not a text file", "write JSON or TOML in UTF-8") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path.name} line {error.lineno}: {error.msg}", "correct the JSON") from error
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"line (\d+)", str(error))
        line = where[1] if where else text.count("\n") + 1
        raise UsageError(f"{path.name} line {line}: {error}", "correct the TOML") from error
    except _ConstantError as error:
        line = text[: text.find(str(error))].count("\n") + 1
        raise UsageError(f"{path.name} line {line}: {error} is not a number", "give finite numbers") from error
    except ValueError as error:
        raise UsageError(f"{path.name}: {error}", "give finite numbers") from error
    except RecursionError as error:
        raise UsageError(f"{path.name} is nested too deeply", "write a flat table of views") from error
    if not isinstance(document, dict):
        raise UsageError(
            f"{path.name} line 1: not a table of views", 'write {"views": {"cam01": {"offset_s": 0.25}}}'
        )
    return document


class _ConstantError(ValueError):
    """NaN or Infinity in JSON."""


def _refuse_constant(text: str) -> float:
    raise _ConstantError(text)


def _unnamed(names: Sequence[str], clocks: Mapping[str, Clock], file: Path) -> tuple[Notice, ...]:
    missing = [name for name in names if name not in clocks]
    if not missing:
        return ()
    return (Notice(f"{file.name} does not name {', '.join(missing)}: offset 0, rate 1 used"),)


def _by_audio(names: Sequence[str], sources: Sequence[FrameSource]) -> Synchronisation:
    videos = []
    for source in sources:
        if not isinstance(source, VideoSource) or not source.has_audio:
            raise InputError(f"{source.label} has no audio track", "use --sync FILE or --sync none")
        if not source.is_timed:
            raise InputError(
                f"{source.label} has no time stamps, so sound cannot place its frames", "use --sync FILE"
            )
        videos.append(source)
    clocks, notices = [Clock()], []
    for source in videos[1:]:
        lag = correlate_sound(videos[0].path, source.path)
        if lag.score < MIN_SCORE:
            score = f"score {lag.score:.0f}, need {MIN_SCORE:g}"
            raise InputError(
                f"audio of {names[0]} and {source.path.stem} does not match ({score})",
                "use --sync FILE with offsets, or --sync none",
            )
        if lag.rival > MAX_RIVAL:
            raise InputError(
                f"audio of {names[0]} and {source.path.stem} matches at several shifts (a hum or a loop)",
                "use --sync FILE with offsets, or --sync none",
            )
        clocks.append(Clock(offset_s=lag.seconds))
        text = f"{source.path.stem} starts {lag.seconds:+.4f} s after {names[0]} by sound (score {lag.score:.0f})"
        notices.append(Notice(text, Level.INFO))
    return Synchronisation(clocks=tuple(clocks), method="audio", notices=tuple(notices))


def _by_timecode(sources: Sequence[FrameSource], codes: Sequence[str | None]) -> Synchronisation:
    seconds = []
    for source, code in zip(sources, codes, strict=True):
        if code is None:
            raise InputError(f"{source.label} has no embedded time code", "use --sync FILE or --sync none")
        seconds.append(timecode_seconds(code, timing(source.frame_times).fps or 25.0))
    # A recording that ran past midnight is no day away from the others: differences are taken the short way round.
    ahead = [(value - seconds[0] + _DAY_S / 2) % _DAY_S - _DAY_S / 2 for value in seconds]
    clocks = tuple(Clock(offset_s=value - min(ahead)) for value in ahead)
    return Synchronisation(clocks=clocks, method="time code")


def timecode_seconds(code: str, fps: float) -> float:
    """Convert `HH:MM:SS:FF` (or `;FF` for drop-frame) to seconds since midnight.

    A measured `fps` is taken for the whole rate that is nearest, or for that divided by 1.001: the count since
    midnight is so large that the rounding of time stamps would move a clip by minutes.

    Raises:
        InputError: if the text is not a time code.

    Source: SMPTE ST 12-1: drop-frame counting leaves out 2 (at 60: 4) numbers each minute except every tenth.
    """
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)([:;.])(\d\d)", code)
    if not match:
        raise InputError(f"'{code}' is not a time code", "use --sync FILE or --sync none")
    hours, minutes, seconds, frames = (int(match[group]) for group in (1, 2, 3, 5))
    nominal = max(round(fps), 1)
    count = ((hours * 60 + minutes) * 60 + seconds) * nominal + frames
    drops = match[4] != ":" and nominal % 30 == 0
    if drops:
        total_minutes = hours * 60 + minutes
        count -= nominal // 15 * (total_minutes - total_minutes // 10)
    is_ntsc = drops or abs(fps * 1.001 - nominal) < abs(fps - nominal)
    return count * (1.001 if is_ntsc else 1.0) / nominal
