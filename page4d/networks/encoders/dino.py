"""The DINOv2 (with registers) and DINOv3 vision transformers, at any image size.

DINOv2 has a position table, DINOv3 rotary positions of the patches.
"""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.base import DropPathRate, PatchTokens, check_multiple
from page4d.networks.layers.attention import (
    DEFAULT_BASE,
    RotaryTables,
    TableResampling,
    after_special,
    centered_positions,
    resample_positions,
    rotary_tables,
)
from page4d.networks.layers.block import (
    INIT_STD,
    Block,
    BlockConfig,
    BlockOptions,
    FeedForwardKind,
    PatchEmbed,
    drop_path_rates,
    initialise_linears,
    patch_grid,
)
from page4d.networks.layers.execution import Epsilon, Layer, OptionalCount, OptionalDepth, RotaryBase, Side, Width


@config_record("encoder")
class DinoV2Config(BlockOptions):
    """Architecture of DINOv2; `image_size` is the side in pixels of the square that its position table covers."""

    kind: Literal["dinov2"] = "dinov2"
    image_size: Side = 518
    patch_size: Side = 14
    in_channels: Width = 3
    embed_dim: Width = 1024
    depth: OptionalDepth = 24
    feed_forward: FeedForwardKind = FeedForwardKind.MLP
    num_registers: OptionalCount = 4
    norm_eps: Epsilon = 1e-6
    drop_path: DropPathRate = 0.0
    table_resampling: TableResampling = TableResampling.ANTIALIASED
    final_norm: bool = True
    final_norm_eps: Epsilon | None = None
    """That of the blocks unless given."""
    levels: tuple[Layer, ...] = ()
    """Blocks whose outputs, after the final norm, dense heads read."""

    def __post_init__(self) -> None:
        if list(self.levels) != sorted(set(self.levels)) or any(level >= self.depth for level in self.levels):
            found = f"encoder: levels {self.levels} of {self.depth} blocks"
            raise UsageError(found, "name blocks that exist, in increasing order")
        check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        check_multiple("embed_dim", self.embed_dim, "num_heads", self.num_heads)


class DinoV2(nn.Module):
    """A pre-norm vision transformer with a class token and registers.

    Returned are the patch tokens, and the class tokens that enter the last block.

    Source: Oquab et al. (2023), Darcet et al. (2023); sizes and eps from the public VGGT code (reference facts).
    """

    def __init__(self, config: DinoV2Config) -> None:
        super().__init__()
        self.config = config
        dim = config.embed_dim
        self.table_side = config.image_size // config.patch_size
        self.patch_embed = PatchEmbed(dim, config.patch_size, config.in_channels)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.table_side**2, dim))
        registers = torch.zeros(1, config.num_registers, dim)
        self.register_tokens = nn.Parameter(registers) if config.num_registers else None
        block = BlockConfig.of(config, dim, feed_forward=config.feed_forward)
        rates = drop_path_rates(config.depth, config.drop_path)
        self.blocks = nn.ModuleList(Block(replace(block, drop_path=rate)) for rate in rates)
        final_eps = config.norm_eps if config.final_norm_eps is None else config.final_norm_eps
        self.norm = nn.LayerNorm(dim, eps=final_eps) if config.final_norm else nn.Identity()
        initialise_linears(self)
        for table in self.parameters(recurse=False):
            nn.init.trunc_normal_(table, std=INIT_STD)

    def position_table(self, grid: tuple[int, int]) -> Float[Tensor, "one P1 C"]:
        """Resample the position table to a grid of (rows, columns); the first entry is the class token's."""
        learned, rule = (self.table_side, self.table_side), self.config.table_resampling
        return resample_positions(self.pos_embed, learned, grid, num_special=1, rule=rule)

    def embed(self, images: Float[Tensor, "F channels H W"]) -> Float[Tensor, "F N C"]:
        """Return the tokens that enter the first block: class, registers (without position), patches."""
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        frames = images.shape[0]
        placed = torch.cat([self.cls_token.expand(frames, -1, -1), self.patch_embed(images)], dim=1)
        placed = placed + self.position_table(grid)
        if self.register_tokens is None:
            return placed
        return torch.cat([placed[:, :1], self.register_tokens.expand(frames, -1, -1), placed[:, 1:]], dim=1)

    def forward(self, images: Float[Tensor, "F channels H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the patch size.

        Raises:
            ShapeError: if they are not.
        """
        tokens = self.embed(images)
        class_tokens = tokens[:, 0]
        levels: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            class_tokens = tokens[:, 0].clone()
            tokens = block(tokens)
            if index in self.config.levels:
                levels.append(self.norm(tokens)[:, 1 + self.config.num_registers :])
        patches = self.norm(tokens)[:, 1 + self.config.num_registers :]
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        return PatchTokens(tokens=patches, grid=grid, class_tokens=class_tokens, levels=tuple(levels))


@config_record("encoder")
class DinoV3Config(BlockOptions):
    """Architecture of DINOv3; `image_size` is the nominal long side in pixels, other sizes work too."""

    kind: Literal["dinov3"] = "dinov3"
    image_size: Side = 512
    patch_size: Side = 16
    embed_dim: Width = 1024
    depth: OptionalDepth = 24
    num_registers: OptionalCount = 4
    """DINOv3 calls them storage tokens."""
    rope_base: RotaryBase = DEFAULT_BASE
    drop_path: DropPathRate = 0.0

    def __post_init__(self) -> None:
        check_multiple("image_size", self.image_size, "patch_size", self.patch_size)
        check_multiple("embed_dim", self.embed_dim, "4 * num_heads", 4 * self.num_heads)


class DinoV3(nn.Module):
    """A pre-norm vision transformer with a class token and registers; only patch tokens are returned.

    Source: Simeoni et al. (2025), DINOv3; positions, sizes and eps from the public VGGT-Omega code (reference facts).
    """

    def __init__(self, config: DinoV3Config) -> None:
        super().__init__()
        self.config = config
        dim = config.embed_dim
        self.patch_embed = PatchEmbed(dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, config.num_registers, dim))
        block = BlockConfig.of(config, dim)
        rates = drop_path_rates(config.depth, config.drop_path)
        self.blocks = nn.ModuleList(Block(replace(block, drop_path=rate)) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        initialise_linears(self)
        for token in (self.cls_token, self.register_tokens):
            nn.init.trunc_normal_(token, std=INIT_STD)

    def embed(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F N C"]:
        """Return the tokens that enter the first block: class, registers, patches."""
        special = torch.cat([self.cls_token, self.register_tokens], dim=1)
        return torch.cat([special.expand(images.shape[0], -1, -1), self.patch_embed(images)], dim=1)

    def rotary_tables(self, grid: tuple[int, int]) -> RotaryTables:
        """Return the rotary positions of all tokens of an image."""
        weight, config = self.patch_embed.proj.weight, self.config
        positions = after_special(centered_positions(grid, weight.device), 1 + config.num_registers)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return rotary_tables(positions, config.embed_dim // config.num_heads, config.rope_base, dtype)

    def forward(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode images whose sides are multiples of the patch size.

        Raises:
            ShapeError: if they are not.
        """
        grid = patch_grid(images.shape[-2], images.shape[-1], self.config.patch_size)
        tokens, rope = self.embed(images), self.rotary_tables(grid)
        for block in self.blocks:
            tokens = block(tokens, rope)
        return PatchTokens(tokens=self.norm(tokens)[:, 1 + self.config.num_registers :], grid=grid)
