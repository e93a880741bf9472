"""The vision transformer (ViT)."""

from enum import StrEnum
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.base import Classifier, DropPathRate, PatchTokens, check_multiple
from page4d.networks.layers.attention import Attention, resample_positions
from page4d.networks.layers.block import (
    INIT_STD,
    MixerBlock,
    NormedPatchEmbed,
    PatchEmbed,
    cut_patches,
    drop_path_rates,
    initialise_linears,
    patch_grid,
)
from page4d.networks.layers.execution import Classes, Epsilon, OptionalDepth, Ratio, Side, Width


class Pooling(StrEnum):
    """Feature vector of an image, from the output tokens."""

    CLASS = "class"
    """The class token."""

    MEAN = "mean"
    """The mean of the patch tokens; there is no class token."""

    MEAN_WITH_CLASS = "mean-with-class"
    """The mean of all tokens, patches and class token."""


class PatchEmbedding(StrEnum):
    """Embedding of a patch as a token."""

    LINEAR = "linear"
    NORMED = "normed"
    """A linear layer, then a norm."""

    DUAL_NORMED = "dual-normed"
    """A linear layer between two norms."""


@config_record("encoder")
class ViTConfig:
    """Architecture of ViT; `image_size` is the side in pixels of the square that its position table covers.

    Other image sizes work too. `image_width` and `patch_width` are for tables and patches that are not square.
    """

    kind: Literal["vit"] = "vit"
    image_size: Side = 224
    image_width: Side | None = None
    patch_size: Side = 16
    patch_width: Side | None = None
    embed_dim: Width = 768
    depth: OptionalDepth = 12
    num_heads: Width = 12
    head_dim: Width | None = None
    mlp_ratio: Ratio = 4.0
    qkv_bias: bool = True
    norm_eps: Epsilon = 1e-6
    patch_embedding: PatchEmbedding = PatchEmbedding.LINEAR
    pooling: Pooling = Pooling.CLASS
    num_classes: Classes | None = None
    """Without a number there is no classification head."""

    drop_path: DropPathRate = 0.0

    def __post_init__(self) -> None:
        check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        check_multiple("image width", self.image_width or self.image_size, "patch width", self.patch[1])
        if self.head_dim is None:
            check_multiple("embed_dim", self.embed_dim, "num_heads", self.num_heads)
        height, width = self.patch
        if height != width and self.patch_embedding is not PatchEmbedding.DUAL_NORMED:
            raise UsageError(
                f"encoder: patches of {width} x {height} px with patch_embedding {self.patch_embedding}",
                "use square patches, or patch_embedding dual-normed",
            )

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
        """Number of tokens before the patches: 1 with a class token, else 0."""
        return int(self.pooling is not Pooling.MEAN)


class _ConvolvedPatches(nn.Module):
    """A linear layer as a convolution, optionally followed by a norm."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.embed = PatchEmbed(config.embed_dim, config.patch_size)
        normed = config.patch_embedding is PatchEmbedding.NORMED
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps) if normed else nn.Identity()

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P C"]:
        return self.norm(self.embed(images))


class _CutPatches(nn.Module):
    """A linear layer between two norms, on flattened patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch = config.patch
        self.embed = NormedPatchEmbed(3 * config.patch[0] * config.patch[1], config.embed_dim)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P C"]:
        return self.embed(cut_patches(images.permute(0, 2, 3, 1), self.patch)).flatten(1, 2)


class ViT(Classifier):
    """A pre-norm transformer on patches with learned positions.

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
        """Resample the position table to a grid of (rows, columns); the class token's entry comes first."""
        return resample_positions(self.pos_embed, self.config.table_grid, grid, self.config.num_special)

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F N C"]:
        """Return the tokens that enter the first block: the class token, if there is one, and the patches.

        Raises:
            ShapeError: if image sides are not multiples of the sides of a patch.
        """
        tokens = self.patches(images)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], dim=1)
        return tokens + self.position_table(self.grid_of(images))

    def transform(self, tokens: Float[Tensor, "F N C"]) -> Float[Tensor, "F N C"]:
        """Apply the blocks and the last norm to all or some tokens of each image."""
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the sides of a patch.

        Raises:
            ShapeError: if they are not.
        """
        grid = self.grid_of(images)
        return PatchTokens(tokens=self.transform(self.embed(images))[:, self.config.num_special :], grid=grid)

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector per image."""
        tokens = self.transform(self.embed(images))
        return tokens[:, 0] if self.config.pooling is Pooling.CLASS else tokens.mean(dim=1)

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of patches of images.

        Raises:
            ShapeError: if image sides are not multiples of the sides of a patch.
        """
        return patch_grid(images.shape[-2], images.shape[-1], *self.config.patch)
