"""Signals that stop a command.

At SIGINT, SIGTERM and SIGHUP a run stops between two files and exits with 128 + the number of the signal.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from page4d.errors import InterruptedRunError, Stopped
from page4d.signals import handled


class StopRequest:
    """The number of the first signal that was received, or None."""

    number: int | None = None


_requests: list[StopRequest] = []
"""Those whose signals become exceptions, the innermost last."""


@contextmanager
def raising_stop(request: StopRequest) -> Iterator[None]:
    """Turn the first signal into `Stopped`, and record it: a library may replace the exception."""
    raise_lost_stop()

    def stop(number: int) -> None:
        request.number = number
        raise Stopped(number)

    _requests.append(request)
    try:
        with handled(stop):
            yield
    finally:
        _requests.remove(request)


def raise_lost_stop() -> None:
    """Raise `Stopped` again if a library swallowed it, as torch does when it imports NumPy first."""
    for request in _requests:
        if request.number is not None:
            raise Stopped(request.number)


@contextmanager
def stops_cleanly() -> Iterator[StopRequest]:
    """Turn the first signal into `Stopped` in the body, and that into `InterruptedRunError`; the signal is recorded.

    An error that a library raised in its place is turned into `InterruptedRunError` too.
    """
    request = StopRequest()
    try:
        with raising_stop(request):
            yield request
    except (Stopped, Exception) as error:
        if request.number is None or isinstance(error, InterruptedRunError):
            raise
        raise InterruptedRunError(signal_number=request.number) from error


@contextmanager
def recorded_stop() -> Iterator[StopRequest]:
    """Record the first signal for a run that polls for it."""
    raise_lost_stop()
    request = StopRequest()

    def record(number: int) -> None:
        request.number = number

    with handled(record):
        yield request
