"""Decoding, predicting and writing at once: nothing piles up, nothing is read twice, and every failure arrives."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from page4d.errors import OutputError
from page4d.export.layout import OutputLayout
from page4d.inference.bounded_queue import Handover
from page4d.inference.output_policy import ExistingOutput
from page4d.inference.predictor import Predicted
from page4d.inference.reconstruct import reconstruct
from page4d.inference.run_state import StateFolder
from page4d.models.conditioning import Memory
from page4d.scene.batches import BatchReader, open_batches
from page4d.scene.records import FrameBatch, Scene, View
from page4d.synthetic.capture import SyntheticCapture
from tests.inference.test_reconstruct import NETWORK, SETTINGS, bytes_of, fails_above
from tests.inference.truth import TruthPredictor


@dataclass
class Census(TruthPredictor):
    """Counts how many of its predictions are alive whenever another one is made."""

    alive: list[weakref.ref] = field(default_factory=list)
    most: int = 0

    def predict(self, batch: FrameBatch, memory: Memory | None = None) -> Predicted:
        predicted = super().predict(batch, memory)
        self.alive.append(weakref.ref(predicted.predictions))
        gc.collect()
        self.most = max(self.most, sum(ref() is not None for ref in self.alive))
        return predicted


@dataclass(frozen=True)
class CountedSource:
    """Frames of a view, with a note of every frame that is decoded."""

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
        noted: list[int]

        def read(self, indices):
            self.noted.extend(indices)
            return self.reader.read(indices)


def counted(scene: Scene) -> tuple[Scene, list[list[int]]]:
    reads: list[list[int]] = [[] for _ in scene.views]
    views: list[View] = [
        replace(view, source=CountedSource(view.source, read)) for view, read in zip(scene.views, reads, strict=True)
    ]
    return replace(scene, views=tuple(views)), reads


@pytest.mark.parametrize("times", [8, 14])
def test_no_more_is_alive_in_a_longer_capture_and_no_frame_is_decoded_twice(times: int, tmp_path: Path):
    capture = SyntheticCapture(seed=5, num_views=2, num_times=times, image_size=(12, 16))
    scene, reads = counted(capture.scene())
    census = Census(capture)
    reconstruct(scene, census, NETWORK, tmp_path / "out", replace(SETTINGS, chunk=4, overlap=2))
    assert len(census.calls) == (times - 2 + 1) // 2
    assert census.most <= 3, "one made, one written, and the view of one that waits to be freed"
    assert reads == [list(range(times))] * 2


def test_what_was_decoded_ahead_serves_a_shrunken_plan_too(tmp_path: Path):
    capture = SyntheticCapture(seed=5, num_views=1, num_times=11, image_size=(12, 16))
    scene, reads = counted(capture.scene())
    predictor = TruthPredictor(capture, fails_above(4))
    reconstruct(scene, predictor, NETWORK, tmp_path / "out", replace(SETTINGS, chunk=6, overlap=1))
    assert predictor.calls[0] == (0, 6)
    assert reads == [list(range(11))]


def test_a_failure_while_reading_ahead_comes_when_the_frames_are_wanted(monkeypatch: pytest.MonkeyPatch):
    capture = SyntheticCapture(seed=5, num_views=1, num_times=6, image_size=(12, 16))
    real, failures = BatchReader._decode, [MemoryError("ahead"), MemoryError("when wanted")]

    def torn(self: BatchReader, start: int, stop: int) -> FrameBatch:
        if start > 0 and failures:
            raise failures.pop(0)
        return real(self, start, stop)

    monkeypatch.setattr(BatchReader, "_decode", torn)
    with open_batches(capture.scene(), 16, 1) as reader:
        assert len(reader.read(0, 3).times) == 3
        reader.read_ahead(6)
        assert len(reader.read(1, 3).times) == 2
        with pytest.raises(MemoryError, match="when wanted"):
            reader.read(1, 6)
        assert reader.read(1, 6).times.tolist() == capture.times[1:6].tolist()


def test_a_stage_takes_one_thing_at_a_time_and_its_failure_is_raised_where_things_are_made():
    taken: list[int] = []

    def consume(numbers: Iterator[int]) -> None:
        for number in numbers:
            assert threading.current_thread() is not threading.main_thread()
            taken.append(number)
            if number == 3:
                raise OutputError("disk full", "free space")

    given: list[int] = []
    with pytest.raises(OutputError, match="disk full"):
        give_all(consume, range(100), given.append)
    assert taken == [0, 1, 2, 3]
    assert given == taken


def test_what_was_handed_over_is_finished_when_the_maker_stops():
    taken: list[int] = []

    def interrupt(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_all(taken.extend, range(9), interrupt)
    assert taken == [0, 1, 2]
    with pytest.raises(OutputError):
        give_all(fail_at_the_end, range(2), interrupt)


def give_all(consume: Callable[[Iterator[int]], None], numbers: Iterable[int], given: Callable[[int], None]) -> None:
    with Handover(consume) as handover:
        for number in numbers:
            handover.give(number)
            given(number)


def fail_at_the_end(numbers: Iterator[int]) -> None:
    list(numbers)
    raise OutputError("disk full", "free space")


@pytest.mark.parametrize("at", [0, 1])
def test_memory_that_runs_out_at_a_chunk_gives_the_bytes_of_the_recorded_plan(at: int, tmp_path: Path):
    """Chunks of 6 until number `at` does not fit, beside a run that had the shorter ones planned from the start."""
    capture = SyntheticCapture(seed=5, num_views=2, num_times=11, image_size=(12, 16))
    settings, scene = replace(SETTINGS, chunk=6, overlap=1), capture.scene()
    starts = [0, 5]

    def spoil(start: int, predictions):
        if start >= starts[at] and predictions.num_times > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predictions

    shrunk, planned = tmp_path / "shrunk", tmp_path / "planned"
    record = reconstruct(scene, TruthPredictor(capture, spoil), NETWORK, shrunk, settings)
    assert sum("out of memory with 6 frames per chunk: continuing with 3" in text for text in record.warnings) == 1
    layout = OutputLayout(shrunk, scene.view_names)
    state = StateFolder(layout).read_run()
    assert state is not None
    assert state.plan == [(chunk.start, chunk.stop, chunk.overlap) for chunk in record.chunks]
    fresh = OutputLayout(planned, scene.view_names)
    StateFolder(fresh).write_run(state.model_copy(update={"warnings": [], "seconds": {}}))
    whole = TruthPredictor(capture)
    reconstruct(scene, whole, NETWORK, planned, settings, existing=ExistingOutput.RESUME)
    assert whole.calls == [(start, stop) for start, stop, _ in state.plan]
    assert bytes_of(planned) == bytes_of(shrunk)
