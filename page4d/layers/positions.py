"""Positions of patches: grids, learned tables, and two-dimensional rotary positions (RoPE)."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from page4d.errors import ShapeError

DEFAULT_BASE = 100.0
_TABLE_OFFSET = 0.1


def grid_positions(grid: tuple[int, int], device: torch.device | str = "cpu") -> Int[Tensor, "P 2"]:
    """Return the (row, column) of every cell of a grid of (rows, columns), row by row."""
    rows, columns = (torch.arange(count, device=device) for count in grid)
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)


class TableResampling(StrEnum):
    """Bicubic resampling of a position table to another grid."""

    ANTIALIASED = "antialiased"
    """With antialiasing, whose kernel differs from the plain one also for upsampling."""

    OFFSET = "offset"
    """Without antialiasing, at coordinates scaled by (side + 0.1) / learned side: the first DINOv2 release."""


def centered_positions(grid: tuple[int, int], device: torch.device | str = "cpu") -> Float[Tensor, "P 2"]:
    """Return 2 pi times (y, x) of the patch centers: from -1 at the top left, to 1 along the longer side.

    Source: Simeoni et al. (2025), DINOv3; division of both axes by the longer side as in the public VGGT-Omega code
    (reference facts).
    """
    centers = [torch.arange(count, dtype=torch.float64, device=device) + 0.5 for count in grid]
    y, x = (2 * center / max(grid) - 1 for center in centers)
    return 2 * math.pi * torch.cartesian_prod(y, x).reshape(-1, 2)


def after_special(positions: Shaped[Tensor, "P 2"], num_special: int) -> Shaped[Tensor, "N 2"]:
    """Prepend special tokens, which are at (0, 0)."""
    return torch.cat([positions.new_zeros(num_special, 2), positions])


def resample_positions(
    table: Float[Tensor, "one P C"],
    learned: tuple[int, int],
    grid: tuple[int, int],
    num_special: int = 0,
    rule: TableResampling = TableResampling.ANTIALIASED,
) -> Float[Tensor, "one P1 C"]:
    """Resample a position table from the grid `learned` to another one; the leading special entries are kept.

    In at least float32.

    Source: Dosovitskiy et al. (2021), ViT, section 3.2; the kernels of the public DINOv2 and timm code (reference
    facts).
    """
    if grid == learned:
        return table
    exact = table.to(torch.promote_types(table.dtype, torch.float32))
    maps = torch.unflatten(exact[:, num_special:], 1, learned).permute(0, 3, 1, 2)
    if rule is TableResampling.ANTIALIASED:
        resampled = functional.interpolate(maps, size=grid, mode="bicubic", align_corners=False, antialias=True)
    else:
        scales = tuple((side + _TABLE_OFFSET) / old for side, old in zip(grid, learned, strict=True))
        resampled = functional.interpolate(maps, scale_factor=scales, mode="bicubic", align_corners=False)
    return torch.cat([exact[:, :num_special], resampled.flatten(2).transpose(1, 2)], dim=1)


@dataclass(frozen=True, kw_only=True)
class RotaryTables:
    """Cosines and sines of the angles of every token, shared by all heads and blocks of a forward pass."""

    cos: Float[Tensor, "*groups N d"]
    sin: Float[Tensor, "*groups N d"]

    def repeat(self, count: int) -> "RotaryTables":
        """Return the tables of `count` concatenated images with the same positions."""
        if count == 1:
            return self
        return RotaryTables(cos=self.cos.repeat(count, 1), sin=self.sin.repeat(count, 1))

    def at(self, places: Int[Tensor, "*groups K"]) -> "RotaryTables":
        """Return the tables of the tokens at `places`; batched places give tables [batch, 1, K, d]."""
        cos, sin = self.cos[places], self.sin[places]
        return (
            RotaryTables(cos=cos, sin=sin) if places.ndim == 1 else RotaryTables(cos=cos[:, None], sin=sin[:, None])
        )

    def of_groups(self, chosen: slice) -> "RotaryTables":
        """Return the tables of a slice of the batch; unbatched tables are shared."""
        return self if self.cos.ndim == 2 else RotaryTables(cos=self.cos[chosen], sin=self.sin[chosen])

    def of_tokens(self, rows: slice) -> "RotaryTables":
        """Return the tables of a range of tokens."""
        return RotaryTables(cos=self.cos[..., rows, :], sin=self.sin[..., rows, :])

    def rotate(self, heads: Float[Tensor, "*batch N d"]) -> Float[Tensor, "*batch N d"]:
        """Rotate queries or keys by their angles; channel i pairs with channel i + d/4 inside each half."""
        first, second = _pairs(heads)
        if heads.requires_grad:
            return heads * self.cos + torch.stack([-second, first], dim=-2).flatten(-3) * self.sin
        rotated = heads * self.cos
        own, other = _pairs(rotated)  # in place: runs on every query and key of every block
        first_sine, second_sine = _pairs(self.sin)
        own.addcmul_(second.to(rotated.dtype), first_sine, value=-1)
        other.addcmul_(first.to(rotated.dtype), second_sine)
        return rotated


def rotary_tables(
    positions: Int[Tensor, "*batch N 2"] | Float[Tensor, "*batch N 2"],
    head_dim: int,
    base: float = DEFAULT_BASE,
    dtype: torch.dtype = torch.float32,
) -> RotaryTables:
    """Compute the tables of (row, column) positions; position (0, 0) is the identity.

    Raises:
        ShapeError: if `head_dim` is not a multiple of 4.

    Source: Su et al. (2021), RoFormer, eq. 15, once per axis; base 100 and the order row, column are those of the
    public VGGT code (reference facts).
    """
    if head_dim % 4:
        raise ShapeError(f"rotary positions need a head width in multiples of 4, not {head_dim}", "change num_heads")
    quarter = head_dim // 4
    exponents = torch.arange(quarter, dtype=dtype, device=positions.device) / quarter
    angles = positions.to(dtype)[..., None] * base**-exponents  # [N, 2, d/4]
    angles = torch.stack([angles, angles], dim=-2).flatten(-3)  # [N, d]
    return RotaryTables(cos=angles.cos(), sin=angles.sin())


def _pairs(heads: Float[Tensor, "*batch N d"]) -> tuple[Float[Tensor, "*batch N 2 d4"], ...]:
    """Return the first and the second channels of the pairs, by axis (row, column) and frequency."""
    return torch.unflatten(heads, -1, (2, 2, -1)).unbind(-2)
