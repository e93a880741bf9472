"""Signals that arrive inside a library which cannot be left by an exception, as the calls of Ray."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Deliver the first signal after the body, to the handler of before; a second one ends the process at once.

    The handlers of before are restored, even if the body replaced them. Outside the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def record(number: int, _: FrameType | None) -> None:
        if received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)

    found = {number: signal.getsignal(number) for number in SIGNALS}
    earlier = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in earlier:
            signal.signal(number, record)
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
