"""The native-resolution vision transformer (NaViT): images of different sizes packed into shared sequences."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from page4d.errors import ImageSizeError, UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.base import Classifier, DropPathRate, PatchTokens, check_multiple
from page4d.networks.layers.attention import Attention, Context, grid_positions
from page4d.networks.layers.block import (
    INIT_STD,
    MixerBlock,
    NormedPatchEmbed,
    cut_patches,
    drop_path_rates,
    initialise_linears,
    patch_grid,
)
from page4d.networks.layers.execution import Classes, OptionalDepth, Ratio, Side, Width
from page4d.networks.layers.window import Packing, group_in_order, pack_images

Images = Sequence[Float[Tensor, "3 _ _"]] | Float[Tensor, "F 3 H W"]
"""Images of any sizes."""


@config_record("encoder")
class NaViTConfig:
    """Architecture of NaViT; `image_size` and `image_width` are the largest sides in pixels, by default equal.

    A sequence holds at most `max_tokens`. Training for one vector per image drops the fraction `token_dropout` of the
    patches.
    """

    kind: Literal["navit"] = "navit"
    image_size: Side = 512
    image_width: Side | None = None
    patch_size: Side = 16
    embed_dim: Width = 768
    depth: OptionalDepth = 12
    num_heads: Width = 12
    head_dim: Width = 64
    mlp_ratio: Ratio = 4.0
    max_tokens: Annotated[int, Field(ge=1, le=2**24)] = 2048
    token_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    num_classes: Classes | None = None
    """Without a number there are no pooling and no classification head."""

    drop_path: DropPathRate = 0.0

    def __post_init__(self) -> None:
        check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        check_multiple("image_width", self.image_width or 0, "patch_size", self.patch_size)

    @property
    def table_grid(self) -> tuple[int, int]:
        """Number of rows and columns that have a position."""
        return self.image_size // self.patch_size, (self.image_width or self.image_size) // self.patch_size


class AttentionPool(nn.Module):
    """Attention pooling: one learned query per image attends to the tokens of that image.

    The query is normalized for the attention and added to its result.

    Source: Dehghani et al. (2023), section 2.1 (masked pooling).
    """

    def __init__(self, config: NaViTConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(config.embed_dim))
        nn.init.trunc_normal_(self.query, std=INIT_STD)
        self.norm = nn.LayerNorm(config.embed_dim, bias=False)
        self.attn = _attention(config)

    def forward(self, tokens: Float[Tensor, "S N C"], packing: Packing) -> Float[Tensor, "S I C"]:
        """Return one vector per image slot, including slots that a sequence leaves empty."""
        queries = self.query.expand(tokens.shape[0], len(packing.slots), -1)
        context = Context(tokens=tokens)
        return queries + self.attn(self.norm(queries), context=context, pair_logits=packing.of_images())


class NaViT(Classifier):
    """A pre-norm transformer on packed patches with factorized positions: one per row and one per column.

    Its norms have gains only, and queries and keys are normalized.

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
                dim, _attention(config), hidden_dim=round(dim * config.mlp_ratio), norm_bias=False, drop_path=rate
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
        """Pack images into sequences; with `noise`, one number per patch, only the patches with the largest are kept.

        Raises:
            ImageSizeError: if an image does not divide into patches, or is larger than the position tables.
        """
        patches, positions, lengths = [], [], []
        kept_fraction = 1.0 if noise is None else 1 - self.config.token_dropout
        for index, image in enumerate(images):
            grid = self.grid_of(image)
            cut = cut_patches(image.movedim(0, -1)[None], (self.config.patch_size,) * 2).flatten(0, 2)
            places = grid_positions(grid, image.device)
            lengths.append(int(len(cut) * kept_fraction))
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
        return self.patches(patches) + self.row_embed[0, rows] + self.column_embed[0, columns]

    def transform(self, tokens: Float[Tensor, "S N C"], packing: Packing | None = None) -> Float[Tensor, "S N C"]:
        """Apply the blocks and the last norm; without a packing every sequence is one image."""
        logits = None if packing is None else packing.within_images()
        for block in self.blocks:
            tokens = block(tokens, pair_logits=logits)
        return self.norm(tokens)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images of one size, one per sequence, with all their patches.

        Raises:
            ImageSizeError: if they do not divide into patches, or are larger than the position tables.
        """
        grid = self.grid_of(images)
        patches = cut_patches(images.movedim(1, -1), (self.config.patch_size,) * 2).flatten(1, 2)
        tokens = self.embed(patches, grid_positions(grid, images.device)[None])
        return PatchTokens(tokens=self.transform(tokens), grid=grid)

    def forward_features(
        self, images: Images, noise: Sequence[Float[Tensor, " P"]] | None = None
    ) -> Float[Tensor, "F C"]:
        """Return one vector per image; training with token dropout draws the noise.

        Raises:
            UsageError: if the encoder was built without classes and so without pooling.
        """
        if self.pool is None:
            raise UsageError("this encoder has no pooling and no classification head", "build it with num_classes")
        if noise is None and self.training and self.config.token_dropout > 0:
            counts = [rows * columns for rows, columns in map(self.grid_of, images)]
            noise = [torch.randn(count, device=images[0].device) for count in counts]
        packing = self.pack(images, noise)
        tokens = self.transform(self.embed(packing.patches, packing.positions), packing)
        return self.pool(tokens, packing)[packing.is_image]

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of patches of images.

        Raises:
            ImageSizeError: if they do not divide into patches, or are larger than the position tables.
        """
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        rows, columns = self.config.table_grid
        if grid[0] > rows or grid[1] > columns:
            raise ImageSizeError(
                f"an image has {grid[0]} x {grid[1]} patches, the position tables cover {rows} x {columns}",
                "resize it, or build the encoder with a larger image_size",
            )
        return grid


def _attention(config: NaViTConfig) -> Attention:
    return Attention(
        config.embed_dim, config.num_heads, head_dim=config.head_dim, qkv_bias=False, out_bias=False, qk_rms=True
    )
