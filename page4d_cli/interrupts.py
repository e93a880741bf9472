"""Ctrl-C and termination end a run between two files, with the exit code that the signal asks for."""

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
    """What a signal asked for: its number, or None as long as none came."""

    number: int | None = None


@contextmanager
def noticed_stop() -> Iterator[StopRequest]:
    """Note the first SIGINT or SIGTERM for a run that ends by itself soon; a second one ends the process at once."""
    request = StopRequest()

    def note(number: int, _: FrameType | None) -> None:
        request.number = number
        for each in earlier:
            signal.signal(each, signal.SIG_DFL)

    earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
