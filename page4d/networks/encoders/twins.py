"""The vision transformer with spatially separable attention (Twins-SVT)."""

from enum import StrEnum
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.base import check_level, check_multiple, check_stages
from page4d.networks.encoders.swin import PyramidConfig, PyramidEncoder
from page4d.networks.layers.attention import attend
from page4d.networks.layers.block import (
    MixerBlock,
    NormedPatchEmbed,
    PatchEmbed,
    cut_patches,
)
from page4d.networks.layers.execution import MAX_STAGES, Depth, Epsilon, Side, Width, Window
from page4d.networks.layers.window import WindowAttention, pad_to_multiple

_PATCH_EPS = 1e-5


class TwinsDesign(StrEnum):
    """Variants that differ in norms, in the sub-sampling of keys and in the place of the positional encoding."""

    PAPER = "paper"
    """As published by the authors: keys from a strided convolution and a norm, positions after the first block."""

    DOCUMENT = "document"
    """As in the public vit-pytorch code: patches between two norms, keys straight from the convolution, positions
    after the first pair of blocks, no local attention in the last stage, no final norm."""


@config_record("encoder")
class TwinsConfig(PyramidConfig):
    """Architecture of Twins-SVT; tuples have one entry per stage.

    Blocks alternate attention within groups of `windows` tokens per side and attention to keys that each summarize
    `reductions` tokens per side.
    """

    kind: Literal["twins"] = "twins"
    patches: Annotated[tuple[Side, ...], Field(max_length=MAX_STAGES)] = (4, 2, 2, 2)
    dims: Annotated[tuple[Width, ...], Field(max_length=MAX_STAGES)] = (64, 128, 256, 512)
    depths: Annotated[tuple[Depth, ...], Field(max_length=MAX_STAGES)] = (2, 2, 10, 4)
    num_heads: Annotated[tuple[Width, ...], Field(max_length=MAX_STAGES)] = (2, 4, 8, 16)
    head_dim: Width | None = None
    windows: Annotated[tuple[Window, ...], Field(max_length=MAX_STAGES)] = (7, 7, 7, 7)
    reductions: Annotated[tuple[Window, ...], Field(max_length=MAX_STAGES)] = (8, 4, 2, 1)
    position_kernel: Window = 3
    norm_eps: Epsilon = 1e-6
    design: TwinsDesign = TwinsDesign.PAPER

    def __post_init__(self) -> None:
        names = ("patches", "dims", "depths", "num_heads", "windows", "reductions")
        check_stages(**{name: getattr(self, name) for name in names})
        if self.position_kernel % 2 == 0:
            raise UsageError(f"encoder: position_kernel {self.position_kernel} is even", "use an odd number")
        if self.head_dim is None:
            for dim, num_heads in zip(self.dims, self.num_heads, strict=True):
                check_multiple("stage width", dim, "num_heads", num_heads)
        check_level(self.level, len(self.dims))

    def is_local(self, stage: int, block: int) -> bool:
        """Return whether a block attends within groups rather than to sub-sampled keys."""
        all_global = self.design is TwinsDesign.DOCUMENT and stage == len(self.dims) - 1
        return block % 2 == 0 and not all_global


class SubSampledAttention(nn.Module):
    """Attention of every token to keys and values that each summarize a square of tokens.

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
        """Attend from every token of the map to the sub-sampled keys."""
        grid = (maps.shape[1], maps.shape[2])
        (query,) = self._heads(self.q(maps.flatten(1, 2)), 1)
        key, value = self._heads(self.kv(self.sub_sampled(maps)), 2)
        mixed: Tensor = self.proj(attend(query, key, value).transpose(1, 2).flatten(2))
        return torch.unflatten(mixed, 1, grid)

    def sub_sampled(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F M D"]:
        """Return one token per whole square of the map; a map smaller than a square is padded with zeros to one."""
        side = self.reduction
        rows, columns = (max(count - count % side, side) for count in maps.shape[1:3])
        whole = maps[:, :rows, :columns]
        whole = functional.pad(whole, (0, 0, 0, columns - whole.shape[2], 0, rows - whole.shape[1]))
        if self.summary is not None and self.norm is not None:
            return self.norm(self.summary(whole.movedim(-1, 1)))
        return cut_patches(whole, (side, side)).flatten(1, 2)

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        heads = torch.unflatten(projected, -1, (parts, self.num_heads, -1))  # [F, M, part, head, d]
        return heads.permute(2, 0, 3, 1, 4).unbind(0)


class PositionGenerator(nn.Module):
    """Conditional positional encoding: a depthwise convolution whose zero padding makes it position-dependent.

    Source: Chu et al. (2023), "Conditional Positional Encodings", section 3.2.
    """

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(dim, dim, kernel_size=kernel, padding=kernel // 2, groups=dim)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows columns C"]:
        """Add the encoding to the map."""
        return maps + self.proj(maps.movedim(-1, 1)).movedim(1, -1)


class TwinsPatches(nn.Module):
    """Merge the tokens of a square into one of the next width; other sides are padded with zeros."""

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
        """Return the smaller map."""
        whole = pad_to_multiple(maps, self.side)
        if self.embed is not None:
            return self.embed(cut_patches(whole, (self.side, self.side)))
        assert self.convolution is not None
        grid = (whole.shape[1] // self.side, whole.shape[2] // self.side)
        return torch.unflatten(self.norm(self.convolution(whole.movedim(-1, 1))), 1, grid)


class TwinsStage(nn.Module):
    """Patch merging, then local and sub-sampled attention in turn.

    Positions are added after the first block or the first pair of blocks.
    """

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
                else SubSampledAttention(config, stage),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_eps=config.norm_eps,
                drop_path=rate,
            )
            for index, rate in enumerate(rates)
        )
        self.positions = PositionGenerator(dim, config.position_kernel)
        self.positions_after = 1 if plain and config.is_local(stage, 0) else 0

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Return a smaller, wider map."""
        maps = self.patches(maps)
        for index, block in enumerate(self.blocks):
            maps = block(maps)
            if index == self.positions_after:
                maps = self.positions(maps)
        return maps


class Twins(PyramidEncoder):
    """Stages that alternate locally grouped and globally sub-sampled attention (SVT).

    Source: Chu et al. (2021), "Twins: Revisiting the Design of Spatial Attention in Vision Transformers".
    """

    config: TwinsConfig

    def __init__(self, config: TwinsConfig) -> None:
        super().__init__()
        self.config = config
        normed = config.design is TwinsDesign.PAPER
        self.build_stages(TwinsStage, nn.LayerNorm(config.dims[-1], eps=config.norm_eps) if normed else nn.Identity())

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F H W 3"]:
        """Move the color channels last; the first stage embeds the patches."""
        return torch.movedim(images, 1, -1)
