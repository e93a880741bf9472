"""Crops: sizes and areas, reproducibility, flips, and colour augmentation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from page4d.errors import UsageError
from page4d.lab.pretraining import data as crops
from page4d.lab.pretraining.data import CropConfig, draw_colours, read_crops, recolour

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
