"""Frames of recordings: fair draws, forward decoding, bounded memory, and reproducibility."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from page4d.errors import InputError, UsageError
from page4d.lab.pretraining.data import Footage, Track, open_footage, open_pool
from tests.pretraining.recordings import write_recording


@dataclass
class Counted:
    """A view whose frames encode their index, and that records its reads."""

    read_indices: list[list[int]] = field(default_factory=list)

    @contextmanager
    def open(self, _: tuple[int, int]) -> Iterator["Counted"]:
        self.read_indices.append([])
        yield self

    def read(self, indices: Sequence[int]) -> Iterator[np.ndarray]:
        for index in indices:
            self.read_indices[-1].append(index)
            yield np.full((2, 2, 3), index, np.uint8)


def footage(*lengths: int) -> tuple[Footage, list[Counted]]:
    sources = [Counted() for _ in lengths]
    tracks = [
        Track(source=source, indices=np.arange(length), size=(2, 2))
        for source, length in zip(sources, lengths, strict=True)
    ]
    return Footage(tuple(tracks)), sources


def test_a_recording_is_decoded_forward_one_round_at_a_time() -> None:
    recording, sources = footage(100, 60)
    with open_pool(recording, 0, frames=10, repeats=3) as pool:
        for sample in range(30):
            pool.frame(sample)
    for source in sources:
        assert len(source.read_indices) <= 2  # the current round, and the next one in advance
        assert all(indices == sorted(set(indices)) for indices in source.read_indices)
        assert len(source.read_indices[0]) == 5
        assert all(len(indices) <= 5 for indices in source.read_indices)


def test_the_frame_of_a_sample_is_independent_of_the_first_sample() -> None:
    recording, _ = footage(30, 20)
    with open_pool(recording, 7, frames=8, repeats=2) as pool:
        seen = [int(pool.frame(sample)[0, 0, 0]) for sample in range(64)]
    with open_pool(recording, 7, frames=8, repeats=2) as pool:
        assert [int(pool.frame(sample)[0, 0, 0]) for sample in range(37, 64)] == seen[37:]
    with open_pool(recording, 8, frames=8, repeats=2) as pool:
        assert [int(pool.frame(sample)[0, 0, 0]) for sample in range(64)] != seen


def test_all_frames_of_a_round_are_used_equally_often() -> None:
    recording, _ = footage(50)
    with open_pool(recording, 0, frames=10, repeats=4) as pool:
        counts = Counter(int(pool.frame(sample)[0, 0, 0]) for sample in range(40))
    assert len(counts) == 10
    assert set(counts.values()) == {4}


def test_a_recording_that_fits_into_the_pool_is_decoded_once() -> None:
    recording, sources = footage(6, 5)
    with open_pool(recording, 0, frames=20, repeats=2) as pool:
        counts = Counter(int(pool.frame(sample)[0, 0, 0]) for sample in range(110))
    assert [source.read_indices for source in sources] == [[list(range(6))], [list(range(5))]]
    assert counts == {index: 20 if index < 5 else 10 for index in range(6)}


def test_frames_are_divided_evenly_among_views() -> None:
    recording, sources = footage(3, 100, 100)
    with open_pool(recording, 0, frames=21, repeats=1) as pool:
        pool.frame(0)
    assert sorted(len(source.read_indices[0]) for source in sources) == [3, 9, 9]


def test_frames_are_downscaled_with_their_aspect_ratio(tmp_path) -> None:
    opened = open_footage([write_recording(tmp_path / "one"), write_recording(tmp_path / "two", views=("c",))], 15)
    assert (len(opened.tracks), opened.num_frames) == (3, 15)
    assert {track.size for track in opened.tracks} == {(20, 15)}
    assert {track.size for track in open_footage([tmp_path / "one"], 500).tracks} == {(40, 30)}


def test_folders_with_too_few_frames_are_refused(tmp_path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_footage([tmp_path / "nowhere"], 16)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no videos"):
        open_footage([tmp_path / "empty"], 16)
    with pytest.raises(InputError, match="2 frames in 1 view: too few") as caught:
        open_footage([write_recording(tmp_path / "short", frames=2, views=("a",))], 16)
    assert caught.value.exit_code == 3


def test_frames_of_a_few_pixels_are_refused(tmp_path) -> None:
    folder = tmp_path / "cam01"
    folder.mkdir()
    for number in range(10):
        Image.fromarray(np.zeros((2, 300, 3), np.uint8)).save(folder / f"{number:02}.png")
    with pytest.raises(InputError, match="cam01 has frames of 300 x 2 px: too small to train on"):
        open_footage([tmp_path], 16)
