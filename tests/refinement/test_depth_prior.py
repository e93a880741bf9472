"""Errors that neighbours share: interpolated between nodes, and alike over the length that is asked for."""

import math

import pytest
import torch

from page4d.refinement.depth_prior import SharedErrors

SIZE = (60, 80)


def positions(seed: int, num: int = 40) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(num, 2, generator=random, dtype=torch.float64) * torch.tensor([80.0, 60.0])


@pytest.mark.parametrize("length", [5.0, 17.0, 60.0, 500.0])
def test_what_is_linear_over_the_image_is_interpolated_exactly(length):
    pixels = positions(0)
    errors = SharedErrors(pixels, SIZE, length)
    told = errors.told(slice(None))
    torch.testing.assert_close(told.sum(dim=-1), torch.ones(len(pixels), dtype=torch.float64))
    corners = torch.tensor([[0.0, 0.0], [80.0, 60.0]], dtype=torch.float64)
    at_corners = SharedErrors(corners, SIZE, length).told(slice(None))
    first, last = at_corners.argmax(dim=-1).tolist()
    assert (first, last) == (0, told.shape[-1] - 1)
    columns = _columns(length)
    across = torch.linspace(0, 80, columns, dtype=torch.float64).repeat(told.shape[-1] // columns)
    torch.testing.assert_close(told @ across, pixels[:, 0])


def test_errors_of_nodes_correlate_as_is_asked_for():
    """By 1/e where they are a length apart; an error between nodes is a little smaller than theirs."""
    errors = SharedErrors(torch.tensor([[0.0, 20.0], [20.0, 20.0], [10.0, 20.0]], dtype=torch.float64), SIZE, 20.0)
    shares = errors.told(slice(None))
    covariance = shares @ torch.linalg.inv(errors.precision) @ shares.T
    torch.testing.assert_close(covariance[0, 0].item(), 1.0)
    torch.testing.assert_close(covariance[1, 0].item(), math.exp(-1))
    assert 0.6 < covariance[2, 2] < 1


def test_some_of_the_pixels_are_told_what_they_are_told_among_all():
    errors = SharedErrors(positions(2), SIZE, 20.0)
    torch.testing.assert_close(errors.told(slice(10, 20)), errors.told(slice(None))[10:20])


def test_with_no_length_nothing_is_shared():
    errors = SharedErrors(positions(3), SIZE, 0.0)
    assert errors.precision.shape == (0, 0)
    assert errors.told(slice(None)).shape == (40, 0)


def _columns(length: float) -> int:
    return 1 + max(1, math.ceil(80 / length))
