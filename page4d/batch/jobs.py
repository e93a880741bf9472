"""The jobs of a batch: scenes and their output folders, run in processes, and their outcomes in `batch.json`.

Scenes run in separate processes, so that the batch survives if one is killed.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock
from typing import cast

from pydantic import Field

import page4d
from page4d.errors import InputError, InterruptedRunError, Notice, Observer, Page4DError, UsageError, listed
from page4d.io.atomic import real_path, write_bytes_atomic
from page4d.io.exhaustion import known_error
from page4d.io.folders import locked
from page4d.io.json_records import FileModel, format_json, read_model, readable
from page4d.options import in_options
from page4d.output.record import RunRecord

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
        UsageError: if a scene is a file, two scenes have the same name, or an output folder is a scene.
    """
    if files := [f"'{scene}'" for scene in scenes if scene.is_file()]:
        raise UsageError(
            f"not a folder: {listed(files)}", "give folders alone; in a shell, takes/*/ leaves files out"
        )
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

    @property
    def name(self) -> str:
        """Name of the scene in the batch: that of its output folder."""
        return Path(self.out).name


class BatchRecord(FileModel):
    """The content of `batch.json`: scenes of earlier batches below the root, then those of the command line."""

    page4d: str = page4d.__version__
    scenes: list[SceneOutcome]

    @property
    def num_failed(self) -> int:
        """Number of scenes without a result."""
        return sum(scene.status is not SceneStatus.COMPLETE for scene in self.scenes)

    def write(self, root: Path, ended: SceneOutcome) -> None:
        """Write `batch.json` below the root after a scene of this batch ended; other batches may write it, too.

        Their outcomes stay, also of scenes that are in both. Where there are no locks and two batches write at once,
        the next scene that ends repeats what was lost.

        Raises:
            OutputError: if it cannot be written.
        """
        own = {scene.name: scene for scene in self.scenes}
        with locked(root / f".{BATCH_FILE}.lock", lambda: None):
            earlier: dict[str, SceneOutcome] = {}
            with suppress(InputError):  # none yet, or damaged
                earlier = {scene.name: scene for scene in read_model(root / BATCH_FILE, BatchRecord).scenes}
            others = {name: scene for name, scene in earlier.items() if name not in own}
            done = {ended.name, *(name for name, scene in own.items() if scene.status is SceneStatus.COMPLETE)}
            before = earlier.get(ended.name)
            if (
                ended.exit_code == UsageError.exit_code
                and before is not None
                and before.status is SceneStatus.COMPLETE
            ):
                done.discard(ended.name)  # its output exists, and was refused
            waits = SceneStatus.NOT_BEGUN
            stays = {name: scene for name, scene in earlier.items() if scene.status is not waits and name not in done}
            record = BatchRecord(scenes=list((others | own | stays).values()))
            write_bytes_atomic(root / BATCH_FILE, format_json(record.model_dump(mode="json")).encode())


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

Report = Callable[[SceneOutcome], None]
"""Takes the outcomes of scenes, in order of completion."""


def in_processes(jobs: Sequence[SceneJob], work: Work, watch: Watch, report: Report, number: int = 1) -> None:
    """Run jobs in `number` processes at once, which keep loaded weights; a process that dies is replaced.

    Raises:
        InterruptedRunError: if a signal ended this process; the current scenes then stop between two files, and are
            reported, too.
    """
    waiting, idle = list(reversed(jobs)), [SceneProcess(work) for _ in range(min(number, len(jobs)))]
    busy: dict[Connection, SceneProcess] = {}
    if number > 1:  # a thread that waits for others of its process leaves the core to another process
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        while waiting or busy:
            while waiting and idle:
                process = idle.pop()
                busy[process.begin(waiting.pop(), watch)] = process
            for connection in cast("list[Connection]", wait(list(busy))):
                outcome = busy[connection].follow()
                if outcome is not None:
                    idle.append(busy.pop(connection))
                    report(outcome)
    except BaseException:
        for process in busy.values():
            process.stop()
        for process in busy.values():
            outcome = process.close()
            if outcome is not None:
                report(outcome)
        raise
    finally:
        for process in (*idle, *busy.values()):
            process.close()


class SceneProcess:
    """A process that runs jobs; it is started for the first job, and restarted if it dies."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._job: SceneJob | None = None
        self._watching = ExitStack()

    def begin(self, job: SceneJob, watch: Watch) -> Connection:
        """Begin a job, watched by an observer, and return the connection from which its messages come."""
        connection = self._open()
        self._observer = self._watching.enter_context(watch(job))
        self._job = job
        with suppress(BrokenPipeError, ConnectionResetError):  # `follow` finds that the process has died
            connection.send(job)
        return connection

    def follow(self) -> SceneOutcome | None:
        """Forward the next message to the observer; return the outcome of the job at its end, None before."""
        assert self._connection is not None
        assert self._job is not None
        try:
            message = self._connection.recv()
        except (EOFError, ConnectionResetError):
            message = self._killed(self._job)
        if isinstance(message, SceneOutcome):
            self._job = None
            self._watching.close()
            return message
        if isinstance(message, Notice):
            self._observer.notice(message)
        else:
            self._observer.progress(*message)
        return None

    def stop(self) -> None:
        """Send SIGTERM; `close` waits until the scene has stopped between two files."""
        if self._process is not None:
            self._process.terminate()

    def close(self) -> SceneOutcome | None:
        """End the process after its job; return the outcome of that, None without one."""
        outcome = None
        self._watching.close()
        if self._connection is not None:
            with suppress(EOFError, OSError):
                while self._job is not None and outcome is None:
                    message = self._connection.recv()
                    outcome = message if isinstance(message, SceneOutcome) else None
            self._connection.close()
        if self._process is not None:
            self._process.join()
        self._process = self._connection = self._job = None
        return outcome

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

    def _killed(self, job: SceneJob) -> SceneOutcome:
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
    with suppress(EOFError, OSError):
        while True:
            job = connection.recv()
            connection.send(outcome_of(job, work, _Sender(connection)))
