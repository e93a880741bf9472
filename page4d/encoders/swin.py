"""The hierarchical vision transformer of shifted windows."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.encoders.base import PatchTokens, apply_head
from page4d.encoders.checks import check_classes, check_drop_path, check_heads, check_positive
from page4d.encoders.pyramid import LevelFusion, check_level, pyramid_tokens
from page4d.errors import UsageError
from page4d.layers.block import INIT_STD, MixerBlock, drop_path_rates, initialise_linears
from page4d.layers.embed import PatchEmbed, patch_grid
from page4d.layers.positions import resample_positions
from page4d.layers.window import ShiftedWindowAttention, pad_to_multiple


@dataclass(frozen=True, kw_only=True)
class SwinConfig:
    """Size of the encoder; `image_size` is the square that it was made for, other sizes work.

    Stage i works on patches of `first_patch` * 2^i pixels and has the width `dim` * 2^i. Tokens are those of the last
    stage; with a `level`, all stages from that one on are fused on its grid.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["swin"] = "swin"
    image_size: int = 224
    first_patch: int = 4
    dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    patch_norm: bool = True
    absolute_positions: bool = False
    level: int | None = None
    norm_eps: float = 1e-5
    num_classes: int | None = None
    """Without a number there is no head."""

    drop_path: float = 0.0
    """Probability with which training leaves out a branch of the last block; it grows from 0 in the first."""

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.num_heads) or not self.depths:
            raise UsageError(
                f"encoder: {len(self.depths)} depths and {len(self.num_heads)} num_heads", "give one of each a stage"
            )
        sizes = (self.image_size, self.first_patch, self.dim, self.window, *self.num_heads, *self.depths)
        check_positive("swin", *sizes)
        check_heads(self.dims, self.num_heads)
        check_level(self.level, len(self.depths))
        check_drop_path(self.drop_path)
        check_classes(self.num_classes)
        if self.image_size % self.first_patch:
            raise UsageError(
                f"encoder: image_size {self.image_size} is not a multiple of first_patch {self.first_patch}",
                "choose a multiple",
            )

    @property
    def dims(self) -> tuple[int, ...]:
        """Width of every stage."""
        return tuple(self.dim << stage for stage in range(len(self.depths)))

    @property
    def token_level(self) -> int:
        """Stage whose grid the tokens have."""
        return len(self.depths) - 1 if self.level is None else self.level

    @property
    def embed_dim(self) -> int:
        """Width of the tokens."""
        return self.dims[self.token_level]

    @property
    def patch_size(self) -> int:
        """Side in pixels of the patch that a token stands for."""
        return self.first_patch << self.token_level


class PatchMerging(nn.Module):
    """Join 2 x 2 tokens, column by column, into one of twice the width.

    Source: Liu et al. (2021), section 3.1; the order of the public code (reference facts).
    """

    def __init__(self, dim: int, norm_eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=norm_eps)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Halve the sides; odd ones are continued with zeros."""
        even = pad_to_multiple(maps, 2)
        joined = torch.cat([even[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
        merged: Tensor = self.reduction(self.norm(joined))
        return merged


class SwinStage(nn.Module):
    """Merge patches, unless it is the first stage, then alternate windows as they lie and shifted by half of one."""

    def __init__(self, config: SwinConfig, stage: int, rates: list[float]) -> None:
        super().__init__()
        dim = config.dims[stage]
        self.merging = PatchMerging(dim // 2, config.norm_eps) if stage else nn.Identity()
        self.blocks = nn.ModuleList(
            MixerBlock(
                dim,
                ShiftedWindowAttention(
                    dim,
                    config.num_heads[stage],
                    config.window,
                    shift=config.window // 2 if index % 2 else 0,
                    qkv_bias=config.qkv_bias,
                ),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_eps=config.norm_eps,
                drop_path=rate,
            )
            for index, rate in enumerate(rates)
        )

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Pass on a map of half the sides and twice the width, or of the same in the first stage."""
        maps = self.merging(maps)
        for block in self.blocks:
            maps = block(maps)
        return maps


class Swin(nn.Module):
    """Stages of window attention, between which patches are merged.

    Source: Liu et al. (2021), "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows".
    """

    def __init__(self, config: SwinConfig) -> None:
        super().__init__()
        self.config = config
        self.table_side = config.image_size // config.first_patch
        self.patch_embed = PatchEmbed(config.dim, config.first_patch)
        self.patch_norm = nn.LayerNorm(config.dim, eps=config.norm_eps) if config.patch_norm else nn.Identity()
        self.pos_embed: nn.Parameter | None = None
        if config.absolute_positions:
            self.pos_embed = nn.Parameter(torch.empty(1, self.table_side**2, config.dim))
            nn.init.trunc_normal_(self.pos_embed, std=INIT_STD)
        rates = drop_path_rates(sum(config.depths), config.drop_path)
        ends = list(accumulate(config.depths))
        self.stages = nn.ModuleList(
            SwinStage(config, stage, rates[end - config.depths[stage] : end]) for stage, end in enumerate(ends)
        )
        self.norm = nn.LayerNorm(config.dims[-1], eps=config.norm_eps)
        self.fusion: LevelFusion | None = None
        if config.level is not None:
            dims = config.dims[config.level :]
            self.fusion = LevelFusion(dims, [1 << index for index in range(len(dims))], config.norm_eps)
        self.head = None if config.num_classes is None else nn.Linear(config.dims[-1], config.num_classes)
        initialise_linears(self)

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F rows columns C"]:
        """Return the map that enters the first stage."""
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.first_patch)
        tokens = self.patch_norm(self.patch_embed(images))
        if self.pos_embed is not None:
            tokens = tokens + resample_positions(self.pos_embed, (self.table_side, self.table_side), grid)
        return torch.unflatten(tokens, 1, grid)

    def levels(self, images: Float[Tensor, "F 3 H W"]) -> list[Float[Tensor, "F rows columns C"]]:
        """Return what leaves every stage; the last one is normalised."""
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
