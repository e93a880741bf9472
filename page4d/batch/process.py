"""Scenes one after another in a process of their own, so that not even a kill of it ends the batch."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock

from page4d.batch.jobs import SceneJob, Work
from page4d.batch.outcome import SceneOutcome, SceneStatus, not_begun, outcome_of
from page4d.errors import InterruptedRunError
from page4d.inference.progress import Observer
from page4d.scene.records import Notice

Watch = Callable[[SceneJob], AbstractContextManager[Observer]]
"""Makes what hears of a scene while it is worked on."""


def in_a_process(jobs: Sequence[SceneJob], work: Work, watch: Watch) -> Iterator[SceneOutcome]:
    """Do one job after the other; a process that dies is replaced, what it loaded is kept as long as it lives.

    Raises:
        InterruptedRunError: if a signal ended this process; the scene under way is then stopped between two files.
    """
    process = SceneProcess(work)
    try:
        for job in jobs:
            with watch(job) as observer:
                outcome = process.do(job, observer)
            yield outcome
    finally:
        process.close()


class SceneProcess:
    """A process that does jobs; it is started for the first, and again if it died."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def do(self, job: SceneJob, observer: Observer) -> SceneOutcome:
        """Do a job and return how it ended; meanwhile the observer hears of it."""
        connection = self._open()
        try:
            connection.send(job)
            return self._follow(connection, observer)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return self._killed(job)
        except InterruptedRunError:
            self._stop()
            raise

    def close(self) -> None:
        """End the process; it is idle or already stopping."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join()
        self._process = self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")  # a fork would share this process's threads and locks
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._work), name="page4d scene")
            self._process.start()
            theirs.close()
        return self._connection

    def _follow(self, connection: Connection, observer: Observer) -> SceneOutcome:
        while True:
            said = connection.recv()
            if isinstance(said, SceneOutcome):
                return said
            if isinstance(said, Notice):
                observer.notice(said)
            else:
                observer.progress(*said)

    def _killed(self, job: SceneJob) -> SceneOutcome:
        """Say what ended the process."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        self._process = self._connection = None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        likely = ", probably for want of memory" if code == -signal.SIGKILL else ""
        return not_begun(job).model_copy(
            update={
                "status": SceneStatus.FAILED,
                "exit_code": 128 - code if code < 0 else code,
                "error": f"its process was ended by {name}{likely}",
                "hint": "try a smaller --memory, --chunk or --size; --resume continues it",
            }
        )

    def _stop(self) -> None:
        """Pass a signal on: the scene ends between two files."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(EOFError, OSError):
                while not isinstance(self._connection and self._connection.recv(), SceneOutcome):
                    pass


class _Sender:
    """An observer at the other end of a pipe. If nobody listens any more, the scene ends between two files."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = Lock()  # notices and progress come from several threads

    def notice(self, notice: Notice) -> None:
        self._send(notice)

    def progress(self, done: int, total: int) -> None:
        self._send((done, total))

    def _send(self, said: object) -> None:
        try:
            with self._sending:
                self._connection.send(said)
        except OSError:
            raise InterruptedRunError("the batch is gone", "continue with --resume") from None


def _serve(connection: Connection, work: Work) -> None:
    """Do jobs until the other end is closed."""
    os.setpgrp()  # Ctrl-C in a terminal reaches the batch alone, which passes it on
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = connection.recv()
            connection.send(outcome_of(job, work, _Sender(connection)))
