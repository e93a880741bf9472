"""Execution on a Ray cluster: whole scenes, or the chunks of one scene, in parallel.

Every worker needs page4d, and the scenes under the same paths.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from page4d.batch.jobs import LESS_MEMORY, SceneJob, SceneOutcome, SceneStatus, Work, described, not_begun, outcome_of
from page4d.batch.ray_connection import first_line
from page4d.choices import Preprocess
from page4d.errors import CapabilityError, InputError, Level, Notice, Observer, SilentObserver, counted
from page4d.geometry.pixels import PixelTransform
from page4d.networks.conditioning import Memory
from page4d.networks.layers.execution import reproducible
from page4d.output.record import RunRecord
from page4d.run.chunk_source import ChunkSource
from page4d.run.chunks import Chunk
from page4d.run.journal import Journal
from page4d.run.memory import is_out_of_memory
from page4d.run.plan import RunPlan
from page4d.run.predictor import PredictedChunk, Predictor, prepared
from page4d.scene.batches import BatchReader, open_placed_batches
from page4d.scene.records import Scene
from page4d.signals import deferred_signals
from page4d.stereo.background import Background

MakePredictor = Callable[[Scene], Predictor]
"""Builds the predictor of a scene on a worker; can be sent to another process."""

_WAIT_SECONDS = 0.2

_RETRIES = 2
"""Number of times that work is repeated on another worker if one dies."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """Resources of one worker, a GPU or as many CPU threads as this process uses, and its working folder.

    Relative paths depend on the folder, the last digits of results on the number of threads.
    """

    gpu: bool
    threads: int = field(default_factory=torch.get_num_threads)
    folder: Path = field(default_factory=Path.cwd)

    def options(self) -> dict[str, float]:
        """Return the resources as options of Ray."""
        return {"num_cpus": 1, "num_gpus": 1} if self.gpu else {"num_cpus": self.threads, "num_gpus": 0}

    def max_workers(self, resources: dict[str, float]) -> int:
        """Return the number of workers for which a cluster has resources, at least 1."""
        number = resources.get("GPU", 0) if self.gpu else resources.get("CPU", 1) // self.threads
        return max(1, int(number))

    def prepare(self) -> None:
        """Set folder and threads in the worker's process.

        Raises:
            InputError: if the worker has no such folder.
        """
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise InputError(
                f"a worker of the cluster has no folder '{self.folder}'", "give all workers the same paths"
            ) from error
        torch.set_num_threads(self.threads)


def on_cluster(ray: Any, jobs: Sequence[SceneJob], work: Work, *, gpu: bool) -> Iterator[SceneOutcome]:
    """Run jobs in parallel and yield their outcomes, in order of completion."""
    worker = Worker(gpu=gpu)
    task = ray.remote(max_retries=_RETRIES, **worker.options())(_run_job)
    pending = {task.remote(job, work, worker): job for job in jobs}
    try:
        while pending:
            done = _next_done(ray, list(pending))
            job = pending.pop(done)
            try:
                yield _result(ray, done)
            except ray.exceptions.RayError as error:
                yield _lost(job, error)
    finally:
        for reference in pending:
            ray.cancel(reference)


def _next_done(ray: Any, references: list[Any]) -> Any:
    """Wait until one of several results is there, and return its reference; signals are handled between waits."""
    while True:
        with deferred_signals():
            done, _ = ray.wait(references, num_returns=1, timeout=_WAIT_SECONDS)
        if done:
            return done[0]


def _result(ray: Any, reference: Any) -> Any:
    """Return a result that is there, or raise the error of its worker."""
    with deferred_signals():
        return ray.get(reference)


def _run_job(job: SceneJob, work: Work, worker: Worker) -> SceneOutcome:
    def work_here(job: SceneJob, observer: Observer) -> RunRecord:
        worker.prepare()
        return work(job, observer)

    return outcome_of(job, work_here, SilentObserver())


def _lost(job: SceneJob, error: Exception) -> SceneOutcome:
    found = _lost_workers(error)
    changes = {"status": SceneStatus.FAILED, "exit_code": found.exit_code, **described(found)}
    return not_begun(job).model_copy(update=changes)


def _lost_workers(error: Exception) -> CapabilityError:
    """Return what to report after the last repetition of work whose workers died."""
    return CapabilityError(
        f"workers of the cluster died {_RETRIES + 1} times, possibly out of memory: {first_line(error)}", LESS_MEMORY
    )


@contextmanager
def cluster_chunks(ray: Any, make_predictor: MakePredictor, plan: RunPlan, journal: Journal) -> Iterator[ChunkSource]:
    """Predict the chunks of a run on all workers of a cluster, some chunks ahead."""
    worker = Worker(gpu=plan.predictor.device.type == "cuda")
    found = worker.max_workers(ray.cluster_resources())
    count = min(found, len(plan.chunks))
    if count < min(found, plan.scene.num_times):
        chunks = counted(len(plan.chunks), "chunk")
        text = f"{chunks} on {count} of {counted(found, 'worker')}: a smaller ⟨chunk⟩ uses more"
        journal.notice(Notice(text, Level.STEP))
    actor = ray.remote(max_restarts=_RETRIES, max_task_retries=_RETRIES, **worker.options())(_ChunkWorker)
    passes = (plan.pass_length, plan.background)
    arguments = (plan.scene, plan.transforms, plan.settings.preprocess, make_predictor, worker, passes)
    workers = [actor.remote(*arguments) for _ in range(count)]
    try:
        yield _ClusterChunks(ray, workers, journal).predict
    finally:
        for each in workers:
            ray.kill(each)


class _ClusterChunks:
    """Distributes chunks to the workers in turn and returns the predictions in order.

    Each worker has at most one chunk and one more waits to be stitched, so memory does not grow with the capture.
    """

    def __init__(self, ray: Any, workers: list[Any], journal: Journal) -> None:
        self._ray = ray
        self._workers = workers
        self._journal = journal
        self._pending: dict[Chunk, Any] = {}
        self._turn = 0
        self._ahead = len(workers)

    def predict(self, chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
        wanted = [chunk, *coming[: self._ahead]]
        for stale in self._pending.keys() - set(wanted):  # the plan has changed
            self._ray.cancel(self._pending.pop(stale))
        for each in wanted:
            if each not in self._pending:
                self._pending[each] = self._workers[self._turn].predict.remote(
                    each, memory if each == chunk else None
                )
                self._turn = (self._turn + 1) % len(self._workers)
        with self._journal.timed("predict"):
            found = self._fetch(self._pending.pop(chunk))
        if isinstance(found, Exception):
            raise found
        predicted: PredictedChunk = found
        if predicted.memory is not None:
            self._ahead = 0  # a network with memory depends on the previous chunk
            while self._pending:
                self._ray.cancel(self._pending.popitem()[1])
        return predicted

    def _fetch(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return _result(self._ray, _next_done(self._ray, [reference]))
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            raise _lost_workers(error) from error


class _ChunkWorker:
    """Decodes and predicts chunks in a process of the cluster."""

    def __init__(
        self,
        scene: Scene,
        transforms: tuple[PixelTransform, ...],
        preprocess: Preprocess,
        make_predictor: MakePredictor,
        worker: Worker,
        passes: tuple[int | None, Background | None],
    ) -> None:
        self._scene, self._transforms, self._preprocess = scene, transforms, preprocess
        self._make_predictor, self._worker, self._passes = make_predictor, worker, passes
        self._predictor: Predictor | None = None
        self._stack = ExitStack()
        self._reader: BatchReader | None = None
        self._start = 0

    def predict(self, chunk: Chunk, memory: Memory | None) -> PredictedChunk | Exception:
        """Predict a chunk; if it does not fit in memory, the exception is returned."""
        if self._predictor is None:  # not in __init__, whose errors Ray wraps in its own
            self._worker.prepare()
            self._predictor = prepared(self._make_predictor(self._scene), *self._passes)
        try:
            batch = self._reader_at(chunk.start).read(chunk.start, chunk.stop)
            with reproducible(self._predictor.device):
                return self._predictor.predict(batch, memory)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return MemoryError(str(error))

    def _reader_at(self, start: int) -> BatchReader:
        """Return a reader that has not passed an instant: readers only move forward."""
        if self._reader is None or start < self._start:
            self._stack.close()
            opened = open_placed_batches(self._scene, self._transforms, self._preprocess)
            self._reader = self._stack.enter_context(opened)
        self._start = start
        return self._reader
