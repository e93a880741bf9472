"""Two stages of a run at once: one makes things, the other uses them up in a thread of its own."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Handover(Generic[T]):
    """Hands things to a thread that consumes them in order.

    Nothing waits in between: `give` returns when the consumer has taken the thing, and it takes one when it is done
    with the one before. So two are alive at a time, the one that is consumed and the one that is made. A failure of
    the consumer is raised by the next `give`, or at the end. If the body ends in an exception, as with Ctrl-C, what
    was given is consumed before it goes on.
    """

    def __init__(self, consume: Callable[[Iterator[T]], None]) -> None:
        self._consume = consume
        self._boxes: SimpleQueue[list[T]] = SimpleQueue()
        self._wanted = Semaphore(0)
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="write", daemon=True)

    def give(self, thing: T) -> None:
        """Wait until the consumer wants the next thing, and hand it over."""
        self._wanted.acquire()
        if self._failure is not None:
            raise self._failure
        self._boxes.put([thing])

    def __enter__(self) -> "Handover[T]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._boxes.put([])
        try:
            self._thread.join()
        except BaseException:
            self._thread.join()  # a signal: what is under way is finished first
            raise
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._consume(self._taken())
        except BaseException as error:  # it is raised where somebody can handle it
            self._failure = error
            self._wanted.release()

    def _taken(self) -> Iterator[T]:
        while True:
            self._wanted.release()
            box = self._boxes.get()
            if not box:
                return
            yield box.pop()  # and keep no hold of it: it is large
