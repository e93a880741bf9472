"""SIGINT and SIGTERM: a run stops between two files and exits with 128 + the number of the signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from page4d.errors import InterruptedRunError


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `InterruptedRunError`; a second one ends the process at once."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in earlier:
            signal.signal(each, signal.SIG_DFL)
        raise InterruptedRunError("interrupted", "", number)

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class StopRequest:
    """The number of the signal that was received, or None."""

    number: int | None = None


@contextmanager
def recorded_stop() -> Iterator[StopRequest]:
    """Record the first SIGINT or SIGTERM for a run that polls for it; a second one ends the process at once."""
    request = StopRequest()

    def record(number: int, _: FrameType | None) -> None:
        request.number = number
        for each in earlier:
            signal.signal(each, signal.SIG_DFL)

    earlier = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
