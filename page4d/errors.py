"""Errors and notices for the user: message, hint and exit code; and the form of counts and lists in messages."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice


class Page4DError(Exception):
    """A failure with one line on what was found and one line on what to do about it.

    The command line prints the two lines without a traceback and exits with `exit_code`.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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
    """A run stopped by a signal, after its current file was completed."""

    exit_code = 130

    def __init__(self, message: str, hint: str = "", signal_number: int = 2) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number


class Stopped(BaseException):
    """A signal ended the work. It is no `Exception`: neither a reader nor a library takes it for a damaged file."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def counted(number: int, noun: str) -> str:
    """Format a count with its noun for a message: "1 frame", "2 frames"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str, limit: int = 80) -> str:
    """Shorten a text of a file, such as a name, for a message: the middle of a longer one is left out."""
    return text if len(text) <= limit else f"{text[: limit - limit // 3 - 3]}...{text[-(limit // 3) :]}"


def listed(names: Collection[object], limit: int = 12, separator: str = ", ") -> str:
    """Format names for a message: "cam01, cam02", or "cam01, cam02, ... (10,000 in all)" beyond `limit`."""
    text = separator.join(shortened(str(name)) for name in islice(names, limit))
    return text if len(names) <= limit else f"{text}{separator}... ({len(names):,} in all)"


class Level(StrEnum):
    """Severity of a notice."""

    INFO = "info"
    STEP = "step"
    """Start of a step that takes a while."""

    WARNING = "warning"


@dataclass(frozen=True)
class Notice:
    """A message to the user that does not stop the run."""

    text: str
    level: Level = Level.WARNING
