"""Handlers of SIGINT, SIGTERM and SIGHUP while a body runs."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call a function for the first signal; a second one ends the process at once.

    Ignored signals stay ignored, such as SIGHUP under nohup. The earlier handlers are restored, even if the body
    replaced them. Outside the main thread nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in _SIGNALS if is_main}
    earlier = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}

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
def deferred_signals() -> Iterator[None]:
    """Deliver the first signal after the body: calls of Ray, and threads of SciPy, cannot be left by an exception."""
    received: list[int] = []
    try:
        with handled(received.append):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])
