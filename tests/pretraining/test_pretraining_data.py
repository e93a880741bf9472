"""Crops of frames: sizes, areas, flips and colours; frames of recordings: fair draws and bounded memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from PIL import Image

from page4d.errors import InputError, UsageError
from page4d.lab.pretraining import data as crops
from page4d.lab.pretraining.data import (
    CropConfig,
    Footage,
    Track,
    draw_colours,
    open_footage,
    open_pool,
    read_crops,
    recolour,
)
from tests.pretraining.recordings import write_recording

CPU = torch.device("cpu")
CONFIG = CropConfig(size=24, area=(0.4, 1.0), num_large=2, small_size=8, num_small=3, recoloured=True)


class Pool:
    """One frame for every sample: red encodes the row, green the column."""

    def frame(self, _: int) -> np.ndarray:
        rows, columns = np.mgrid[:60, :80]
        return np.stack([rows * 4, columns * 3, np.full_like(rows, 30)], axis=-1).astype(np.uint8)


def test_crops_have_their_sizes_and_follow_from_the_sample_number() -> None:
    together = read_crops(Pool(), CONFIG, 3, 9, range(4), CPU)
    assert [crop.shape for crop in together.large] == [(4, 3, 24, 24)] * 2
    assert [crop.shape for crop in together.small] == [(4, 3, 8, 8)] * 3
    assert together.noise.shape == (4, 9)
    alone = read_crops(Pool(), CONFIG, 3, 9, [2], CPU)
    for whole, part in zip((*together.large, *together.small), (*alone.large, *alone.small), strict=True):
        torch.testing.assert_close(whole[2:3], part, rtol=0, atol=1e-6)
    assert torch.equal(together.noise[2:3], alone.noise)
    assert not torch.equal(read_crops(Pool(), CONFIG, 4, 9, [2], CPU).noise, alone.noise)
    assert not torch.equal(together.large[0], together.large[1])


def test_crops_have_the_configured_areas_and_half_of_them_are_flipped() -> None:
    random = np.random.default_rng(0)
    areas, shapes = [], []
    for _ in range(300):
        _, _, height, width = crops._draw_box((60, 80), (0.05, 0.4), random)
        areas.append(height * width / 4800)
        shapes.append(width / height)
    assert 0.045 < min(areas) < 0.1
    assert 0.35 < max(areas) < 0.41
    assert 0.7 < min(shapes) < max(shapes) < 1.45
    plain = replace(CONFIG, num_large=1, num_small=0, recoloured=False)
    (cut,) = read_crops(Pool(), plain, 0, 0, range(200), CPU).large
    green = cut[:, 1]
    flipped = (green[:, :, 0].mean(1) > green[:, :, -1].mean(1)).float().mean()
    assert 0.4 < flipped < 0.6
    red = cut[:, 0]
    assert (red[:, 0].mean(1) < red[:, -1].mean(1)).all()  # never upside down


def test_a_box_that_does_not_fit_is_the_centred_square() -> None:
    assert crops._draw_box((10, 100), (1.0, 1.0), np.random.default_rng(0)) == (0, 45, 10, 10)


class TestColours:
    NEUTRAL = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)

    def augmented(self, images: torch.Tensor, **changes: float) -> torch.Tensor:
        names = ("brightness", "contrast", "saturation", "hue", "grey", "sigma", "solarised")
        drawn = [changes.get(name, value) for name, value in zip(names, self.NEUTRAL, strict=True)]
        return recolour(images, torch.tensor([drawn] * len(images)))

    def images(self) -> torch.Tensor:
        return 0.2 + 0.6 * torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))

    def test_neutral_values_are_the_identity(self) -> None:
        torch.testing.assert_close(self.augmented(self.images()), self.images(), rtol=0, atol=1e-5)

    def test_every_value_has_its_effect(self) -> None:
        images = self.images()
        torch.testing.assert_close(self.augmented(images, brightness=1.2), images * 1.2, rtol=0, atol=1e-5)
        assert (self.augmented(images, contrast=0.5).var() / images.var()).item() == pytest.approx(0.25, rel=0.1)
        grey = self.augmented(images, grey=1.0, hue=0.1)
        torch.testing.assert_close(grey, grey[:, :1].expand_as(grey), rtol=0, atol=1e-5)
        assert self.augmented(images, saturation=0.5).std(dim=1).mean() < 0.6 * images.std(dim=1).mean()
        blurred = self.augmented(images, sigma=2.0 / 20)
        assert blurred.var() < 0.5 * images.var()
        torch.testing.assert_close(blurred.mean(), images.mean(), rtol=0, atol=0.01)
        solarised = self.augmented(images, solarised=1.0)
        torch.testing.assert_close(solarised, torch.where(images < 0.5, images, 1 - images), rtol=0, atol=1e-5)

    def test_a_third_of_the_hue_circle_maps_red_to_green_and_blue(self) -> None:
        red = torch.tensor([0.6, 0.3, 0.3]).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
        turned = {sign: self.augmented(red, hue=sign / 3)[0, :, 4, 4] for sign in (1, -1)}
        assert {int(colour.argmax()) for colour in turned.values()} == {1, 2}

    def test_draws_have_the_configured_probabilities(self) -> None:
        random = np.random.default_rng(0)
        drawn = np.stack([draw_colours(random, blur=0.5, solarise=0.2) for _ in range(600)])
        jittered, grey, blurred, solarised = (
            (column != neutral).mean() for column, neutral in zip(drawn[:, 3:].T, (0, 0, 0, 0), strict=True)
        )
        assert (jittered, grey, blurred, solarised) == pytest.approx((0.8, 0.2, 0.5, 0.2), abs=0.06)


@pytest.mark.parametrize("change", [{"size": 0}, {"num_large": 0}, {"area": (0.0, 1.0)}, {"small_area": (0.5, 0.4)}])
def test_invalid_crops_are_refused(change: dict) -> None:
    with pytest.raises(UsageError) as caught:
        replace(CONFIG, **change)
    assert caught.value.hint


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
