"""Edges of depth: the joint filter and upsampling give the surfaces of their colors, and no value between two."""

import pytest
import torch
from torch import Tensor

import page4d.stereo.edges as upsampling
from page4d.geometry.camera import pixel_grid
from page4d.stereo.edges import filter_edges, upsample

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


LOW, FACTOR = (12, 16), 3
HIGH = (LOW[0] * FACTOR, LOW[1] * FACTOR)
NEAR, FAR = 0.0, 1.0


def positions() -> Tensor:
    return pixel_grid(*HIGH) / FACTOR


def gray(size: tuple[int, int]) -> Tensor:
    return torch.full((3, *size), 0.5)


def edge_at(column: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return image, its mean over network pixels, and the true log depth of a surface that ends at a column."""
    is_near = (torch.arange(HIGH[1]) < column).expand(HIGH)
    image = torch.where(is_near, 0.2, 0.8).expand(3, *HIGH)
    guide = torch.nn.functional.avg_pool2d(image[None], FACTOR)[0]
    return image, guide, torch.where(is_near, NEAR, FAR)


def test_a_slanted_plane_stays_one() -> None:
    row, column = torch.arange(LOW[0]) + 0.5, torch.arange(LOW[1]) + 0.5
    plane = 0.01 * column + 0.006 * row[:, None]
    found, known = upsample(plane[None], torch.ones(LOW), gray(LOW), gray(HIGH), positions())
    expected = 0.01 * positions()[..., 0] + 0.006 * positions()[..., 1]
    inner = (slice(2 * FACTOR, -2 * FACTOR),) * 2
    assert bool(known.all())
    torch.testing.assert_close(found[0][inner], expected[inner], atol=1.5e-3, rtol=0)


@pytest.mark.parametrize("column", [22, 23, 24, 25, 26])
def test_edges_of_depth_move_to_edges_of_color_to_the_pixel(column: int) -> None:
    image, guide, truth = edge_at(column)
    coarse = torch.where(torch.nn.functional.avg_pool2d(truth[None], FACTOR)[0] > 0.5, FAR, NEAR)
    found, _ = upsample(coarse[None], torch.ones(LOW), guide, image, positions())
    torch.testing.assert_close(found[0], truth, atol=1e-4, rtol=0)


def test_no_value_lies_between_two_surfaces() -> None:
    random = torch.Generator().manual_seed(1)
    coarse = torch.where(torch.rand(LOW, generator=random) > 0.5, FAR, NEAR)
    image = torch.rand(3, *HIGH, generator=random)
    guide = torch.nn.functional.avg_pool2d(image[None], FACTOR)[0]
    found, _ = upsample(coarse[None], torch.ones(LOW), guide, image, positions())
    assert torch.minimum((found - NEAR).abs(), (found - FAR).abs()).max() < 1e-6


def test_other_maps_take_the_pixels_of_the_same_surface() -> None:
    image, guide, truth = edge_at(24)
    coarse = torch.nn.functional.avg_pool2d(truth[None], FACTOR)[0]
    found, _ = upsample(torch.stack([coarse, 5 * coarse]), torch.ones(LOW), guide, image, positions())
    torch.testing.assert_close(found[1], 5 * found[0])


def test_pixels_without_weight_do_not_count_and_leave_holes() -> None:
    weight = torch.ones(LOW)
    weight[:, :8] = 0
    coarse = torch.full(LOW, 9.0)
    coarse[:, 8:] = 2.0
    found, known = upsample(coarse[None], weight, gray(LOW), gray(HIGH), positions())
    assert bool(known[:, 8 * FACTOR :].all())
    assert not bool(known[:, : 5 * FACTOR].any())
    assert (found[0][known] == 2.0).all()


def test_rows_in_parts_equal_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(2)
    maps, guide, image = (torch.rand(shape, generator=random) for shape in ((2, *LOW), (3, *LOW), (3, *HIGH)))
    whole = upsample(maps, torch.ones(LOW), guide, image, positions())
    monkeypatch.setattr(upsampling, "_MAX_CANDIDATES", 16 * HIGH[1] * 5)
    parts = upsample(maps, torch.ones(LOW), guide, image, positions())
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])
