"""Depth between two surfaces goes to the one that looks the same, and what is right stays."""

import torch
from torch import Tensor

from page4d.refinement.edge_aware_filter import sharpen

SIZE = (20, 24)
EDGE = 11
"""The first column of what is behind."""


def step(near: float, far: float) -> Tensor:
    values = torch.full((1, *SIZE), near)
    values[..., EDGE:] = far
    return values


def picture() -> Tensor:
    """An image whose colours change where depth does."""
    return torch.stack([step(0.5, there) for there in (0.3, 0.2, 0.6)], dim=1)


def test_what_is_between_two_surfaces_goes_to_the_one_of_its_colour() -> None:
    true = step(0.0, 1.0)
    said, confidence = true.clone(), torch.full_like(true, 4.0)
    said[..., EDGE - 1], said[..., EDGE] = 1 / 3, 2 / 3
    confidence[..., EDGE - 1 : EDGE + 1] = 1.0
    assert torch.equal(sharpen(said, confidence, picture()), true)


def test_a_surface_that_is_too_wide_ends_where_its_colour_does() -> None:
    true = step(0.0, 1.0)
    said, confidence = true.clone(), torch.full_like(true, 4.0)
    said[..., EDGE - 2 : EDGE] = 1.0
    confidence[..., EDGE - 2 : EDGE] = 1.0
    assert torch.equal(sharpen(said, confidence, picture()), true)
    flat = torch.full((1, 3, *SIZE), 0.5)
    assert sharpen(said, confidence, flat)[..., EDGE - 1].eq(1).all()  # nothing shows where it ends


def test_steps_and_slopes_stay() -> None:
    flat = torch.full((1, 3, *SIZE), 0.5)
    sure = torch.ones(1, *SIZE)
    assert torch.equal(sharpen(step(0.0, 1.0), sure, flat), step(0.0, 1.0))
    slope = torch.arange(SIZE[1]).expand(1, *SIZE) * 0.1
    torch.testing.assert_close(sharpen(slope, sure, flat)[..., 4:-4], slope[..., 4:-4])


def test_a_pixel_that_nobody_around_it_agrees_with_follows_them() -> None:
    said = torch.zeros(1, *SIZE)
    said[0, 7, 5] = 3
    assert sharpen(said, torch.ones_like(said), torch.full((1, 3, *SIZE), 0.5)).eq(0).all()


def test_what_is_sure_counts_more() -> None:
    said = torch.zeros(1, *SIZE)
    said[..., ::3] = 1  # a third of the pixels, so that the others outvote them
    confidence = 1 + 9 * said
    flat = torch.full((1, 3, *SIZE), 0.5)
    assert sharpen(said, torch.ones_like(said), flat).mean() < 0.05
    assert sharpen(said, confidence, flat).mean() > 0.95


def test_images_are_sharpened_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    said, confidence = torch.rand(2, 3, *SIZE, generator=generator).unbind()
    images = torch.rand(3, 3, *SIZE, generator=generator)
    together = sharpen(said, 1 + confidence, images)
    alone = [sharpen(said[n : n + 1], 1 + confidence[n : n + 1], images[n : n + 1]) for n in range(3)]
    assert torch.equal(together, torch.cat(alone))
