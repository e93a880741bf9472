"""Which instants are processed together: pure arithmetic."""

from dataclasses import dataclass
from itertools import pairwise

from page4d.errors import UsageError


@dataclass(frozen=True)
class Chunk:
    """Instants `start` to before `stop`, of which the first `overlap` belong to the chunk before as well."""

    start: int
    stop: int
    overlap: int

    @property
    def length(self) -> int:
        """Number of instants."""
        return self.stop - self.start


def plan_chunks(num_times: int, length: int, overlap: int, start: int = 0) -> tuple[Chunk, ...]:
    """Cut the instants from `start` to before `num_times` into chunks of at most `length` that share `overlap`.

    The chunks are as even as they can be: a short last chunk would be the worst reconstructed. All but the last hold
    at least two overlaps if `length` does. The first chunk's overlap is 0 unless it continues one that ended at
    `start + overlap`.

    Raises:
        UsageError: if a chunk would bring nothing new.
    """
    if length < 1 or overlap < 0:
        raise UsageError(f"chunks of {length} with an overlap of {overlap}", "both count instants")
    total = num_times - start
    if total <= length:
        return (Chunk(start, num_times, overlap if start else 0),)
    if overlap >= length:
        raise UsageError(
            f"an overlap of {overlap} leaves nothing new in chunks of {length}", "make --overlap smaller than --chunk"
        )
    count = -(-(total - overlap) // (length - overlap))
    if (total - overlap) // count >= overlap:
        edges = [start + (total - overlap) * place // count for place in range(count + 1)]
    else:
        # Even chunks would be shorter than two overlaps and blend an instant twice: fill all but the last.
        edges = [*range(start, num_times - overlap, length - overlap), num_times - overlap]
    chunks = [Chunk(begin, end + overlap, overlap) for begin, end in pairwise(edges)]
    return (Chunk(chunks[0].start, chunks[0].stop, overlap if start else 0), *chunks[1:])
