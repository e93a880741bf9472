"""Division of a capture into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page4d.errors import UsageError
from page4d.run.chunks import Chunk, plan_chunks


@given(st.integers(1, 500), st.integers(1, 40), st.data())
def test_chunks_cover_every_instant_and_share_exactly_the_overlap(num_times: int, length: int, data: st.DataObject):
    overlap = data.draw(st.integers(0, length // 2))
    chunks = plan_chunks(num_times, length, overlap)
    assert chunks[0].start == 0
    assert chunks[0].overlap == 0
    assert chunks[-1].stop == num_times
    for before, after in zip(chunks, chunks[1:], strict=False):
        assert before.stop - after.start == after.overlap == overlap
        assert after.stop > before.stop
    assert all(chunk.length <= length for chunk in chunks)
    assert all(chunk.length >= 2 * overlap for chunk in chunks[:-1])


@given(st.integers(3, 500), st.integers(3, 40))
def test_chunk_lengths_differ_by_at_most_one(num_times: int, length: int):
    lengths = [chunk.length for chunk in plan_chunks(num_times, length, 1)]
    assert max(lengths) - min(lengths) <= 1


def test_a_plan_that_starts_in_the_middle_keeps_its_overlap():
    assert plan_chunks(20, 6, 2, start=8) == (Chunk(8, 13, 2), Chunk(11, 16, 2), Chunk(14, 20, 2))
    assert plan_chunks(20, 12, 2, start=8) == (Chunk(8, 20, 2),)


@pytest.mark.parametrize(("length", "overlap"), [(0, 0), (4, 4), (3, -1), (2, 5)])
def test_chunks_without_new_instants_are_refused(length: int, overlap: int):
    with pytest.raises(UsageError):
        plan_chunks(20, length, overlap)
