"""Execution of scenes one after another in a separate process, so that the batch survives if that is killed."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock

from page4d.batch.jobs import SceneJob, SceneOutcome, SceneStatus, Work, not_begun, outcome_of
from page4d.errors import InterruptedRunError, Stopped
from page4d.run.progress import Observer
from page4d.scene.records import Notice

Watch = Callable[[SceneJob], AbstractContextManager[Observer]]
"""Opens the observer of a scene."""


def in_a_process(jobs: Sequence[SceneJob], work: Work, watch: Watch) -> Iterator[SceneOutcome]:
    """Run jobs one after another in one process, which keeps loaded weights; a process that dies is replaced.

    Raises:
        InterruptedRunError: if a signal ended this process; the current scene then stops between two files.
    """
    process = SceneProcess(work)
    try:
        for job in jobs:
            with watch(job) as observer:
                outcome = process.run(job, observer)
            yield outcome
    finally:
        process.close()


class SceneProcess:
    """A process that runs jobs; it is started for the first job, and restarted if it dies."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def run(self, job: SceneJob, observer: Observer) -> SceneOutcome:
        """Run a job and return its outcome; the observer receives its notices and progress."""
        connection = self._open()
        try:
            connection.send(job)
            return self._follow(connection, observer)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return self._killed(job)
        except (InterruptedRunError, Stopped, KeyboardInterrupt):
            self._stop()
            raise

    def close(self) -> None:
        """End the process, which is idle or already stopping."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join()
        self._process = self._connection = None

    def _open(self) -> Connection:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")  # a fork would share this process's threads and locks
            self._connection, remote = context.Pipe()
            self._process = context.Process(target=_serve, args=(remote, self._work), name="page4d scene")
            # The new process inherits the mask: a terminal sends Ctrl-C to both, and would end it during its imports.
            earlier = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
            remote.close()
        return self._connection

    def _follow(self, connection: Connection, observer: Observer) -> SceneOutcome:
        """Forward messages to the observer until the outcome arrives."""
        while True:
            message = connection.recv()
            if isinstance(message, SceneOutcome):
                return message
            if isinstance(message, Notice):
                observer.notice(message)
            else:
                observer.progress(*message)

    def _killed(self, job: SceneJob) -> SceneOutcome:
        """Return the outcome of a job whose process died."""
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        self._process = self._connection = None
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        likely = ", probably out of memory" if code == -signal.SIGKILL else ""
        return not_begun(job).model_copy(
            update={
                "status": SceneStatus.FAILED,
                "exit_code": 128 - code if code < 0 else code,
                "error": f"the process was ended by {name}{likely}",
                "hint": "try a smaller --memory, --chunk or --size; --resume continues the scene",
            }
        )

    def _stop(self) -> None:
        """Send SIGTERM and wait until the scene has stopped between two files."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(EOFError, OSError):
                while not isinstance(self._connection and self._connection.recv(), SceneOutcome):
                    pass


class _Sender:
    """An observer that sends everything through a pipe; the scene is interrupted if the other end is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = Lock()  # notices and progress come from several threads

    def notice(self, notice: Notice) -> None:
        self._send(notice)

    def progress(self, done: int, total: int, stage: str = "") -> None:
        self._send((done, total, stage) if stage else (done, total))

    def _send(self, message: object) -> None:
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:
            raise InterruptedRunError("the process of the batch has ended", "continue with --resume") from None


def _serve(connection: Connection, work: Work) -> None:
    """Run jobs until the other end is closed."""
    os.setpgrp()  # Ctrl-C in a terminal then reaches the batch only, which forwards it
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = connection.recv()
            connection.send(outcome_of(job, work, _Sender(connection)))
