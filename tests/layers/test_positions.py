"""Rotary positions: dot products depend on position differences only."""

import pytest
import torch

from page4d.errors import ShapeError
from page4d.networks.layers.attention import rotary_tables

torch.manual_seed(0)
HEAD_DIM = 16
POSITIONS = torch.tensor([[0, 0], [1, 1], [1, 2], [3, 1], [7, 5]])
TABLES = rotary_tables(POSITIONS, HEAD_DIM, dtype=torch.float64)


def test_rotation_equals_complex_multiplication() -> None:
    """Channels i and i + d/4 of a half form a complex number, rotated by position * 100**(-4i/d)."""
    heads = torch.randn(2, 3, 5, HEAD_DIM, dtype=torch.float64)
    rotated = TABLES.rotate(heads)
    for half in range(2):
        for i in range(4):
            first, second = 8 * half + i, 8 * half + i + 4
            rotated_pair = torch.complex(heads[..., first], heads[..., second])
            rotated_pair = rotated_pair * torch.exp(1j * POSITIONS[:, half].double() * 100.0 ** (-i / 4))
            torch.testing.assert_close(rotated[..., first], rotated_pair.real)
            torch.testing.assert_close(rotated[..., second], rotated_pair.imag)


def test_position_zero_is_the_identity() -> None:
    heads = torch.randn(1, 1, 5, HEAD_DIM, dtype=torch.float64)
    assert torch.equal(TABLES.rotate(heads)[..., 0, :], heads[..., 0, :])


@pytest.mark.parametrize("shift", [(1, 0), (0, 4), (3, 2)])
def test_dot_products_depend_on_position_differences_only(shift: tuple[int, int]) -> None:
    query, key = torch.randn(2, 5, HEAD_DIM, dtype=torch.float64)
    moved = rotary_tables(POSITIONS + torch.tensor(shift), HEAD_DIM, dtype=torch.float64)
    before = TABLES.rotate(query) @ TABLES.rotate(key).T
    after = moved.rotate(query) @ moved.rotate(key).T
    torch.testing.assert_close(before, after)


def test_repeated_tables_rotate_concatenated_images() -> None:
    heads = torch.randn(2, 3, 10, HEAD_DIM, dtype=torch.float64)
    rotated = TABLES.repeat(2).rotate(heads)
    torch.testing.assert_close(rotated[..., 5:, :], TABLES.rotate(heads[..., 5:, :]))
    assert TABLES.repeat(1) is TABLES


def test_tables_are_float32_by_default() -> None:
    assert rotary_tables(POSITIONS, HEAD_DIM).cos.dtype is torch.float32


def test_head_widths_that_are_not_multiples_of_4_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiples of 4, not 6"):
        rotary_tables(POSITIONS, 6)
