"""The jobs of a batch: scenes and their output folders, run one after another, and their outcomes in `batch.json`.

Scenes run in a separate process, so that the batch survives if that is killed.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock

from pydantic import Field

import page4d
from page4d.errors import InterruptedRunError, Observer, Page4DError, Stopped, UsageError, listed
from page4d.io.atomic import real_path, write_bytes_atomic
from page4d.io.json_records import FileModel, format_json, readable
from page4d.io.limits import known_error
from page4d.options import in_options
from page4d.output.record import RunRecord
from page4d.scene.records import Notice

BATCH_FILE = "batch.json"
LESS_MEMORY = "try a smaller ⟨memory_bytes⟩, ⟨chunk⟩ or ⟨long_side⟩; ⟨existing=resume⟩ continues the scene"


@dataclass(frozen=True, kw_only=True)
class SceneJob:
    """A scene and its output folder, which is below the root of the batch and named after the scene."""

    scene: Path
    out: Path

    @property
    def name(self) -> str:
        """Name of the scene in the batch: that of its output folder."""
        return self.out.name


Work = Callable[[SceneJob, Observer], RunRecord]
"""Runs a job; can be sent to another process."""


def scene_jobs(scenes: Sequence[Path], root: Path) -> list[SceneJob]:
    """Assign each scene the output folder `root/<name of the scene>`.

    Raises:
        UsageError: if two scenes have the same name, or an output folder is a scene.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for scene in scenes:
        by_name[real_path(scene).name].append(scene)
    for name, same in by_name.items():
        if len(same) > 1:
            folders = listed([f"'{scene}'" for scene in same])
            raise UsageError(
                f"{len(same)} scenes are called '{name}': {folders}", "run them separately, with different ⟨out⟩"
            )
        if not name:
            raise UsageError(f"'{same[0]}' has no name", "give a folder below it")
    jobs = [SceneJob(scene=same[0], out=root / name) for name, same in by_name.items()]
    for job in jobs:
        if real_path(job.out) == real_path(job.scene):
            raise UsageError(f"the output folder of '{job.scene}' is the scene itself", "give another ⟨out⟩")
    return jobs


class SceneStatus(StrEnum):
    """Status of a scene."""

    COMPLETE = "complete"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    NOT_BEGUN = "not begun"


class SceneOutcome(FileModel):
    """Outcome of a scene: counts of its result, or the error and exit code that it would have had alone."""

    scene: str
    out: str
    status: SceneStatus
    exit_code: int = 0
    error: str = ""
    hint: str = ""
    trace: str = ""
    """Traceback of an internal error."""
    seconds: float = 0.0
    num_times: int | None = None
    num_views: int | None = None
    num_points: int | None = None
    warnings: list[str] = Field(default_factory=list)


class BatchRecord(FileModel):
    """The content of `batch.json`, in the order of the command line."""

    page4d: str = page4d.__version__
    scenes: list[SceneOutcome]

    @property
    def num_failed(self) -> int:
        """Number of scenes without a result."""
        return sum(scene.status is not SceneStatus.COMPLETE for scene in self.scenes)

    def write(self, root: Path) -> None:
        """Write `batch.json` below the root.

        Raises:
            OutputError: if it cannot be written.
        """
        root.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(root / BATCH_FILE, format_json(self.model_dump(mode="json")).encode())


def not_begun(job: SceneJob) -> SceneOutcome:
    """Return the outcome of a scene that has not started."""
    return SceneOutcome(scene=readable(str(job.scene)), out=readable(str(job.out)), status=SceneStatus.NOT_BEGUN)


def outcome_of(job: SceneJob, work: Work, observer: Observer) -> SceneOutcome:
    """Run a job; every failure becomes an outcome."""
    begin = time.perf_counter()
    outcome = not_begun(job)
    changes: dict[str, object]
    try:
        record = work(job, observer)
    except Exception as error:  # also an internal error ends the scene, not the batch
        changes = _failure(error)
    else:
        changes = {
            "status": SceneStatus.COMPLETE,
            "num_times": len(record.times),
            "num_views": len(record.views),
            "num_points": record.counts.points,
            "warnings": record.warnings,
        }
    seconds = round(time.perf_counter() - begin, 3)
    return outcome.model_copy(update={"seconds": seconds, **changes})


def described(error: Page4DError) -> dict[str, object]:
    """Return the texts of an error as `batch.json` records them."""
    return {"error": in_options(error.marked_message), "hint": in_options(error.marked_hint)}


def _failure(error: Exception) -> dict[str, object]:
    """Return the fields of an outcome that describe an error."""
    known = known_error(error)
    if known is not None:
        stopped = isinstance(known, InterruptedRunError)
        status = SceneStatus.INTERRUPTED if stopped else SceneStatus.FAILED
        return {"status": status, "exit_code": known.exit_code, **described(known)}
    return {
        "status": SceneStatus.FAILED,
        "exit_code": 1,
        "error": f"internal error: {traceback.format_exception_only(error)[-1].strip()}",
        "hint": "this is a bug of page4d; please report it with the trace in batch.json",
        "trace": "".join(traceback.format_exception(error)),
    }


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
                "hint": in_options(LESS_MEMORY),
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
            raise InterruptedRunError(
                "the process of the batch has ended", "continue with ⟨existing=resume⟩"
            ) from None


def _serve(connection: Connection, work: Work) -> None:
    """Run jobs until the other end is closed."""
    os.setpgrp()  # Ctrl-C in a terminal then reaches the batch only, which forwards it
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = connection.recv()
            connection.send(outcome_of(job, work, _Sender(connection)))
