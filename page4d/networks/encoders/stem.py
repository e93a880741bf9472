"""A small encoder for small images: strided convolutions, then a few transformer blocks."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.io.json_records import config_record
from page4d.networks.encoders.base import PatchTokens, check_multiple
from page4d.networks.layers.attention import DEFAULT_BASE, grid_positions, rotary_tables
from page4d.networks.layers.block import Block, BlockConfig, BlockOptions, initialise_linears, patch_grid
from page4d.networks.layers.execution import Epsilon, OptionalDepth, RotaryBase, Side, Width

_NUM_CONVOLUTIONS = 3


@config_record("encoder")
class StemConfig(BlockOptions):
    """Architecture of the stem encoder; `image_size` is the nominal long side in pixels, other sizes work too.

    `fine_dim` is the number of channels of the half-resolution map of the first convolution, for dense heads.
    """

    kind: Literal["stem"] = "stem"
    image_size: Side = 128
    embed_dim: Width = 160
    fine_dim: Width = 32
    depth: OptionalDepth = 2
    num_heads: Width = 4
    norm_eps: Epsilon = 1e-6
    qk_norm_eps: Epsilon | None = 1e-5
    layer_scale: float | None = None
    rope_base: RotaryBase = DEFAULT_BASE

    def __post_init__(self) -> None:
        check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        check_multiple("embed_dim", self.embed_dim, "4 * num_heads", 4 * self.num_heads)

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels: every convolution halves the resolution."""
        return 1 << _NUM_CONVOLUTIONS


class Stem(nn.Module):
    """Three convolutions of stride 2, then pre-norm blocks with rotary positions, for images of any size.

    Source: Xiao et al. (2021), "Early Convolutions Help Transformers See Better", for the stem.
    """

    def __init__(self, config: StemConfig) -> None:
        super().__init__()
        self.config = config
        middle = max(config.fine_dim, config.embed_dim // 2)
        self.fine = nn.Conv2d(3, config.fine_dim, kernel_size=5, stride=2, padding=2)
        self.middle = nn.Conv2d(config.fine_dim, middle, kernel_size=3, stride=2, padding=1)
        self.coarse = nn.Conv2d(middle, config.embed_dim, kernel_size=3, stride=2, padding=1)
        self.coarse_norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        block = BlockConfig.of(config, config.embed_dim, qk_norm_eps=config.qk_norm_eps)
        self.blocks = nn.ModuleList(Block(block) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.embed_dim, eps=config.norm_eps)
        initialise_linears(self)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the patch size.

        Raises:
            ShapeError: if they are not.
        """
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        fine = functional.gelu(self.fine(images))
        coarse = self.coarse(functional.gelu(self.middle(fine)))
        tokens = self.coarse_norm(coarse.flatten(2).transpose(1, 2))
        positions = grid_positions(grid, images.device)
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        rope = rotary_tables(positions, tokens.shape[-1] // self.config.num_heads, self.config.rope_base, dtype)
        for block in self.blocks:
            tokens = block(tokens, rope)
        return PatchTokens(tokens=self.norm(tokens), grid=grid, fine=fine)
