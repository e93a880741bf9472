"""Handlers of SIGINT, SIGTERM and SIGHUP while a body runs, and threads that end at a signal."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

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


def in_threads(
    run: Callable[[_Item, Callable[[], None]], _Result],
    items: Sequence[_Item],
    progress: Callable[[int, int], None],
    steps: int,
    most: int,
) -> list[_Result]:
    """Return the results of `run` for all items, at most `most` at once.

    It also takes a function to call after each of the `steps` of all items, which reports progress, and ends the
    thread when a signal came or another item failed: otherwise these would wait for all items.
    """
    done, lock, is_over = count(1), threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def step() -> None:
        if is_over.is_set():
            raise CancelledError
        with lock:
            progress(next(done), steps)

    def work(item: _Item) -> _Result:
        try:
            return run(item, step)
        except BaseException as error:  # of any item: `map` raises only that of the first one that has not ended
            errors.append(error)
            is_over.set()
            raise

    with ThreadPoolExecutor(max(1, min(most, len(items)))) as threads:
        try:
            return list(threads.map(work, items))
        except CancelledError:
            raise errors[0] from None
        finally:
            is_over.set()
