"""Regions that cover a mask: complete, tight, and merged where one box costs no more than two."""

import pytest
import torch
from torch import Tensor

from page4d.stereo.regions import covering_regions


def covered(mask: Tensor) -> Tensor:
    found = torch.zeros_like(mask)
    for region in covering_regions(mask):
        found[region] = True
    return found


@pytest.mark.parametrize("size", [(60, 80), (240, 320), (1080, 1920), (7, 5)])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3])
def test_every_pixel_is_covered(size: tuple[int, int], share: float) -> None:
    mask = torch.rand(size, generator=torch.Generator().manual_seed(0)) < share
    found = covered(mask)
    assert bool(found[mask].all())
    assert bool(found.any()) == bool(mask.any())


def test_distant_parts_are_apart_and_near_ones_together() -> None:
    mask = torch.zeros(480, 640, dtype=torch.bool)
    mask[10:50, 20:60] = mask[400:440, 580:620] = True
    mask[10:50, 80:120] = True  # beside the first
    assert sorted(covering_regions(mask), key=lambda region: region[0].start) == [
        (slice(10, 50), slice(20, 120)),
        (slice(400, 440), slice(580, 620)),
    ]


def test_a_part_inside_the_box_of_another_is_no_region_of_its_own() -> None:
    mask = torch.zeros(480, 640, dtype=torch.bool)
    mask[100:400, 100] = mask[100, 100:500] = True  # an L
    mask[200:220, 300:320] = True
    assert covering_regions(mask) == [(slice(100, 400), slice(100, 500))]


def test_many_specks_need_few_regions() -> None:
    mask = torch.rand(1080, 1920, generator=torch.Generator().manual_seed(1)) < 1e-4
    assert len(covering_regions(mask)) < 20
