"""Predicted chunks of a run, from this process or others; those that do not fit in memory are halved."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from page4d.choices import Preprocess
from page4d.errors import MemoryBudgetError, Notice, WeightsError, counted
from page4d.networks.conditioning import Memory
from page4d.output.cameras import check_finite
from page4d.output.record import ResidualsRecord
from page4d.run.chunks import Chunk, plan_chunks
from page4d.run.domain import Domain, domain_of
from page4d.run.journal import Journal
from page4d.run.memory import fitting_checkpoint, unless_out_of_memory
from page4d.run.plan import RunPlan
from page4d.run.predictor import PredictedChunk, prepared
from page4d.run.rig_residuals import compare_rigs
from page4d.scene.batches import open_placed_batches
from page4d.stereo.background import Background

MAX_HALVINGS = 3
"""Number of times that a chunk that does not fit in memory is halved."""


ChunkSource = Callable[[Chunk, Sequence[Chunk], Memory | None], PredictedChunk]
"""Predicts chunks on request, in order: a chunk, the next ones, on which work may begin, and the network's memory.

Raises RuntimeError or MemoryError if it does not fit in memory, InputError if a frame cannot be decoded.
"""

OpenChunks = Callable[[RunPlan, Journal], AbstractContextManager[ChunkSource]]
"""Opens the source of a run's chunks."""


@contextmanager
def local_chunks(plan: RunPlan, journal: Journal) -> Iterator[ChunkSource]:
    """Decode and predict in this process; the next frames are decoded meanwhile."""
    predictor = prepared(plan.predictor, plan.pass_length, plan.background)
    with open_placed_batches(plan.scene, plan.transforms, plan.settings.preprocess) as reader:

        def predict(chunk: Chunk, coming: Sequence[Chunk], memory: Memory | None) -> PredictedChunk:
            begin = time.perf_counter()
            batch = reader.read(chunk.start, chunk.stop)
            decoded = time.perf_counter()
            if coming:
                reader.read_ahead(coming[0].stop)
            predicted = predictor.predict(batch, memory)
            spent, refine = time.perf_counter() - decoded, predicted.refine_seconds
            journal.add({"decode": decoded - begin, "predict": spent - refine, "refine": refine})
            return predicted

        yield predict


@dataclass(frozen=True, kw_only=True)
class ChunkFacts:
    """The start of the work on a predicted chunk, how footage and cameras fit, network memory, and background."""

    chunk: Chunk
    begin: float
    domain: Domain
    residuals: ResidualsRecord | None
    memory: Memory | None
    background: Background | None = None


class ArrivedChunk(NamedTuple):
    """A predicted chunk and what is known of it."""

    predicted: PredictedChunk
    facts: ChunkFacts


class ChunkPredictions:
    """Predicts the chunks of a run in order; one that does not fit in memory is halved with all that follow.

    `memory` is that of the network after the chunk before the next one. `replan` receives the number of a chunk and
    the chunks that replace those from it on.
    """

    def __init__(
        self,
        plan: RunPlan,
        source: ChunkSource,
        journal: Journal,
        chunks: Sequence[Chunk],
        replan: Callable[[int, Sequence[Chunk]], None],
    ) -> None:
        self._plan, self._source, self._journal = plan, source, journal
        self._chunks, self._replan = list(chunks), replan

    def predict(self, index: int, memory: Memory | None) -> ArrivedChunk:
        """Predict one chunk, which must fit in memory.

        Raises:
            MemoryBudgetError: if it does not.
        """
        arrived = unless_out_of_memory(self._plan.predictor.device, partial(self._predict, index, memory))
        if arrived is None:
            raise out_of_memory(self._plan)
        return arrived

    def from_chunk(self, index: int, memory: Memory | None) -> Iterator[ArrivedChunk]:
        """Predict the chunks from a number on; none if the only one of the run was halved.

        A run of one chunk estimates its background from it, one of several chunks before the first one.

        Raises:
            MemoryBudgetError: if one cannot be halved again.
        """
        halvings, is_first = 0, index == 0
        while index < len(self._chunks):
            arrived = unless_out_of_memory(self._plan.predictor.device, partial(self._predict, index, memory))
            if arrived is None:
                halvings, was_only = halvings + 1, len(self._chunks) == 1
                self._halve(index, halvings)
                if was_only:
                    return
                continue
            if is_first:
                is_first = False
                predictor = self._plan.predictor
                named = bool(predictor.record.notice)  # which names a checkpoint
                suggestion = None if named else fitting_checkpoint(predictor.device, commercial=True)
                for notice in arrived.facts.domain.notices(suggestion):
                    self._journal.notice(notice)
            index, memory = index + 1, arrived.facts.memory
            yield arrived
            del arrived

    def _predict(self, index: int, memory: Memory | None) -> ArrivedChunk:
        begin, chunk = time.perf_counter(), self._chunks[index]
        predicted = self._source(chunk, self._chunks[index + 1 :], memory)
        predictions, rig = predicted.predictions, predicted.rig
        if not self._plan.has_motion:
            predictions = replace(predictions, dynamic=None)
        check_finite(predictions, WeightsError)
        residuals = None
        if rig is not None and not self._plan.predictor.uses_rig_cameras:
            residuals = compare_rigs(predictions.cameras[0], rig[0], predictions.view_names, predictions.shown_views)
        facts = ChunkFacts(
            chunk=chunk,
            begin=begin,
            domain=domain_of(predicted, self._plan),
            residuals=residuals,
            memory=predicted.memory,
            background=predicted.background,
        )
        return ArrivedChunk(predicted._replace(predictions=predictions, memory=None, background=None), facts)

    def _halve(self, index: int, halvings: int) -> None:
        """Replan from a chunk on with half the length of it or its passes, or with the least, if that is more.

        Raises:
            MemoryBudgetError: if it cannot be halved again.
        """
        plan, chunk, overlap = self._plan, self._chunks[index], self._plan.overlap
        length = max(min(chunk.length, plan.pass_length or chunk.length) // 2, 1, 2 * overlap)
        unaligned = overlap == 0 and not plan.world.aligns_chunks
        if halvings > MAX_HALVINGS or length >= chunk.length or unaligned:
            raise out_of_memory(plan, chunk.length)
        rest = plan_chunks(plan.scene.num_times, length, overlap, start=chunk.start)
        self._chunks[index:] = rest
        self._replan(index, rest)
        text = f"out of memory with {counted(chunk.length, 'instant')} per chunk: continuing with {length}"
        self._journal.notice(Notice(text))


def out_of_memory(plan: RunPlan, length: int | None = None) -> MemoryBudgetError:
    """Return the error of a run, or of a chunk of `length` instants, that does not fit in memory."""
    even = "" if length is None else f" even with {counted(length, 'instant')} per chunk"
    native = "" if plan.settings.preprocess is Preprocess.NATIVE else "⟨preprocess=native⟩ "
    return MemoryBudgetError(
        f"out of memory{even} at {plan.max_side} px",
        f"try {native}⟨long_side={max(plan.max_side * 3 // 4, 14)}⟩, a smaller ⟨overlap⟩, or fewer ⟨views⟩",
    )
