"""The hierarchical vision transformer with shifted windows (Swin), and the fusion of the levels of such encoders."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from math import prod
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from page4d.io.json_records import config_record
from page4d.networks.encoders.base import (
    Classifier,
    DropPathRate,
    PatchTokens,
    check_level,
    check_multiple,
    check_stages,
)
from page4d.networks.layers.attention import resample_positions
from page4d.networks.layers.block import (
    INIT_STD,
    MixerBlock,
    PatchEmbed,
    drop_path_rates,
    initialise_linears,
    patch_grid,
)
from page4d.networks.layers.execution import (
    MAX_STAGES,
    Classes,
    Depth,
    Epsilon,
    OptionalDepth,
    Ratio,
    Side,
    Width,
    Window,
)
from page4d.networks.layers.window import ShiftedWindowAttention, pad_to_multiple


@config_record("encoder")
class PyramidConfig(ABC):
    """What the configurations of hierarchical encoders share; `image_size` is the nominal side of a square image.

    Other sizes work too. Tokens are those of the last stage; with a `level`, all stages from that one on are fused on
    its grid.
    """

    image_size: Side = 224
    depths: Annotated[tuple[Depth, ...], Field(max_length=MAX_STAGES)]
    num_heads: Annotated[tuple[Width, ...], Field(max_length=MAX_STAGES)]
    mlp_ratio: Ratio = 4.0
    norm_eps: Epsilon
    level: OptionalDepth | None = None
    num_classes: Classes | None = None
    """Without a number there is no classification head."""

    drop_path: DropPathRate = 0.0

    @property
    def token_level(self) -> int:
        """Stage whose grid the tokens have."""
        return len(self.depths) - 1 if self.level is None else self.level

    @property
    @abstractmethod
    def patches(self) -> tuple[int, ...]:
        """Factor by which each stage shrinks the sides of its input."""

    @property
    @abstractmethod
    def dims(self) -> tuple[int, ...]:
        """Width of each stage."""

    @property
    def embed_dim(self) -> int:
        """Width of the tokens."""
        return self.dims[self.token_level]

    @property
    def patch_size(self) -> int:
        """Side in pixels of the patch of a token."""
        return prod(self.patches[: self.token_level + 1])


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
        return self.norm(total)


class PyramidEncoder(Classifier):
    """Stages of shrinking feature maps; subclasses build what precedes them."""

    config: PyramidConfig

    def build_stages(self, stage: Callable[..., nn.Module], norm: nn.Module) -> None:
        """Build the stages and what follows them; weights are drawn from torch's global generator."""
        config = self.config
        rates = iter(drop_path_rates(sum(config.depths), config.drop_path))
        self.stages = nn.ModuleList(
            stage(config, number, list(islice(rates, depth))) for number, depth in enumerate(config.depths)
        )
        self.norm = norm
        self.fusion: LevelFusion | None = None
        if config.level is not None:
            factors = list(accumulate(config.patches[config.level + 1 :], operator.mul, initial=1))
            self.fusion = LevelFusion(config.dims[config.level :], factors, config.norm_eps)
        self.head = None if config.num_classes is None else nn.Linear(config.dims[-1], config.num_classes)
        initialise_linears(self)

    @abstractmethod
    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F rows columns C"]:
        """Return the map that enters the first stage."""

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
        return PatchTokens(tokens=fused.flatten(1, 2), grid=(fused.shape[1], fused.shape[2]))

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector per image: the mean of the last stage."""
        return self.levels(images)[-1].mean(dim=(1, 2))


def _upsample(maps: Float[Tensor, "F rows columns C"], factor: int) -> Float[Tensor, "F rows2 columns2 C"]:
    """Upsample bilinearly; every cell stays centred on the cells that it covers."""
    planes = functional.interpolate(maps.movedim(-1, 1), scale_factor=float(factor), mode="bilinear")
    return torch.movedim(planes, 1, -1)


@config_record("encoder")
class SwinConfig(PyramidConfig):
    """Architecture of Swin. Stage i has patches of `first_patch` * 2^i pixels and the width `dim` * 2^i."""

    kind: Literal["swin"] = "swin"
    first_patch: Side = 4
    dim: Width = 96
    depths: Annotated[tuple[Depth, ...], Field(max_length=MAX_STAGES)] = (2, 2, 6, 2)
    num_heads: Annotated[tuple[Width, ...], Field(max_length=MAX_STAGES)] = (3, 6, 12, 24)
    window: Window = 7
    qkv_bias: bool = True
    patch_norm: bool = True
    absolute_positions: bool = False
    norm_eps: Epsilon = 1e-5

    def __post_init__(self) -> None:
        check_stages(depths=self.depths, num_heads=self.num_heads)
        for dim, num_heads in zip(self.dims, self.num_heads, strict=True):
            check_multiple("stage width", dim, "num_heads", num_heads)
        check_level(self.level, len(self.depths))
        check_multiple("image_size", self.image_size, "first_patch", self.first_patch)

    @property
    def patches(self) -> tuple[int, ...]:
        """Factor by which each stage shrinks the sides of its input."""
        return self.first_patch, *[2] * (len(self.depths) - 1)

    @property
    def dims(self) -> tuple[int, ...]:
        """Width of each stage."""
        return tuple(self.dim << stage for stage in range(len(self.depths)))


class PatchMerging(nn.Module):
    """Merge 2 x 2 tokens, column by column, into one of twice the width.

    Source: Liu et al. (2021), section 3.1; the order of the public code (reference facts).
    """

    def __init__(self, dim: int, norm_eps: Epsilon) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim, eps=norm_eps)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, maps: Float[Tensor, "F rows columns C"]) -> Float[Tensor, "F rows2 columns2 C2"]:
        """Halve the sides; odd sides are padded with zeros."""
        even = pad_to_multiple(maps, 2)
        joined = torch.cat([even[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
        return self.reduction(self.norm(joined))


class SwinStage(nn.Module):
    """Patch merging, except in the first stage, then blocks with regular and shifted windows in turn."""

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
        """Return a map of half the sides and twice the width; the first stage keeps both."""
        maps = self.merging(maps)
        for block in self.blocks:
            maps = block(maps)
        return maps


class Swin(PyramidEncoder):
    """Stages of window attention with patch merging between them.

    Source: Liu et al. (2021), "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows".
    """

    config: SwinConfig

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
        self.build_stages(SwinStage, nn.LayerNorm(config.dims[-1], eps=config.norm_eps))

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F rows columns C"]:
        """Return the map that enters the first stage."""
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.first_patch)
        tokens = self.patch_norm(self.patch_embed(images))
        if self.pos_embed is not None:
            tokens = tokens + resample_positions(self.pos_embed, (self.table_side, self.table_side), grid)
        return torch.unflatten(tokens, 1, grid)
