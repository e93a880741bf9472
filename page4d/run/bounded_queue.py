"""A bounded queue between two stages: one item is consumed in a thread while the next one is produced."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Semaphore, Thread
from types import TracebackType
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """Passes items to a thread that consumes them in order.

    `put` blocks until the consumer takes the item, which it does when it is done with the previous one: at most two
    items are alive. A failure of the consumer is raised by the next `put`, or at the end. If the body raises, as with
    Ctrl-C, the items put so far are consumed first. The thread uses as many cores as that which creates the queue.
    """

    def __init__(self, consume: Callable[[Iterator[T]], None]) -> None:
        self._consume = consume
        self._items: SimpleQueue[list[T]] = SimpleQueue()
        self._demand = Semaphore(0)
        self._failure: BaseException | None = None
        self._num_threads = torch.get_num_threads()
        self._thread = Thread(target=self._run, name="write", daemon=True)

    def put(self, item: T) -> None:
        """Wait for the consumer and pass an item to it."""
        self._demand.acquire()
        if self._failure is not None:
            raise self._failure
        self._items.put([item])

    def __enter__(self) -> "BoundedQueue[T]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if self._failure is not None and error is None:
            raise self._failure

    def end(self) -> None:
        """Wait until what was put is consumed; call it again if a signal ended the first call."""
        if self._thread.is_alive():
            self._items.put([])
            self._thread.join()

    def _run(self) -> None:
        # A new thread takes the number that any thread has set last, such as 1 in refinement.
        torch.set_num_threads(self._num_threads)
        try:
            self._consume(self._taken())
        except BaseException as error:  # raised in the producer's thread
            self._failure = error
            self._demand.release()

    def _taken(self) -> Iterator[T]:
        while True:
            self._demand.release()
            box = self._items.get()
            if not box:
                return
            yield box.pop()  # without a reference here: items are large
