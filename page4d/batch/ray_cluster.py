"""A Ray cluster as a place to work: whole scenes, or the chunks of one long scene, fan out over its machines.

Every worker needs page4d, and the scenes under the same paths.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from page4d.batch.jobs import SceneJob, Work
from page4d.batch.outcome import SceneOutcome, SceneStatus, not_begun, outcome_of
from page4d.errors import CapabilityError, InputError, UsageError
from page4d.export.run_record import RunRecord
from page4d.geometry.pixels import PixelTransform
from page4d.geometry.preprocess import Preprocess
from page4d.inference.chunk_source import ChunkSource, PredictedChunk
from page4d.inference.chunks import Chunk
from page4d.inference.memory import is_out_of_memory
from page4d.inference.predictor import Predictor
from page4d.inference.progress import Journal, Observer, SilentObserver
from page4d.inference.report import RunInputs
from page4d.inference.settings import ReconstructSettings
from page4d.models.conditioning import Memory
from page4d.scene.batches import BatchReader, open_placed_batches
from page4d.scene.records import Scene

MakePredictor = Callable[[Scene], Predictor]
"""Builds on a worker what makes the predictions; it can be sent to another process."""

_RETRIES = 2
"""How often work is given to another worker if one dies."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one worker takes of the cluster: a GPU, or as many CPU threads as this process computes with."""

    threads: int
    gpu: bool

    def options(self) -> dict[str, float]:
        """Return it as Ray's options."""
        return {"num_cpus": 1, "num_gpus": 1} if self.gpu else {"num_cpus": self.threads, "num_gpus": 0}

    def fit(self, resources: dict[str, float]) -> int:
        """Return how many workers a cluster has room for, at least one."""
        room = resources.get("GPU", 0) if self.gpu else resources.get("CPU", 1) // self.threads
        return max(1, int(room))


def parse_distributed(text: str) -> str:
    """Return the address that `--distributed ray[://HOST:PORT]` names, empty for the cluster of this machine.

    Raises:
        UsageError: if it is anything else.
    """
    if text == "ray":
        return ""
    if text.startswith("ray://") and len(text) > len("ray://"):
        return text
    raise UsageError(f"--distributed '{text}' is not known", "write ray or ray://HOST:PORT")


@contextmanager
def joined_cluster(address: str) -> Iterator[Any]:
    """Join a cluster while the body runs; without an address the one that runs here, or a new one of this machine.

    Raises:
        CapabilityError: if Ray is not installed or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise CapabilityError("--distributed ray needs Ray", "install it: pip install 'page4d[ray]'") from error
    quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
    where = {"address": address, "log_to_driver": False, "configure_logging": False} if address else quiet
    owned = not ray.is_initialized()
    if owned:
        try:
            ray.init(**where)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise CapabilityError(
                f"no Ray cluster {f'at {address}' if address else 'here'}: {_reason(error)}",
                "start one with `ray start --head`, or check the address",
            ) from error
    try:
        yield ray
    finally:
        if owned:
            ray.shutdown()


def on_cluster(ray: Any, jobs: Sequence[SceneJob], work: Work, *, gpu: bool) -> Iterator[SceneOutcome]:
    """Do jobs wherever there is room and return how they ended, the first to end first."""
    share = Share(threads=torch.get_num_threads(), gpu=gpu)
    task = ray.remote(max_retries=_RETRIES, **share.options())(_do)
    here = _Place(folder=Path.cwd(), threads=share.threads)
    pending = {task.remote(job, work, here): job for job in jobs}
    try:
        while pending:
            (done, *_), _ = ray.wait(list(pending))
            job = pending.pop(done)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                yield _lost(job, error)
    finally:
        for reference in pending:
            ray.cancel(reference)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What of this process a worker needs to share: relative paths, and threads, on which last digits depend."""

    folder: Path
    threads: int

    def take(self) -> None:
        """Make the worker's process like the one that made this."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise InputError(
                f"a worker of the cluster has no folder '{self.folder}'", "give all workers the same paths"
            ) from error
        torch.set_num_threads(self.threads)


def _do(job: SceneJob, work: Work, place: _Place) -> SceneOutcome:
    """Do a job on a worker."""

    def placed(job: SceneJob, observer: Observer) -> RunRecord:
        place.take()
        return work(job, observer)

    return outcome_of(job, placed, SilentObserver())


def _lost(job: SceneJob, error: Exception) -> SceneOutcome:
    """Say that no worker brought a job to its end."""
    changes = {
        "status": SceneStatus.FAILED,
        "exit_code": 1,
        "error": f"its workers were lost: {_reason(error)}",
        "hint": "look at the logs of the cluster; --resume continues it",
    }
    return not_begun(job).model_copy(update=changes)


def _reason(error: Exception) -> str:
    """Return the first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def cluster_chunks(
    ray: Any, make_predictor: MakePredictor, inputs: RunInputs, settings: ReconstructSettings, journal: Journal
) -> Iterator[ChunkSource]:
    """Predict the chunks of a run on as many workers as there is room for, some chunks ahead."""
    share = Share(threads=torch.get_num_threads(), gpu=inputs.device.type == "cuda")
    count = min(share.fit(ray.cluster_resources()), len(inputs.plan.chunks))
    worker = ray.remote(max_restarts=_RETRIES, max_task_retries=_RETRIES, **share.options())(_ChunkWorker)
    place = _Place(folder=Path.cwd(), threads=share.threads)
    given = (inputs.scene, inputs.plan.transforms, settings.preprocess, make_predictor, place)
    workers = [worker.remote(*given) for _ in range(count)]
    try:
        yield _ClusterChunks(ray, workers, journal)
    finally:
        for each in workers:
            ray.kill(each)


class _ClusterChunks:
    """Hands chunks to workers, each in turn, and returns them in order.

    Every worker has a chunk and one chunk waits to be stitched, no more, so memory does not grow with the capture.
    """

    def __init__(self, ray: Any, workers: list[Any], journal: Journal) -> None:
        self._ray = ray
        self._workers = workers
        self._journal = journal
        self._given: dict[Chunk, Any] = {}
        self._turn = 0
        self._ahead = len(workers)

    def predict(self, chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
        wanted = [chunk, *coming[: self._ahead]]
        for stale in self._given.keys() - set(wanted):  # the plan changed
            self._ray.cancel(self._given.pop(stale))
        for each in wanted:
            if each not in self._given:
                self._given[each] = self._workers[self._turn].predict.remote(each, memory if each == chunk else None)
                self._turn = (self._turn + 1) % len(self._workers)
        with self._journal.timed("predict"):
            found = self._fetched(self._given.pop(chunk))
        if isinstance(found, Exception):
            raise found
        predicted: PredictedChunk = found
        if predicted.predicted.memory is not None:
            self._ahead = 0  # a network with a memory needs what the chunk before left
            self._drop_all()
        return predicted

    def _fetched(self, reference: Any) -> Any:
        """Return what a worker made, or raise what it raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            raise CapabilityError(
                f"the workers of the cluster were lost: {_reason(error)}", "continue with --resume"
            ) from error

    def _drop_all(self) -> None:
        for reference in self._given.values():
            self._ray.cancel(reference)
        self._given.clear()


class _ChunkWorker:
    """Decodes and predicts chunks in a process of the cluster."""

    def __init__(
        self,
        scene: Scene,
        transforms: tuple[PixelTransform, ...],
        preprocess: Preprocess,
        make_predictor: MakePredictor,
        place: _Place,
    ) -> None:
        self._scene, self._transforms, self._preprocess = scene, transforms, preprocess
        self._make_predictor, self._place = make_predictor, place
        self._predictor: Predictor | None = None
        self._stack = ExitStack()
        self._reader: BatchReader | None = None
        self._start = 0

    def predict(self, chunk: Chunk, memory: Memory | None) -> PredictedChunk | Exception:
        """Predict a chunk; what does not fit in memory is returned as the exception that it is."""
        if self._predictor is None:  # here and not above, so that its errors reach the caller as they are
            self._place.take()
            self._predictor = self._make_predictor(self._scene)
        try:
            batch = self._reader_at(chunk.start).read(chunk.start, chunk.stop)
            return PredictedChunk(self._predictor.predict(batch, memory), batch.cameras)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return MemoryError(str(error))

    def _reader_at(self, start: int) -> BatchReader:
        """Return a reader that has not passed an instant."""
        if self._reader is None or start < self._start:
            self._stack.close()
            opened = open_placed_batches(self._scene, self._transforms, self._preprocess)
            self._reader = self._stack.enter_context(opened)
        self._start = start
        return self._reader
