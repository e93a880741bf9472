"""SIGINT, SIGTERM and SIGHUP: a run stops between two files and exits with 128 + the number of the signal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from page4d.errors import InterruptedRunError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal ended a command. No library takes it for a failure of its own, as it could an `Exception`."""


class StopRequest:
    """The number of the first signal that was received, or None."""

    number: int | None = None


@contextmanager
def handled(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call a function for the first signal; a second one ends the process at once.

    Ignored signals stay ignored, such as SIGHUP under nohup. Outside the main thread nothing changes.
    """
    here = threading.current_thread() is threading.main_thread()
    earlier = {number: signal.getsignal(number) for number in SIGNALS if here}
    earlier = {number: handler for number, handler in earlier.items() if handler not in (signal.SIG_IGN, None)}

    def handle(number: int, _: FrameType | None) -> None:
        for each in earlier:
            signal.signal(each, signal.SIG_DFL)
        on_signal(number)

    try:
        for number in earlier:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def raising_stop(request: StopRequest) -> Iterator[None]:
    """Turn the first signal into `Stopped`, and record it: what a library makes of the exception is unknown."""

    def stop(number: int) -> None:
        request.number = number
        raise Stopped

    with handled(stop):
        yield


@contextmanager
def stops_cleanly() -> Iterator[None]:
    """Turn the first signal into `InterruptedRunError`."""

    def stop(number: int) -> None:
        raise InterruptedRunError("interrupted", "", number)

    with handled(stop):
        yield


@contextmanager
def recorded_stop() -> Iterator[StopRequest]:
    """Record the first signal for a run that polls for it."""
    request = StopRequest()

    def record(number: int) -> None:
        request.number = number

    with handled(record):
        yield request
