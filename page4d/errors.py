"""Errors and notices for the user, and who receives them; the form of numbers and lists in messages.

A message names an option by its field: "⟨mesh_voxel=0.1⟩ without ⟨mesh⟩". Python shows "mesh_voxel=0.1 without mesh";
the command line and the files of an output have the options of the command line (`page4d.options.in_options`).
"""

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Protocol

OPTION = re.compile(r"⟨(\w+)(?:=([^⟩]*))?⟩")
"""An option in a message: its field, and its value if there is one; a placeholder of a value is in capitals."""

_BARE = re.compile(r"True|False|[A-Z]+(?:\.json)?|[-+0-9.e]+|'.*'", re.DOTALL)


class Page4DError(Exception):
    """A failure with one line on what was found and one line on what to do about it.

    `message` and `hint` name options as Python does; `marked_message` and `marked_hint`, of which other messages are
    made, have them in brackets. `option` is the field at fault, by default the first one in the message. The command
    line prints the two lines without a traceback and exits with `exit_code`.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "", option: str | None = None) -> None:
        self.message, self.hint = in_python(message), in_python(hint)
        self.marked_message, self.marked_hint = message, hint
        found = OPTION.search(message)
        self.option = option or (found[1] if found else None)
        super().__init__(self.message)


class ShapeError(Page4DError, ValueError):
    """Tensors with incompatible shapes: an error in the calling code."""


class ImageSizeError(ShapeError):
    """Images of a size that a network does not take."""

    exit_code = 2


class UsageError(Page4DError):
    """Options or settings that contradict each other or the scene."""

    exit_code = 2


class InputError(Page4DError):
    """An unusable video, image, mask or calibration."""

    exit_code = 3


class WeightsError(Page4DError):
    """A weights file that is missing, damaged or made for another network."""

    exit_code = 4


class OutputError(Page4DError):
    """An output folder or disk that cannot be written."""

    exit_code = 5


class CapabilityError(Page4DError):
    """A missing system library, device or extra."""

    exit_code = 6


class MemoryBudgetError(Page4DError):
    """Too little memory for the smallest unit of work."""

    exit_code = 7


class BatchError(Page4DError):
    """A batch in which at least one scene failed."""

    exit_code = 8


class InterruptedRunError(Page4DError):
    """Work stopped by a signal: of a run after its current file was completed."""

    exit_code = 130

    def __init__(
        self, message: str = "interrupted", hint: str = "repeat the command", signal_number: int = 2
    ) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number


class Stopped(BaseException):
    """A signal ended the work. It is no `Exception`: neither a reader nor a library takes it for a damaged file."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number


def in_python(text: str) -> str:
    """Write the options in a message as keywords of Python."""
    return OPTION.sub(_keyword, text)


def _keyword(option: re.Match[str]) -> str:
    field, value = option.groups()
    if value is None:
        return field
    if span := re.fullmatch(r"(-?\d+):(-?\d+)", value):
        value = f"{'range' if field == 'instants' else ''}({span[1]}, {span[2]})"
    elif not _BARE.fullmatch(value):
        value = repr(value.split(",") if field in ("views", "hold_out") else value)
    return f"{field}={value}"


def counted(number: int, noun: str) -> str:
    """Format a count with its noun for a message: "1 frame", "2 frames"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent_text(share: float | None, digits: int = 0) -> str:
    """Return a share in percent, "-" if it is unknown."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def number_text(value: float | None, form: str) -> str:
    """Return a number in a format, "-" if it is unknown."""
    return "-" if value is None else form.format(value)


def human_size(num_bytes: float) -> str:
    """Format a number of bytes with three significant digits."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"


def shortened(text: str, limit: int = 80) -> str:
    """Shorten a text of a file, such as a name, for a message: the middle of a longer one is left out."""
    return text if len(text) <= limit else f"{text[: limit - limit // 3 - 3]}...{text[-(limit // 3) :]}"


def listed(names: Collection[object], limit: int = 12, separator: str = ", ") -> str:
    """Format names for a message: "cam01, cam02", or "cam01, cam02, ... (10,000 in all)" beyond `limit`."""
    text = separator.join(shortened(str(name)) for name in islice(names, limit))
    return text if len(names) <= limit else f"{text}{separator}... ({len(names):,} in all)"


def did_you_mean(name: str, known: Iterable[str], rest: str) -> str:
    """Return a hint on a name that does not exist: the most similar of the `known` ones, if any is, and a `rest`."""
    similar = similar_names(name, known)
    return f"did you mean {similar[0]}? {rest}" if similar else rest


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the most similar of the `known` names, none if all differ by more than a few characters."""
    by_key = {one.casefold().replace("_", "-"): one for one in known}
    return [by_key[key] for key in get_close_matches(name.casefold().replace("_", "-"), by_key, n=1)]


def unknown_name(kind: str, name: object, known: Collection[str], where: str = "") -> UsageError:
    """Return the error of a name that none of the `known` ones has; `where` precedes the message."""
    similar = did_you_mean(str(name), known, "")
    hint = f"{similar}choose from {listed(known, 12 if similar else 40)}"
    return UsageError(f"{where}no {kind} is called '{shortened(str(name))}'", hint)


class Level(StrEnum):
    """Severity of a notice."""

    INFO = "info"
    STEP = "step"
    """Start of a step that takes a while."""

    WARNING = "warning"


@dataclass(frozen=True)
class Notice:
    """A message to the user that does not stop the run; options are marked as in errors."""

    marked_text: str
    level: Level = Level.WARNING

    @property
    def text(self) -> str:
        """The message, with options named as in Python."""
        return in_python(self.marked_text)


Notify = Callable[[Notice], None]

Progress = Callable[[int, int], None]
"""Receives the steps done, and all steps."""


class Observer(Protocol):
    """Receives the notices and the progress of a run, of a registration, or of weights that are fetched."""

    def notice(self, notice: Notice) -> None:
        """Receive a message to the user."""

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Receive the instants written so far, or the work done of a stage: its steps, or bytes that are fetched."""


class SilentObserver:
    """Ignores everything; `run.json` holds the warnings of a run."""

    def notice(self, notice: Notice) -> None:
        """Ignore a notice."""

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Ignore progress."""


_INTERVAL_S = 15.0
"""Seconds between lines of progress."""


class StderrObserver:
    """Writes notices, but no informational ones, and a line of progress at intervals to stderr."""

    def __init__(self) -> None:
        self._written_at = time.monotonic()

    def notice(self, notice: Notice) -> None:
        """Write a warning or a step."""
        if notice.level is not Level.INFO:
            self._write(f"{'warning: ' if notice.level is Level.WARNING else ''}{notice.text}")

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Write the instants done, or the share of a stage, unless a line was written a moment ago."""
        if time.monotonic() - self._written_at >= _INTERVAL_S or (done == total and not stage):
            self._write(f"{stage} {done / max(total, 1):.0%}" if stage else f"{done}/{total} instants")

    def _write(self, text: str) -> None:
        self._written_at = time.monotonic()
        if sys.stderr is not None:  # as in an application without a console
            sys.stderr.write(f"page4d: {text}\n")


ON_STDERR = StderrObserver()


_MOST_ALIKE = 4


def one_per_fact(notices: Iterable[Notice], views: Iterable[str]) -> tuple[Notice, ...]:
    """Join more than four notices that differ in the names of views and in numbers alone: one line per fact.

    The first is kept in full, with the views that the others name.
    """
    longest_first = sorted(views, key=len, reverse=True)
    names = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w-])" for name in longest_first) or r"(?!)")
    facts = [(re.sub(r"\d[\d.,]*", "0", names.sub("", one.marked_text)), one.level, one) for one in notices]
    alike: dict[tuple[str, Level], list[Notice]] = defaultdict(list)
    for text, level, notice in facts:
        alike[text, level].append(notice)
    joined = []
    for text, level, notice in facts:
        first, *others = alike[text, level]
        if len(others) < _MOST_ALIKE or not names.search(first.marked_text):
            joined.append(notice)
        elif notice is first:
            named = [" and ".join(dict.fromkeys(names.findall(other.marked_text)[:2])) for other in others]
            joined.append(Notice(f"{notice.marked_text}; likewise {listed(named, 3)}", level))
    return tuple(joined)
