"""Errors that a user can act on: what was found, what to do, and the exit code that a script can test."""


class Page4DError(Exception):
    """A failure with one line on what was found and one on what to do about it.

    The command line prints the two lines and exits with `exit_code`; no trace is shown.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ShapeError(Page4DError, ValueError):
    """Tensors whose shapes do not belong together: a mistake of the caller's code."""


class UsageError(Page4DError):
    """Options or settings that contradict each other or the scene."""

    exit_code = 2


class InputError(Page4DError):
    """A video, image, mask or calibration that cannot be used as it is."""

    exit_code = 3


class WeightsError(Page4DError):
    """A weights file that is missing, damaged or of another network."""

    exit_code = 4


class OutputError(Page4DError):
    """An output folder or disk that cannot be written."""

    exit_code = 5


class CapabilityError(Page4DError):
    """A missing system library, device or extra."""

    exit_code = 6


class MemoryBudgetError(Page4DError):
    """Memory that does not suffice even for the smallest piece of work."""

    exit_code = 7


class BatchError(Page4DError):
    """Scenes of a batch that failed, while others may have ended well."""

    exit_code = 8


class InterruptedRunError(Page4DError):
    """A run that a signal ended after its current file was finished."""

    exit_code = 130

    def __init__(self, message: str, hint: str = "", signal_number: int = 2) -> None:
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number
