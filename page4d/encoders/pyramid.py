"""Levels of an encoder whose map shrinks from stage to stage, and how they become tokens of one grid."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.encoders.base import PatchTokens
from page4d.errors import UsageError


def check_level(level: int | None, num_stages: int) -> None:
    """Refuse a level that does not exist.

    Raises:
        UsageError: if so.
    """
    if level is not None and not 0 <= level < num_stages:
        raise UsageError(
            f"encoder: level {level} of {num_stages} stages", f"name one from 0 to {num_stages - 1}, or none"
        )


def as_tokens(maps: Float[Tensor, "F rows columns C"]) -> PatchTokens:
    """Return the cells of a map row by row."""
    return PatchTokens(tokens=maps.flatten(1, 2), grid=(maps.shape[1], maps.shape[2]))


class LevelFusion(nn.Module):
    """Project the levels from one on to its width, enlarge them to its grid and add them up.

    `factors` say how many cells of that level, a side, a cell of each level covers.

    Source: Lin et al. (2017), "Feature Pyramid Networks", section 3, for the sum of projected levels.
    """

    def __init__(self, dims: Sequence[int], factors: Sequence[int], norm_eps: float) -> None:
        super().__init__()
        self.factors = tuple(factors)
        self.laterals = nn.ModuleList(nn.Linear(dim, dims[0]) for dim in dims)
        self.norm = nn.LayerNorm(dims[0], eps=norm_eps)

    def forward(self, levels: Sequence[Float[Tensor, "F rows columns C"]]) -> Float[Tensor, "F rows columns C"]:
        """Fuse maps, the finest first."""
        rows, columns = levels[0].shape[1:3]
        total: Tensor = self.laterals[0](levels[0])
        for level, factor, lateral in zip(levels[1:], self.factors[1:], list(self.laterals)[1:], strict=True):
            total = total + _enlarged(lateral(level), factor)[:, :rows, :columns]
        fused: Tensor = self.norm(total)
        return fused


def _enlarged(maps: Float[Tensor, "F rows columns C"], factor: int) -> Float[Tensor, "F rows2 columns2 C"]:
    """Enlarge bilinearly, so that every cell stays centred on the cells that it covers."""
    planes = functional.interpolate(maps.movedim(-1, 1), scale_factor=float(factor), mode="bilinear")
    return planes.movedim(1, -1)


def pyramid_tokens(
    levels: Sequence[Float[Tensor, "F rows columns C"]], level: int | None, fusion: LevelFusion | None
) -> PatchTokens:
    """Return the tokens of the last level, or those fused at `level`, with the whole pyramid."""
    chosen = levels[-1] if fusion is None or level is None else fusion(levels[level:])
    tokens = as_tokens(chosen)
    return PatchTokens(tokens=tokens.tokens, grid=tokens.grid, pyramid=tuple(as_tokens(maps) for maps in levels))


def channels_last(images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F H W 3"]:
    """Move the colours behind the sides."""
    return torch.movedim(images, 1, -1)
