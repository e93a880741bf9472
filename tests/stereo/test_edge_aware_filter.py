"""Joint weighted-median filter: values between two surfaces move to the one of their color, others are preserved."""

import torch
from torch import Tensor

from page4d.stereo.edges import filter_edges

SIZE = (20, 24)
EDGE = 11
"""First column of the background."""


def step(near: float, far: float) -> Tensor:
    values = torch.full((1, *SIZE), near)
    values[..., EDGE:] = far
    return values


def aligned_image() -> Tensor:
    """Return an image with a color edge at the depth edge."""
    return torch.stack([step(0.5, background) for background in (0.3, 0.2, 0.6)], dim=1)


def flat_image() -> Tensor:
    return torch.full((1, 3, *SIZE), 0.5)


def test_values_between_two_surfaces_move_to_the_surface_of_their_color() -> None:
    true = step(0.0, 1.0)
    values, confidence = true.clone(), torch.full_like(true, 4.0)
    values[..., EDGE - 1], values[..., EDGE] = 1 / 3, 2 / 3
    confidence[..., EDGE - 1 : EDGE + 1] = 1.0
    assert torch.equal(filter_edges(values, confidence, aligned_image()), true)


def test_a_dilated_surface_is_cut_at_its_color_edge() -> None:
    true = step(0.0, 1.0)
    values, confidence = true.clone(), torch.full_like(true, 4.0)
    values[..., EDGE - 2 : EDGE] = 1.0
    confidence[..., EDGE - 2 : EDGE] = 1.0
    assert torch.equal(filter_edges(values, confidence, aligned_image()), true)
    assert filter_edges(values, confidence, flat_image())[..., EDGE - 1].eq(1).all()  # no color edge to cut at


def test_steps_and_slopes_are_preserved() -> None:
    confidence = torch.ones(1, *SIZE)
    assert torch.equal(filter_edges(step(0.0, 1.0), confidence, flat_image()), step(0.0, 1.0))
    slope = torch.arange(SIZE[1]).expand(1, *SIZE) * 0.1
    torch.testing.assert_close(filter_edges(slope, confidence, flat_image())[..., 4:-4], slope[..., 4:-4])


def test_isolated_outliers_are_removed() -> None:
    values = torch.zeros(1, *SIZE)
    values[0, 7, 5] = 3
    assert filter_edges(values, torch.ones_like(values), flat_image()).eq(0).all()


def test_weights_grow_with_confidence() -> None:
    values = torch.zeros(1, *SIZE)
    values[..., ::3] = 1  # a minority of a third
    confidence = 1 + 9 * values
    assert filter_edges(values, torch.ones_like(values), flat_image()).mean() < 0.05
    assert filter_edges(values, confidence, flat_image()).mean() > 0.95


def test_images_are_filtered_independently() -> None:
    generator = torch.Generator().manual_seed(0)
    values, confidence = torch.rand(2, 3, *SIZE, generator=generator).unbind()
    images = torch.rand(3, 3, *SIZE, generator=generator)
    together = filter_edges(values, 1 + confidence, images)
    single = [filter_edges(values[n : n + 1], 1 + confidence[n : n + 1], images[n : n + 1]) for n in range(3)]
    assert torch.equal(together, torch.cat(single))
