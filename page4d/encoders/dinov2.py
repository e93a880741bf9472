"""The DINOv2 vision transformer with registers, at any size."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.encoders.base import PatchTokens
from page4d.errors import UsageError
from page4d.layers.block import INIT_STD, Block, BlockConfig, drop_path_rates, initialise_linears
from page4d.layers.embed import PatchEmbed, patch_grid
from page4d.layers.feed_forward import FeedForwardKind
from page4d.layers.positions import resample_positions


@dataclass(frozen=True, kw_only=True)
class DinoV2Config:
    """Size of the encoder; `image_size` is the square that its position table covers."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["dinov2"] = "dinov2"
    image_size: int = 518
    patch_size: int = 14
    embed_dim: int = 1024
    depth: int = 24
    num_heads: int = 16
    mlp_ratio: float = 4.0
    feed_forward: FeedForwardKind = FeedForwardKind.MLP
    num_registers: int = 4
    norm_eps: float = 1e-6
    layer_scale: float | None = 1.0
    drop_path: float = 0.0
    """Probability with which training leaves out a branch of the last block; it grows from 0 in the first."""

    def __post_init__(self) -> None:
        if self.image_size <= 0 or self.image_size % self.patch_size:
            raise UsageError(
                f"encoder: image_size {self.image_size} is not a multiple of patch_size {self.patch_size}",
                "choose a multiple",
            )
        if self.embed_dim <= 0 or self.embed_dim % self.num_heads:
            raise UsageError(
                f"encoder: embed_dim {self.embed_dim} does not divide into {self.num_heads} heads",
                "choose a multiple",
            )
        if self.depth < 0 or self.num_registers < 0:
            raise UsageError("encoder: depth and num_registers cannot be negative", "use 0 or more")
        if not 0 <= self.drop_path < 1:
            raise UsageError(f"encoder: drop_path {self.drop_path}", "use at least 0 and less than 1")
        object.__setattr__(self, "feed_forward", FeedForwardKind(self.feed_forward))


class DinoV2(nn.Module):
    """A pre-norm vision transformer with a class token and registers, of which only patch tokens leave.

    Source: Oquab et al. (2023), Darcet et al. (2023); sizes and eps from the public VGGT code (reference facts).
    """

    def __init__(self, config: DinoV2Config) -> None:
        super().__init__()
        self.config = config
        dim = config.embed_dim
        self.table_side = config.image_size // config.patch_size
        self.patch_embed = PatchEmbed(dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.table_side**2, dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, config.num_registers, dim))
        block = BlockConfig(
            dim=dim,
            num_heads=config.num_heads,
            mlp_ratio=config.mlp_ratio,
            feed_forward=config.feed_forward,
            norm_eps=config.norm_eps,
            layer_scale=config.layer_scale,
        )
        rates = drop_path_rates(config.depth, config.drop_path)
        self.blocks = nn.ModuleList(Block(replace(block, drop_path=rate)) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        initialise_linears(self)
        for table in (self.cls_token, self.pos_embed, self.register_tokens):
            nn.init.trunc_normal_(table, std=INIT_STD)

    def position_table(self, grid: tuple[int, int]) -> Float[Tensor, "one P1 C"]:
        """Resample the table to a grid of (rows, columns), the class token's entry first."""
        return resample_positions(self.pos_embed, (self.table_side, self.table_side), grid, num_special=1)

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F N C"]:
        """Return the tokens that enter the first block: class, registers (without position), patches."""
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        frames = images.shape[0]
        placed = torch.cat([self.cls_token.expand(frames, -1, -1), self.patch_embed(images)], dim=1)
        placed = placed + self.position_table(grid)
        return torch.cat([placed[:, :1], self.register_tokens.expand(frames, -1, -1), placed[:, 1:]], dim=1)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the patch size.

        Raises:
            ShapeError: if they are not.
        """
        tokens = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        patches = self.norm(tokens)[:, 1 + self.config.num_registers :]
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        return PatchTokens(tokens=patches, grid=grid)
