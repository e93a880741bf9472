"""Stop requests and the time budget before the first step of a run is complete."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from page4d.errors import InterruptedRunError, Page4DError, UsageError

_INTERVAL_S = 0.2


class _End(BaseException):
    """End of the run; not an `Exception`, which libraries catch as a failure of their own."""

    def __init__(self, error: Page4DError) -> None:
        super().__init__(error.message)
        self.error = error


class FirstStep:
    """Ends a run by an exception until its first step is complete: there is nothing to save.

    Later the loop polls between steps. The first batch may take minutes to decode or render: meanwhile a timer signal
    polls, in the main thread only.
    """

    def __init__(self, stop: Callable[[], int | None] = lambda: None) -> None:
        self._stop = stop
        self._seconds, self._deadline = math.inf, math.inf
        self._earlier: tuple[Any, tuple[float, float]] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Poll while the body runs, up to `end`.

        Raises:
            InterruptedRunError: if a stop was requested.
            UsageError: if the time budget is used up.
        """
        self._begin()
        try:
            yield
        except _End as end:
            raise end.error from None
        finally:
            self.end()

    def _begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGALRM, self._poll)
            self._earlier = (handler, signal.setitimer(signal.ITIMER_REAL, _INTERVAL_S, _INTERVAL_S))

    def limit(self, seconds: float, started: float) -> None:
        """Set the time budget, counted from `started` on the monotonic clock."""
        self._seconds, self._deadline = seconds, started + seconds

    def end(self) -> None:
        """Stop polling."""
        if self._earlier is not None:
            handler, timer = self._earlier
            self._earlier = None
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, *timer)

    def _poll(self, _: int, __: FrameType | None) -> None:
        number = self._stop()
        if number is not None:
            self.end()
            raise _End(
                InterruptedRunError(
                    "interrupted before the first step was complete", "nothing was saved: repeat the command", number
                )
            )
        if time.monotonic() > self._deadline:
            self.end()
            found = f"no step was complete after {self._seconds:g} s"
            raise _End(UsageError(found, "give more time, smaller batches or fewer scenes"))
