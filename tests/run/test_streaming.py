"""Concurrent decoding, prediction and writing: bounded memory, frames decoded once, and propagated failures."""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from page4d.choices import ExistingOutput
from page4d.errors import OutputError
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.networks.conditioning import Memory
from page4d.output.layout import OutputLayout
from page4d.rig.samples import NUM_PICTURES
from page4d.run.bounded_queue import BoundedQueue
from page4d.run.predictor import PredictedChunk
from page4d.run.reconstruct import reconstruct
from page4d.run.state import StateFolder
from page4d.scene.batches import BatchReader, FrameBatch, open_batches
from page4d.scene.records import Scene, View
from tests.run.test_reconstruct import SETTINGS, bytes_of, fails_above
from tests.run.truth import TruthPredictor


@dataclass
class CountingPredictor(TruthPredictor):
    """Counts its predictions that are alive at every call."""

    references: list[weakref.ref] = field(default_factory=list)
    num_alive: list[int] = field(default_factory=list)

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> PredictedChunk:
        predicted = super().predict(batch, memory)
        self.references.append(weakref.ref(predicted.predictions))
        self.num_alive.append(sum(reference() is not None for reference in self.references))
        return predicted


@dataclass(frozen=True)
class CountedSource:
    """Frames of a view; the indices of all decoded frames are appended to `read`."""

    source: object
    read: list[int]

    def __getattr__(self, name: str) -> object:
        return getattr(self.source, name)

    def open(self, size: tuple[int, int] | None = None):
        @contextmanager
        def opened() -> Iterator["CountedSource._Reader"]:
            with self.source.open(size) as reader:
                yield CountedSource._Reader(reader, self.read)

        return opened()

    @dataclass
    class _Reader:
        reader: object
        decoded: list[int]

        def read(self, indices):
            self.decoded.extend(indices)
            return self.reader.read(indices)


def counted(scene: Scene) -> tuple[Scene, list[list[int]]]:
    reads: list[list[int]] = [[] for _ in scene.views]
    views: list[View] = [
        replace(view, source=CountedSource(view.source, read)) for view, read in zip(scene.views, reads, strict=True)
    ]
    return replace(scene, views=tuple(views)), reads


def test_memory_does_not_grow_with_the_capture_and_frames_are_decoded_once(tmp_path: Path):
    times = 14
    capture = SyntheticCapture(seed=5, num_views=2, num_times=times, image_size=(12, 16))
    scene, reads = counted(capture.scene())
    predictor = CountingPredictor(capture)
    settings = replace(SETTINGS, chunk=4, overlap=2)
    reconstruct(scene, predictor, out=tmp_path / "out", settings=settings)
    assert len(predictor.calls) == (times - 2 + 1) // 2
    assert max(predictor.num_alive) <= 3, "one predicted, one written, and a reference that is not yet freed"
    assert [read[-times:] for read in reads] == [list(range(times))] * 2
    assert max(map(len, reads)) <= times + NUM_PICTURES, "sampled before the run"


def test_frames_decoded_ahead_are_used_after_chunks_are_halved(tmp_path: Path):
    capture = SyntheticCapture(seed=5, num_views=1, num_times=11, image_size=(12, 16))
    scene, reads = counted(capture.scene())
    predictor = TruthPredictor(capture, fails_above(4))
    reconstruct(scene, predictor, out=tmp_path / "out", settings=replace(SETTINGS, chunk=6, overlap=1))
    assert predictor.calls[0] == (0, 6)
    assert [read[-11:] for read in reads] == [list(range(11))]


def test_a_failure_of_reading_ahead_is_raised_when_the_frames_are_read(monkeypatch: pytest.MonkeyPatch):
    capture = SyntheticCapture(seed=5, num_views=1, num_times=6, image_size=(12, 16))
    real, failures = BatchReader._decode, [MemoryError("ahead"), MemoryError("when read")]

    def failing(self: BatchReader, start: int, stop: int) -> FrameBatch:
        if start > 0 and failures:
            raise failures.pop(0)
        return real(self, start, stop)

    monkeypatch.setattr(BatchReader, "_decode", failing)
    with open_batches(capture.scene(), 16, 1) as reader:
        assert len(reader.read(0, 3).times) == 3
        reader.read_ahead(6)
        assert len(reader.read(1, 3).times) == 2
        with pytest.raises(MemoryError, match="when read"):
            reader.read(1, 6)
        assert reader.read(1, 6).times.tolist() == capture.times[1:6].tolist()


def test_the_queue_passes_one_item_at_a_time_and_raises_the_consumers_failure():
    consumed: list[int] = []

    def consume(numbers: Iterator[int]) -> None:
        for number in numbers:
            assert threading.current_thread() is not threading.main_thread()
            consumed.append(number)
            if number == 3:
                raise OutputError("disk full", "free space")

    put: list[int] = []
    with pytest.raises(OutputError, match="disk full"):
        put_all(consume, range(100), put.append)
    assert consumed == [0, 1, 2, 3]
    assert put == consumed


def test_items_in_the_queue_are_consumed_when_the_producer_fails():
    consumed: list[int] = []

    def interrupt(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_all(consumed.extend, range(9), interrupt)
    assert consumed == [0, 1, 2]
    with pytest.raises(OutputError):
        put_all(fail_at_the_end, range(2), interrupt)


def put_all(consume: Callable[[Iterator[int]], None], numbers: Iterable[int], after: Callable[[int], None]) -> None:
    with BoundedQueue(consume) as queue:
        for number in numbers:
            queue.put(number)
            after(number)


def fail_at_the_end(numbers: Iterator[int]) -> None:
    list(numbers)
    raise OutputError("disk full", "free space")


@pytest.mark.parametrize("at", [0, 1])
def test_a_run_whose_chunks_are_halved_has_the_bytes_of_its_recorded_plan(at: int, tmp_path: Path):
    """Compare with a run whose plan has the shorter chunks, from number `at` on, from the start."""
    capture = SyntheticCapture(seed=5, num_views=2, num_times=11, image_size=(12, 16))
    settings, scene = replace(SETTINGS, chunk=6, overlap=1), capture.scene()
    starts = [0, 5]

    def disturb(start: int, predictions):
        if start >= starts[at] and predictions.num_times > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predictions

    shrunk, planned = tmp_path / "shrunk", tmp_path / "planned"
    record = reconstruct(scene, TruthPredictor(capture, disturb), out=shrunk, settings=settings)
    assert sum("out of memory with 6 instants per chunk: continuing with 3" in text for text in record.warnings) == 1
    state = StateFolder(OutputLayout(shrunk, scene.view_names)).read_run()
    assert state.plan == [(chunk.start, chunk.stop, chunk.overlap) for chunk in record.chunks]
    fresh = OutputLayout(planned, scene.view_names)
    StateFolder(fresh).write_run(state.model_copy(update={"warnings": [], "seconds": {}}))
    whole = TruthPredictor(capture)
    reconstruct(scene, whole, out=planned, settings=settings, existing=ExistingOutput.RESUME)
    assert whole.calls == [(start, stop) for start, stop, _ in state.plan]
    assert bytes_of(planned) == bytes_of(shrunk)
