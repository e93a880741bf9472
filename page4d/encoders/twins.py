"""The vision transformer of spatially separable attention: within groups of tokens, and to a summary of all."""

import operator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from math import prod
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.encoders.base import PatchTokens, apply_head
from page4d.encoders.checks import check_classes, check_drop_path, check_heads, check_positive
from page4d.encoders.pyramid import LevelFusion, channels_last, check_level, pyramid_tokens
from page4d.errors import UsageError
from page4d.layers.attention import attend
from page4d.layers.block import MixerBlock, drop_path_rates, initialise_linears
from page4d.layers.embed import NormedPatchEmbed, PatchEmbed, cut_patches, patch_grid
from page4d.layers.window import WindowAttention, pad_to_multiple

_PATCH_EPS = 1e-5


class TwinsDesign(StrEnum):
    """Whose details: they differ in norms, in how keys are summarised and in where positions are generated."""

    PAPER = "paper"
    """As published by the authors: keys from a strided convolution and a norm, positions after the first block."""

    DOCUMENT = "document"
    """As in the specification: patches between two norms, keys straight from the convolution, positions after the
    first pair of blocks, the last stage without groups, no last norm."""


@dataclass(frozen=True, kw_only=True)
class TwinsConfig:
    """Size of the encoder; any image size is in range, `image_size` is the one that it was made for.

    Every entry of a tuple is for one stage. Blocks alternate attention within groups of `windows` tokens a side and
    attention to keys of which each summarises `reductions` tokens a side. Tokens are those of the last stage; with a
    `level`, all stages from that one on are fused on its grid.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["twins"] = "twins"
    image_size: int = 224
    patches: tuple[int, ...] = (4, 2, 2, 2)
    dims: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 10, 4)
    num_heads: tuple[int, ...] = (2, 4, 8, 16)
    head_dim: int | None = None
    windows: tuple[int, ...] = (7, 7, 7, 7)
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    position_kernel: int = 3
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6
    design: TwinsDesign = TwinsDesign.PAPER
    level: int | None = None
    num_classes: int | None = None
    """Without a number there is no head."""

    drop_path: float = 0.0
    """Probability with which training leaves out a branch of the last block; it grows from 0 in the first."""

    def __post_init__(self) -> None:
        each = (self.patches, self.dims, self.depths, self.num_heads, self.windows, self.reductions)
        if len({len(values) for values in each}) != 1 or not self.dims:
            raise UsageError(f"encoder: stages of {[len(values) for values in each]} numbers", "give one a stage")
        check_positive(
            "twins", self.image_size, self.head_dim or 1, *(number for values in each for number in values)
        )
        if self.position_kernel < 1 or self.position_kernel % 2 == 0:
            raise UsageError(f"encoder: position_kernel {self.position_kernel}", "use an odd number")
        if self.head_dim is None:
            check_heads(self.dims, self.num_heads)
        check_level(self.level, len(self.dims))
        check_drop_path(self.drop_path)
        check_classes(self.num_classes)
        object.__setattr__(self, "design", TwinsDesign(self.design))

    @property
    def token_level(self) -> int:
        """Stage whose grid the tokens have."""
        return len(self.dims) - 1 if self.level is None else self.level

    @property
    def embed_dim(self) -> int:
        """Width of the tokens."""
        return self.dims[self.token_level]

    @property
    def patch_size(self) -> int:
        """Side in pixels of the patch that a token stands for."""
        return prod(self.patches[: self.token_level + 1])

    def is_local(self, stage: int, block: int) -> bool:
        """Tell whether a block attends within groups, not to a summary of the map."""
        alone = self.design is TwinsDesign.DOCUMENT and stage == len(self.dims) - 1
        return block % 2 == 0 and not alone


class SummaryAttention(nn.Module):
    """Attention of every token to keys and values that each summarise a square of them.

    Source: Chu et al. (2021), eq. 5 (globally sub-sampled attention).
    """

    def __init__(self, config: TwinsConfig, stage: int) -> None:
        super().__init__()
        dim, self.num_heads, self.reduction = config.dims[stage], config.num_heads[stage], config.reductions[stage]
        inner = self.num_heads * (config.head_dim or dim // self.num_heads)
        plain = config.design is TwinsDesign.DOCUMENT
        convolved = not plain and self.reduction > 1
        self.summary = PatchEmbed(dim, self.reduction, dim) if convolved else None
        self.norm = nn.LayerNorm(dim, eps=_PATCH_EPS) if convolved else None
        self.q = nn.Linear(dim, inner, bias=not plain)
        self.kv = nn.Linear(dim * self.reduction**2 if plain else dim, 2 * inner, bias=not plain)
        self.proj = nn.Linear(inner, dim)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows columns C"]:
        """Mix the tokens of the whole map."""
        grid = (maps.shape[1], maps.shape[2])
        (query,) = self._heads(self.q(maps.flatten(1, 2)), 1)
        key, value = self._heads(self.kv(self.summarised(maps)), 2)
        mixed: Tensor = self.proj(attend(query, key, value).transpose(1, 2).flatten(2))
        return torch.unflatten(mixed, 1, grid)

    def summarised(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F M D"]:
        """Return a token for every whole square of the map, which is at least one: small maps end in zeros."""
        side = self.reduction
        rows, columns = (max(count - count % side, side) for count in maps.shape[1:3])
        whole = maps[:, :rows, :columns]
        whole = functional.pad(whole, (0, 0, 0, columns - whole.shape[2], 0, rows - whole.shape[1]))
        if self.summary is not None and self.norm is not None:
            summary: Tensor = self.norm(self.summary(whole.movedim(-1, 1)))
            return summary
        return cut_patches(whole, (side, side)).flatten(1, 2)

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        heads = torch.unflatten(projected, -1, (parts, self.num_heads, -1))  # [F, M, part, head, d]
        return heads.permute(2, 0, 3, 1, 4).unbind(0)


class PositionGenerator(nn.Module):
    """Add a depthwise convolution of the map, which knows the border and thereby the place.

    Source: Chu et al. (2023), "Conditional Positional Encodings", section 3.2.
    """

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(dim, dim, kernel_size=kernel, padding=kernel // 2, groups=dim)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows columns C"]:
        """Add what the surroundings of every token say."""
        surroundings: Tensor = self.proj(maps.movedim(-1, 1))
        return maps + surroundings.movedim(1, -1)


class TwinsPatches(nn.Module):
    """Join the tokens of a square into one of the next width; sides that do not divide are continued with zeros."""

    def __init__(self, config: TwinsConfig, stage: int) -> None:
        super().__init__()
        self.side = config.patches[stage]
        before, dim = (3, *config.dims)[stage], config.dims[stage]
        self.embed: NormedPatchEmbed | None = None
        self.convolution: PatchEmbed | None = None
        if config.design is TwinsDesign.DOCUMENT:
            self.embed = NormedPatchEmbed(before * self.side**2, dim)
        else:
            self.convolution = PatchEmbed(dim, self.side, before)
            self.norm = nn.LayerNorm(dim, eps=_PATCH_EPS)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Pass on the smaller map."""
        whole = pad_to_multiple(maps, self.side)
        if self.embed is not None:
            joined: Tensor = self.embed(cut_patches(whole, (self.side, self.side)))
            return joined
        assert self.convolution is not None
        grid = (whole.shape[1] // self.side, whole.shape[2] // self.side)
        return torch.unflatten(self.norm(self.convolution(whole.movedim(-1, 1))), 1, grid)


class TwinsStage(nn.Module):
    """Join patches, then alternate both kinds of attention; positions are generated after the first block or pair."""

    def __init__(self, config: TwinsConfig, stage: int, rates: list[float]) -> None:
        super().__init__()
        dim, heads = config.dims[stage], config.num_heads[stage]
        plain = config.design is TwinsDesign.DOCUMENT
        self.patches = TwinsPatches(config, stage)
        self.blocks = nn.ModuleList(
            MixerBlock(
                dim,
                WindowAttention(dim, heads, config.windows[stage], head_dim=config.head_dim, qkv_bias=not plain)
                if config.is_local(stage, index)
                else SummaryAttention(config, stage),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_eps=config.norm_eps,
                drop_path=rate,
            )
            for index, rate in enumerate(rates)
        )
        self.positions = PositionGenerator(dim, config.position_kernel)
        self.positions_after = 1 if plain and config.is_local(stage, 0) else 0

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Pass on a smaller, wider map."""
        maps = self.patches(maps)
        for index, block in enumerate(self.blocks):
            maps = block(maps)
            if index == self.positions_after:
                maps = self.positions(maps)
        return maps


class Twins(nn.Module):
    """Stages that alternate locally grouped and globally sub-sampled attention (SVT).

    Source: Chu et al. (2021), "Twins: Revisiting the Design of Spatial Attention in Vision Transformers".
    """

    def __init__(self, config: TwinsConfig) -> None:
        super().__init__()
        self.config = config
        rates = drop_path_rates(sum(config.depths), config.drop_path)
        ends = list(accumulate(config.depths))
        self.stages = nn.ModuleList(
            TwinsStage(config, stage, rates[end - config.depths[stage] : end]) for stage, end in enumerate(ends)
        )
        normed = config.design is TwinsDesign.PAPER
        self.norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps) if normed else nn.Identity()
        self.fusion: LevelFusion | None = None
        if config.level is not None:
            later = list(accumulate(config.patches[config.level + 1 :], operator.mul))
            self.fusion = LevelFusion(config.dims[config.level :], [1, *later], config.norm_eps)
        self.head = None if config.num_classes is None else nn.Linear(config.dims[-1], config.num_classes)
        initialise_linears(self)

    def levels(self, images: Float[Tensor, "F 3 H W"]) -> list[Float[Tensor, "F rows columns C"]]:
        """Return what leaves every stage; the last one is normalised."""
        maps, levels = channels_last(images), []
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
        return pyramid_tokens(self.levels(images), self.config.level, self.fusion)

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector an image: the mean of the last stage."""
        return self.levels(images)[-1].mean(dim=(1, 2))

    def classify(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F classes"]:
        """Return the logits of the classes.

        Raises:
            UsageError: if it has no head.
        """
        return apply_head(self.head, self.forward_features(images))
