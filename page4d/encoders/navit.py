"""The native-resolution vision transformer: images of any size and aspect ratio share sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.encoders.base import PatchTokens, apply_head
from page4d.encoders.checks import check_classes, check_drop_path, check_positive
from page4d.errors import ShapeError, UsageError
from page4d.layers.attention import Attention, Context
from page4d.layers.block import INIT_STD, MixerBlock, drop_path_rates, initialise_linears
from page4d.layers.embed import NormedPatchEmbed, cut_patches, patch_grid
from page4d.layers.packing import Packing, group_in_order, pack_images

Images = Sequence[Float[Tensor, "3 _ _"]] | Float[Tensor, "F 3 H W"]
"""Images of any sizes."""


@dataclass(frozen=True, kw_only=True)
class NaViTConfig:
    """Size of the encoder; `image_size`, and `image_width` if it differs, bound the sides of images.

    A sequence holds at most `max_tokens`. While training for one vector an image, the share `token_dropout` of its
    patches is left out.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["navit"] = "navit"
    image_size: int = 512
    image_width: int | None = None
    patch_size: int = 16
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    head_dim: int = 64
    mlp_ratio: float = 4.0
    max_tokens: int = 2048
    token_dropout: float = 0.0
    num_classes: int | None = None
    """Without a number there are no pooling and no head."""

    drop_path: float = 0.0
    """Probability with which training leaves out a branch of the last block; it grows from 0 in the first."""

    def __post_init__(self) -> None:
        sizes = (self.image_size, self.image_width or 1, self.patch_size, self.embed_dim, self.num_heads)
        check_positive("navit", *sizes, self.head_dim, self.max_tokens)
        if self.image_size % self.patch_size or (self.image_width or 0) % self.patch_size:
            raise UsageError(
                f"encoder: image_size {self.image_size} is not a multiple of patch_size {self.patch_size}",
                "choose a multiple",
            )
        if self.depth < 0 or not 0 <= self.token_dropout < 1:
            raise UsageError(
                f"encoder: depth {self.depth}, token_dropout {self.token_dropout}",
                "use a depth of at least 0 and a share of at least 0 and less than 1",
            )
        check_drop_path(self.drop_path)
        check_classes(self.num_classes)

    @property
    def table_grid(self) -> tuple[int, int]:
        """Rows and columns that have a position."""
        return self.image_size // self.patch_size, (self.image_width or self.image_size) // self.patch_size


class AttentionPool(nn.Module):
    """One learned query an image, normalised for its attention to that image's tokens and added to the result.

    Source: Dehghani et al. (2023), section 2.1 (masked pooling).
    """

    def __init__(self, config: NaViTConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(config.embed_dim))
        nn.init.trunc_normal_(self.query, std=INIT_STD)
        self.norm = nn.LayerNorm(config.embed_dim, bias=False)
        self.attn = _attention(config)

    def forward(self, tokens: Float[Tensor, "S N C"], packing: Packing) -> Float[Tensor, "S I C"]:
        """Return a vector for every place of an image, also where a sequence has none."""
        queries = self.query.expand(tokens.shape[0], len(packing.slots), -1)
        context = Context(tokens=tokens)
        pooled: Tensor = self.attn(self.norm(queries), context=context, pair_logits=packing.of_images())
        return pooled + queries


class NaViT(nn.Module):
    """A pre-norm transformer of patches with a position for every row and every column, of any number of images.

    Its norms have gains only, and queries and keys are normalised.

    Source: Dehghani et al. (2023), "Patch n' Pack: NaViT, a Vision Transformer for any Aspect Ratio and Resolution".
    """

    def __init__(self, config: NaViTConfig) -> None:
        super().__init__()
        self.config = config
        dim, (rows, columns) = config.embed_dim, config.table_grid
        self.patches = NormedPatchEmbed(3 * config.patch_size**2, dim, norm_bias=False)
        self.row_embed = nn.Parameter(torch.empty(1, rows, dim))
        self.column_embed = nn.Parameter(torch.empty(1, columns, dim))
        self.blocks = nn.ModuleList(
            MixerBlock(
                dim,
                _attention(config),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_bias=False,
                drop_path=rate,
            )
            for rate in drop_path_rates(config.depth, config.drop_path)
        )
        self.norm = nn.LayerNorm(dim, bias=False)
        self.pool: AttentionPool | None = None
        self.head: nn.Module | None = None
        if config.num_classes is not None:
            self.pool = AttentionPool(config)
            self.head = nn.Sequential(nn.LayerNorm(dim, bias=False), nn.Linear(dim, config.num_classes, bias=False))
        initialise_linears(self)
        for table in (self.row_embed, self.column_embed):
            nn.init.trunc_normal_(table, std=INIT_STD)

    def pack(self, images: Images, noise: Sequence[Float[Tensor, " P"]] | None = None) -> Packing:
        """Put images into sequences; with `noise`, one number a patch, the patches of the largest numbers are kept.

        Raises:
            ShapeError: if an image does not divide into patches, or is larger than the tables of positions.
        """
        patches, positions, lengths = [], [], []
        kept_share = 1.0 if noise is None else 1 - self.config.token_dropout
        for index, image in enumerate(images):
            grid = self.grid_of(image)
            cut = cut_patches(image.movedim(0, -1)[None], (self.config.patch_size,) * 2).flatten(0, 2)
            places = _places(grid, image.device)
            lengths.append(int(len(cut) * kept_share))
            if noise is not None:
                kept = noise[index].topk(max(1, lengths[-1])).indices
                cut, places = cut[kept], places[kept]
            patches.append(cut)
            positions.append(places)
        return pack_images(patches, positions, group_in_order(lengths, self.config.max_tokens))

    def embed(
        self, patches: Float[Tensor, "S N patch_dim"], positions: Int[Tensor, "S N 2"]
    ) -> Float[Tensor, "S N C"]:
        """Return the tokens that enter the first block."""
        rows, columns = positions.unbind(-1)
        tokens: Tensor = self.patches(patches) + self.row_embed[0, rows] + self.column_embed[0, columns]
        return tokens

    def transform(self, tokens: Float[Tensor, "S N C"], packing: Packing | None = None) -> Float[Tensor, "S N C"]:
        """Pass tokens through the blocks and the last norm; tokens without a packing are of one image a sequence."""
        logits = None if packing is None else packing.within_images()
        for block in self.blocks:
            tokens = block(tokens, pair_logits=logits)
        normed: Tensor = self.norm(tokens)
        return normed

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images of one size, one a sequence and with all their patches.

        Raises:
            ShapeError: if they do not divide into patches, or are larger than the tables of positions.
        """
        grid = self.grid_of(images)
        patches = cut_patches(images.movedim(1, -1), (self.config.patch_size,) * 2).flatten(1, 2)
        tokens = self.embed(patches, _places(grid, images.device)[None])
        return PatchTokens(tokens=self.transform(tokens), grid=grid)

    def encode(self, images: Images) -> list[PatchTokens]:
        """Encode images of any sizes, packed, with all their patches."""
        packing = self.pack(images)
        tokens = packing.unpacked(self.transform(self.embed(packing.patches, packing.positions), packing))
        return [
            PatchTokens(tokens=part[None], grid=self.grid_of(image))
            for image, part in zip(images, tokens, strict=True)
        ]

    def forward_features(
        self, images: Images, noise: Sequence[Float[Tensor, " P"]] | None = None
    ) -> Float[Tensor, "F C"]:
        """Return one vector an image, packed; noise is drawn while training with a token dropout.

        Raises:
            UsageError: if it was built without classes and so without pooling.
        """
        if self.pool is None:
            raise UsageError("this encoder has no classes and no pooling", "build it with num_classes")
        if noise is None and self.training and self.config.token_dropout > 0:
            counts = [rows * columns for rows, columns in map(self.grid_of, images)]
            noise = [torch.randn(count, device=images[0].device) for count in counts]
        packing = self.pack(images, noise)
        tokens = self.transform(self.embed(packing.patches, packing.positions), packing)
        pooled: Tensor = self.pool(tokens, packing)
        return pooled[packing.is_image]

    def classify(
        self, images: Images, noise: Sequence[Float[Tensor, " P"]] | None = None
    ) -> Float[Tensor, "F classes"]:
        """Return the logits of the classes.

        Raises:
            UsageError: if it has no head.
        """
        return apply_head(self.head, self.forward_features(images, noise))

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """Return the rows and columns of patches of images.

        Raises:
            ShapeError: if they do not divide into patches, or are larger than the tables of positions.
        """
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        rows, columns = self.config.table_grid
        if grid[0] > rows or grid[1] > columns:
            raise ShapeError(
                f"an image has {grid[0]} x {grid[1]} patches, positions are known for {rows} x {columns}",
                "resize it, or build the encoder with a larger image_size",
            )
        return grid


def _attention(config: NaViTConfig) -> Attention:
    return Attention(
        config.embed_dim, config.num_heads, head_dim=config.head_dim, qkv_bias=False, out_bias=False, qk_rms=True
    )


def _places(grid: tuple[int, int], device: torch.device) -> Int[Tensor, "P 2"]:
    """Return (row, column) of every patch, row by row."""
    rows, columns = (torch.arange(count, device=device) for count in grid)
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)
