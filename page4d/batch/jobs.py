"""The jobs of a batch: scenes and their output folders, and their outcomes in `batch.json`."""

import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import Field

import page4d
from page4d.errors import InterruptedRunError, UsageError, listed
from page4d.io.atomic import real_path, write_bytes_atomic
from page4d.io.json_records import FileModel, format_json, readable
from page4d.io.limits import known_error
from page4d.output.record import RunRecord
from page4d.run.progress import Observer

BATCH_FILE = "batch.json"


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
                f"{len(same)} scenes are called '{name}': {folders}", "run them separately, with different --out"
            )
        if not name:
            raise UsageError(f"'{same[0]}' has no name", "give a folder below it")
    jobs = [SceneJob(scene=same[0], out=root / name) for name, same in by_name.items()]
    for job in jobs:
        if real_path(job.out) == real_path(job.scene):
            raise UsageError(f"the output folder of '{job.scene}' is the scene itself", "give another --out")
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


def _failure(error: Exception) -> dict[str, object]:
    """Return the fields of an outcome that describe an error."""
    known = known_error(error)
    if known is not None:
        stopped = isinstance(known, InterruptedRunError)
        status = SceneStatus.INTERRUPTED if stopped else SceneStatus.FAILED
        return {"status": status, "exit_code": known.exit_code, "error": known.message, "hint": known.hint}
    return {
        "status": SceneStatus.FAILED,
        "exit_code": 1,
        "error": f"internal error: {traceback.format_exception_only(error)[-1].strip()}",
        "hint": "this is a bug of page4d; please report it with the trace in batch.json",
        "trace": "".join(traceback.format_exception(error)),
    }
