"""Spatially correlated errors: interpolated between lattice nodes, with the given correlation length."""

import math

import pytest
import torch

from page4d.stereo.bundle_adjustment import CorrelatedErrors

SIZE = (60, 80)
ALL = slice(None)


def positions(seed: int, num: int = 40) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(num, 2, generator=random, dtype=torch.float64) * torch.tensor([80.0, 60.0])


@pytest.mark.parametrize("length", [5.0, 17.0, 60.0, 500.0])
def test_linear_functions_of_position_are_interpolated_exactly(length):
    pixels = positions(0)
    weights = CorrelatedErrors(pixels, SIZE, length).weights(ALL)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(pixels), dtype=torch.float64))
    corners = torch.tensor([[0.0, 0.0], [80.0, 60.0]], dtype=torch.float64)
    at_corners = CorrelatedErrors(corners, SIZE, length).weights(ALL)
    first, last = at_corners.argmax(dim=-1).tolist()
    assert (first, last) == (0, weights.shape[-1] - 1)
    columns = _columns(length)
    across = torch.linspace(0, 80, columns, dtype=torch.float64).repeat(weights.shape[-1] // columns)
    torch.testing.assert_close(weights @ across, pixels[:, 0])


def test_node_errors_have_the_given_correlation_length():
    """The correlation is 1/e at one length; the variance of interpolated errors is a little below 1."""
    errors = CorrelatedErrors(
        torch.tensor([[0.0, 20.0], [20.0, 20.0], [10.0, 20.0]], dtype=torch.float64), SIZE, 20.0
    )
    weights = errors.weights(ALL)
    covariance = weights @ torch.linalg.inv(errors.precision) @ weights.T
    torch.testing.assert_close(covariance[0, 0].item(), 1.0)
    torch.testing.assert_close(covariance[1, 0].item(), math.exp(-1))
    assert 0.6 < covariance[2, 2] < 1


def test_weights_of_some_pixels_equal_those_among_all():
    errors = CorrelatedErrors(positions(2), SIZE, 20.0)
    torch.testing.assert_close(errors.weights(slice(10, 20)), errors.weights(ALL)[10:20])


def test_length_zero_gives_no_nodes():
    errors = CorrelatedErrors(positions(3), SIZE, 0.0)
    assert errors.precision.shape == (0, 0)
    assert errors.weights(ALL).shape == (40, 0)


def _columns(length: float) -> int:
    return 1 + max(1, math.ceil(80 / length))
