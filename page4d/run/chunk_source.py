"""Sources of a run's predicted chunks: this process, or others that predict ahead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from page4d.networks.conditioning import Memory
from page4d.run.chunks import Chunk
from page4d.run.plan import RunPlan
from page4d.run.predictor import PredictedChunk, Predictor
from page4d.run.progress import Journal
from page4d.scene.batches import BatchReader, open_placed_batches


class ChunkSource(Protocol):
    """Predicts chunks on request, in order."""

    def predict(self, chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
        """Predict a chunk; `coming` are the next ones, on which work may begin.

        Raises:
            RuntimeError or MemoryError: if it does not fit in memory.
            InputError: if a frame cannot be decoded.
        """
        ...


OpenChunks = Callable[[RunPlan, Journal], AbstractContextManager[ChunkSource]]
"""Opens the source of a run's chunks."""


@contextmanager
def local_chunks(plan: RunPlan, journal: Journal) -> Iterator[ChunkSource]:
    """Decode and predict in this process; the next frames are decoded meanwhile."""
    with open_placed_batches(plan.scene, plan.transforms, plan.settings.preprocess) as reader:
        yield _LocalChunks(reader, plan.predictor, journal)


class _LocalChunks:
    def __init__(self, reader: BatchReader, predictor: Predictor, journal: Journal) -> None:
        self._reader = reader
        self._predictor = predictor
        self._journal = journal

    def predict(self, chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
        with self._journal.timed("decode"):
            batch = self._reader.read(chunk.start, chunk.stop)
        if coming:
            self._reader.read_ahead(coming[0].stop)
        with self._journal.timed("predict"):
            predicted = self._predictor.predict(batch, memory)
        self._journal.move("predict", "refine", predicted.refine_seconds)
        return predicted
