"""Where the predictions of a run's chunks come from: this process, or others that work ahead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

from page4d.geometry.camera import Cameras
from page4d.inference.chunks import Chunk
from page4d.inference.predictor import Predicted, Predictor
from page4d.inference.progress import Journal
from page4d.inference.report import RunInputs
from page4d.inference.settings import ReconstructSettings
from page4d.models.conditioning import Memory
from page4d.scene.batches import BatchReader, open_placed_batches


class PredictedChunk(NamedTuple):
    """What a predictor says of a chunk, and the cameras of the calibration for its frames."""

    predicted: Predicted
    rig: Cameras | None


class ChunkSource(Protocol):
    """Predicts chunks, asked for in order."""

    def predict(self, chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
        """Predict a chunk; those `coming` will be asked for next, so that work on them may begin.

        Raises:
            RuntimeError or MemoryError: if it does not fit in memory.
            InputError: if a frame cannot be decoded.
        """
        ...


OpenChunks = Callable[[RunInputs, ReconstructSettings, Journal], AbstractContextManager[ChunkSource]]
"""Makes the source of a run's chunks."""


@contextmanager
def local_chunks(inputs: RunInputs, settings: ReconstructSettings, journal: Journal) -> Iterator[ChunkSource]:
    """Decode and predict in this process; the frames that come next are decoded meanwhile."""
    with open_placed_batches(inputs.scene, inputs.plan.transforms, settings.preprocess) as reader:
        yield _LocalChunks(reader, inputs.predictor, journal)


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
            return PredictedChunk(self._predictor.predict(batch, memory), batch.cameras)
