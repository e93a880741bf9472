"""Messages to the user that do not stop the work."""

from dataclasses import dataclass
from enum import StrEnum


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
