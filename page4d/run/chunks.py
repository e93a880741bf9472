"""Division of a capture into chunks of instants that are processed together."""

from itertools import pairwise
from typing import NamedTuple

from page4d.errors import MemoryBudgetError, Notice, UsageError, counted
from page4d.run.memory import Forecast, MemoryLimit

MAX_DEFAULT_LENGTH = 8
"""Longest default chunk in instants: networks are trained on few instants and degrade on many more."""


class Chunk(NamedTuple):
    """Instants `start` to before `stop`; the first `overlap` of them are shared with the previous chunk."""

    start: int
    stop: int
    overlap: int

    @property
    def length(self) -> int:
        """Number of instants."""
        return self.stop - self.start


def plan_chunks(num_times: int, length: int, overlap: int, start: int = 0) -> tuple[Chunk, ...]:
    """Divide the instants from `start` to before `num_times` into chunks of at most `length` that share `overlap`.

    Chunks are as even as possible, as a short last chunk would be reconstructed worst. All but the last hold at least
    two overlaps if `length` does. The overlap of the first chunk is 0, unless `start` continues an earlier plan.

    Raises:
        UsageError: if a chunk would add no instant.
    """
    if length < 1 or overlap < 0:
        raise UsageError(f"chunks of {length} with an overlap of {overlap}", "both are numbers of instants")
    total = num_times - start
    if total <= length:
        return (Chunk(start, num_times, overlap if start else 0),)
    if overlap >= length:
        raise UsageError(
            f"an overlap of {overlap} leaves nothing new in chunks of {length}", "make ⟨overlap⟩ smaller than ⟨chunk⟩"
        )
    count = -(-(total - overlap) // (length - overlap))
    if (total - overlap) // count >= overlap:
        edges = [start + (total - overlap) * place // count for place in range(count + 1)]
    else:
        # Even chunks would be shorter than two overlaps and blend an instant twice: fill all but the last.
        edges = [*range(start, num_times - overlap, length - overlap), num_times - overlap]
    chunks = [Chunk(begin, end + overlap, overlap) for begin, end in pairwise(edges)]
    return (Chunk(chunks[0].start, chunks[0].stop, overlap if start else 0), *chunks[1:])


def choose_chunks(
    forecast: Forecast, limit: MemoryLimit, requested: int | None, overlap: int, num_times: int
) -> tuple[tuple[Chunk, ...], list[Notice]]:
    """Return chunks of the requested length, or the longest useful one that fits in memory, and warnings.

    Raises:
        UsageError: if a chunk would add no instant.
        MemoryBudgetError: if a limit set by the user does not suffice.
    """
    min_length = max(1, 2 * overlap)
    longest = min(requested or max(MAX_DEFAULT_LENGTH, min_length), num_times)
    shortest = longest if requested else min(min_length, num_times)
    if forecast.pass_length is not None and forecast.peak_bytes(num_times) <= limit.num_bytes:
        return plan_chunks(num_times, num_times, overlap), []
    for length in range(longest, shortest - 1, -1):  # each forecast takes a second
        chunks = plan_chunks(num_times, requested or length, overlap)
        planned = max(chunk.length for chunk in chunks)
        peak = forecast.peak_bytes(planned)
        if peak <= limit.num_bytes:
            return chunks, []
    needed = f"about {peak / 1e9:.2f} GB"
    frames = (
        f"chunks of {counted(planned, 'instant')} of {counted(forecast.views, 'view')} at {max(forecast.size)} px"
    )
    if limit.is_strict:
        raise MemoryBudgetError(
            f"{frames} need {needed}, ⟨memory_bytes⟩ allows {limit.num_bytes / 1e9:.2f} GB",
            f"give more memory{', a smaller ⟨chunk⟩' if requested else ''}, a smaller ⟨long_side⟩, or fewer ⟨views⟩",
        )
    text = f"{frames} need {needed}, {limit.num_bytes / 1e9:.2f} GB is available: memory may run out"
    return chunks, [Notice(text)]
