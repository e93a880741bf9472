"""Hierarchical encoders: stages of shrinking feature maps, and the fusion of their levels."""

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.encoders.base import PatchTokens, apply_head
from page4d.layers.embed import patch_grid


class PyramidConfig(Protocol):
    """Fields that the configurations of hierarchical encoders share."""

    @property
    def level(self) -> int | None:
        """First level to fuse, whose grid the tokens have; without one, tokens are those of the last stage."""

    @property
    def patch_size(self) -> int:
        """Side in pixels of the patch of a token."""


class LevelFusion(nn.Module):
    """Project levels to the width of the finest, upsample them to its grid and add them.

    A cell of level i covers `factors[i]` cells of the finest level per side.

    Source: Lin et al. (2017), "Feature Pyramid Networks", section 3, for the sum of projected levels.
    """

    def __init__(self, dims: Sequence[int], factors: Sequence[int], norm_eps: float) -> None:
        super().__init__()
        self.factors = tuple(factors)
        self.laterals = nn.ModuleList(nn.Linear(dim, dims[0]) for dim in dims)
        self.norm = nn.LayerNorm(dims[0], eps=norm_eps)

    def forward(self, levels: Sequence[Float[Tensor, "F rows columns C"]]) -> Float[Tensor, "F rows columns C"]:
        """Fuse feature maps, finest first."""
        rows, columns = levels[0].shape[1:3]
        total: Tensor = self.laterals[0](levels[0])
        for level, factor, lateral in zip(levels[1:], self.factors[1:], list(self.laterals)[1:], strict=True):
            total = total + _upsample(lateral(level), factor)[:, :rows, :columns]
        fused: Tensor = self.norm(total)
        return fused


class PyramidEncoder(nn.Module):
    """Stages of shrinking feature maps; subclasses build the modules."""

    config: PyramidConfig
    stages: nn.ModuleList
    norm: nn.Module
    fusion: LevelFusion | None
    head: nn.Module | None

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F rows columns C"]:
        """Return the map that enters the first stage."""
        raise NotImplementedError

    def levels(self, images: Float[Tensor, "F 3 H W"]) -> list[Float[Tensor, "F rows columns C"]]:
        """Return the output of every stage; the last one is normalized."""
        maps, levels = self.embed(images), []
        for stage in self.stages:
            maps = stage(maps)
            levels.append(maps)
        levels[-1] = self.norm(levels[-1])
        return levels

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the patch size.

        Raises:
            ShapeError: if they are not.
        """
        patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        levels, level = self.levels(images), self.config.level
        fused = levels[-1] if self.fusion is None or level is None else self.fusion(levels[level:])
        pyramid = tuple(
            PatchTokens(tokens=maps.flatten(1, 2), grid=(maps.shape[1], maps.shape[2])) for maps in levels
        )
        return PatchTokens(tokens=fused.flatten(1, 2), grid=(fused.shape[1], fused.shape[2]), pyramid=pyramid)

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector per image: the mean of the last stage."""
        return self.levels(images)[-1].mean(dim=(1, 2))

    def classify(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F classes"]:
        """Return the class logits.

        Raises:
            UsageError: if there is no head.
        """
        return apply_head(self.head, self.forward_features(images))


def _upsample(maps: Float[Tensor, "F rows columns C"], factor: int) -> Float[Tensor, "F rows2 columns2 C"]:
    """Upsample bilinearly; every cell stays centred on the cells that it covers."""
    planes = functional.interpolate(maps.movedim(-1, 1), scale_factor=float(factor), mode="bilinear")
    return torch.movedim(planes, 1, -1)
