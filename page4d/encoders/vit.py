"""The vision transformer: an image is worth 16x16 words."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.encoders.base import PatchTokens, apply_head
from page4d.encoders.checks import check_classes, check_drop_path, check_positive
from page4d.errors import UsageError
from page4d.layers.attention import Attention
from page4d.layers.block import INIT_STD, MixerBlock, drop_path_rates, initialise_linears
from page4d.layers.embed import NormedPatchEmbed, PatchEmbed, cut_patches, patch_grid
from page4d.layers.positions import resample_positions


class Pooling(StrEnum):
    """What of the last tokens stands for the whole image."""

    CLASS = "class"
    """A class token."""

    MEAN = "mean"
    """The mean of the patches; there is no class token."""

    MEAN_WITH_CLASS = "mean-with-class"
    """The mean of the patches and a class token."""


class PatchEmbedding(StrEnum):
    """How a patch becomes a token."""

    LINEAR = "linear"
    NORMED = "normed"
    """A linear layer, then a norm."""

    DUAL_NORMED = "dual-normed"
    """A linear layer between two norms."""


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Size of the encoder; `image_size` is the square that its position table covers, other sizes work.

    `image_width` and `patch_width` are for tables and patches that are not square.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["vit"] = "vit"
    image_size: int = 224
    image_width: int | None = None
    patch_size: int = 16
    patch_width: int | None = None
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int | None = None
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    norm_eps: float = 1e-6
    patch_embedding: PatchEmbedding = PatchEmbedding.LINEAR
    pooling: Pooling = Pooling.CLASS
    num_classes: int | None = None
    """Without a number there is no head."""

    drop_path: float = 0.0
    """Probability with which training leaves out a branch of the last block; it grows from 0 in the first."""

    def __post_init__(self) -> None:
        check_positive(
            "vit", self.image_size, self.patch_size, self.embed_dim, self.num_heads, self.head_dim or 1, self.patch[1]
        )
        height, width = self.image_size, self.image_width or self.image_size
        if height % self.patch[0] or width % self.patch[1]:
            raise UsageError(
                f"encoder: image of {width} x {height} px, patches of {self.patch[1]} x {self.patch[0]} px",
                "choose image sides that are multiples of those of a patch",
            )
        if self.head_dim is None and self.embed_dim % self.num_heads:
            raise UsageError(
                f"encoder: embed_dim {self.embed_dim} does not divide into {self.num_heads} heads",
                "choose a multiple",
            )
        if self.depth < 0:
            raise UsageError("encoder: depth cannot be negative", "use 0 or more")
        check_drop_path(self.drop_path)
        check_classes(self.num_classes)
        object.__setattr__(self, "patch_embedding", PatchEmbedding(self.patch_embedding))
        object.__setattr__(self, "pooling", Pooling(self.pooling))
        if self.patch[0] != self.patch[1] and self.patch_embedding is not PatchEmbedding.DUAL_NORMED:
            raise UsageError("encoder: patches that are not square", "use patch_embedding dual-normed")

    @property
    def patch(self) -> tuple[int, int]:
        """Height and width of a patch in pixels."""
        return self.patch_size, self.patch_width or self.patch_size

    @property
    def table_grid(self) -> tuple[int, int]:
        """Rows and columns of patches that the position table covers."""
        return self.image_size // self.patch[0], (self.image_width or self.image_size) // self.patch[1]

    @property
    def num_special(self) -> int:
        """Tokens in front of the patches: the class token, if there is one."""
        return int(self.pooling is not Pooling.MEAN)


class _ConvolvedPatches(nn.Module):
    """A linear layer as a convolution and, if asked for, a norm behind it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.embed = PatchEmbed(config.embed_dim, config.patch_size)
        normed = config.patch_embedding is PatchEmbedding.NORMED
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps) if normed else nn.Identity()

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P C"]:
        tokens: Tensor = self.norm(self.embed(images))
        return tokens


class _CutPatches(nn.Module):
    """A linear layer of cut patches between two norms."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch = config.patch
        self.embed = NormedPatchEmbed(3 * config.patch[0] * config.patch[1], config.embed_dim)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P C"]:
        tokens: Tensor = self.embed(cut_patches(images.permute(0, 2, 3, 1), self.patch)).flatten(1, 2)
        return tokens


class ViT(nn.Module):
    """A pre-norm transformer of patches with learned positions.

    Source: Dosovitskiy et al. (2021), "An image is worth 16x16 words", eq. 1 to 4.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim, rows, columns = config.embed_dim, *config.table_grid
        dual = config.patch_embedding is PatchEmbedding.DUAL_NORMED
        self.patches = _CutPatches(config) if dual else _ConvolvedPatches(config)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if config.num_special else None
        self.pos_embed = nn.Parameter(torch.empty(1, config.num_special + rows * columns, dim))
        self.blocks = nn.ModuleList(
            MixerBlock(
                dim,
                Attention(dim, config.num_heads, head_dim=config.head_dim, qkv_bias=config.qkv_bias),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_eps=config.norm_eps,
                drop_path=rate,
            )
            for rate in drop_path_rates(config.depth, config.drop_path)
        )
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.head = None if config.num_classes is None else nn.Linear(dim, config.num_classes)
        initialise_linears(self)
        for table in (self.cls_token, self.pos_embed):
            if table is not None:
                nn.init.trunc_normal_(table, std=INIT_STD)

    def position_table(self, grid: tuple[int, int]) -> Float[Tensor, "one N C"]:
        """Resample the table to a grid of (rows, columns), the class token's entry first."""
        return resample_positions(self.pos_embed, self.config.table_grid, grid, self.config.num_special)

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F N C"]:
        """Return the tokens that enter the first block: the class token, if there is one, and the patches.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        tokens = self.patches(images)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], dim=1)
        placed: Tensor = tokens + self.position_table(self.grid_of(images))
        return placed

    def transform(self, tokens: Float[Tensor, "F N C"]) -> Float[Tensor, "F N C"]:
        """Pass tokens, which need not be all of an image's, through the blocks and the last norm."""
        for block in self.blocks:
            tokens = block(tokens)
        normed: Tensor = self.norm(tokens)
        return normed

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of those of a patch.

        Raises:
            ShapeError: if they are not.
        """
        grid = self.grid_of(images)
        return PatchTokens(tokens=self.transform(self.embed(images))[:, self.config.num_special :], grid=grid)

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector an image."""
        tokens = self.transform(self.embed(images))
        return tokens[:, 0] if self.config.pooling is Pooling.CLASS else tokens.mean(dim=1)

    def classify(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F classes"]:
        """Return the logits of the classes.

        Raises:
            UsageError: if it has no head.
        """
        return apply_head(self.head, self.forward_features(images))

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """Return the rows and columns of patches of images.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        return patch_grid(images.shape[-2], images.shape[-1], *self.config.patch)
