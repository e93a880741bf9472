"""Masked autoencoder (MAE): reconstruction of masked patches from the visible ones."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.vit import ViT, ViTConfig
from page4d.networks.layers.attention import Attention, resample_positions
from page4d.networks.layers.block import INIT_STD, MixerBlock, cut_patches, initialise_linears
from page4d.networks.layers.execution import Depth, Ratio, Width

_VARIANCE_EPS = 1e-6
"""Added to the variance of a patch before the division."""


@config_record("mae")
class MAEConfig:
    """Encoder, masking ratio and decoder; the decoder is discarded after training.

    With `normalise_patches`, the pixels of each target patch are normalised by its mean and standard deviation.
    """

    kind: Literal["mae"] = "mae"
    encoder: ViTConfig = ViTConfig()
    masked_share: Annotated[float, Field(gt=0, lt=1)] = 0.75
    normalise_patches: bool = True
    decoder_dim: Width = 512
    decoder_depth: Depth = 8
    decoder_heads: Width = 16
    decoder_head_dim: Width | None = None
    mlp_ratio: Ratio = 4.0

    def __post_init__(self) -> None:
        rows, columns = self.encoder.table_grid
        if not 0 < int(self.masked_share * rows * columns) < rows * columns:
            raise UsageError(
                f"mae: masked_share of {rows * columns} patches is {self.masked_share:g}",
                "it must leave masked and visible patches",
            )
        if self.encoder.num_classes is not None:
            raise UsageError(f"mae: an encoder with {self.encoder.num_classes} classes", "set num_classes to null")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Indices of the masked and of the visible patches of every image, in random order."""

    masked: Int[Tensor, "F M"]
    visible: Int[Tensor, "F K"]


@dataclass(frozen=True, kw_only=True)
class MAEOutput:
    """Reconstructed pixels of the masked patches, and their mean squared error."""

    loss: Float[Tensor, ""]
    pixels: Float[Tensor, "F M patch_dim"]
    masking: Masking


class MaskedAutoencoder(nn.Module):
    """An encoder of the visible patches, and a small decoder that reconstructs the masked ones.

    A class token is not used.

    Source: He et al. (2022), "Masked Autoencoders Are Scalable Vision Learners", section 3.
    """

    def __init__(self, config: MAEConfig) -> None:
        super().__init__()
        self.config = config
        dim, (rows, columns), (height, width) = config.decoder_dim, config.encoder.table_grid, config.encoder.patch
        self.encoder = ViT(config.encoder)
        same = config.encoder.embed_dim == dim
        self.to_decoder = nn.Identity() if same else nn.Linear(config.encoder.embed_dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, rows * columns, dim))
        self.blocks = nn.ModuleList(
            MixerBlock(
                dim,
                Attention(
                    dim, config.decoder_heads, head_dim=config.decoder_head_dim, qkv_bias=config.encoder.qkv_bias
                ),
                hidden_dim=round(dim * config.mlp_ratio),
                norm_eps=config.encoder.norm_eps,
            )
            for _ in range(config.decoder_depth)
        )
        self.norm = nn.LayerNorm(dim, eps=config.encoder.norm_eps)
        self.to_pixels = nn.Linear(dim, 3 * height * width)
        for part in (self.to_decoder, self.blocks, self.to_pixels):
            initialise_linears(part)
        for token in (self.mask_token, self.positions):
            nn.init.trunc_normal_(token, std=INIT_STD)

    def forward(self, images: Float[Tensor, "F 3 H W"], noise: Float[Tensor, "F P"] | None = None) -> MAEOutput:
        """Mask the patches with the smallest `noise`, which is drawn if it is not given, and reconstruct them.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        patches = self.to_patches(images)
        if noise is None:
            noise = torch.rand(patches.shape[:2], device=images.device)
        order, number = noise.argsort(dim=-1), int(self.config.masked_share * noise.shape[-1])
        masking = Masking(masked=order[:, :number], visible=order[:, number:])
        pixels = self.decode(self.encode(images, masking), masking, self.encoder.grid_of(images))
        target = _gather(self.normalised(patches), masking.masked)
        return MAEOutput(loss=(pixels - target).square().mean(), pixels=pixels, masking=masking)

    def encode(self, images: Float[Tensor, "F 3 H W"], masking: Masking) -> Float[Tensor, "F K C"]:
        """Encode the visible patches only."""
        special = self.config.encoder.num_special
        positions = self.encoder.position_table(self.encoder.grid_of(images))[:, special:]
        return self.encoder.transform(_gather(self.encoder.patches(images) + positions, masking.visible))

    def decode(
        self, encoded: Float[Tensor, "F K C"], masking: Masking, grid: tuple[int, int]
    ) -> Float[Tensor, "F M patch_dim"]:
        """Return the pixels of the masked patches, in their random order."""
        tokens = self.to_decoder(encoded)
        frames, num_masked = masking.masked.shape
        masked = self.mask_token.to(tokens.dtype).expand(frames, num_masked, -1)
        order = torch.cat([masking.masked, masking.visible], dim=1)
        in_place = torch.cat([masked, tokens], dim=1).gather(1, _expand(order.argsort(dim=1), tokens.shape[-1]))
        tokens = in_place + resample_positions(self.positions, self.config.encoder.table_grid, grid)
        for block in self.blocks:
            tokens = block(tokens)
        return self.to_pixels(_gather(self.norm(tokens), masking.masked))

    def to_patches(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P patch_dim"]:
        """Return the pixels of every patch, row by row.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        self.encoder.grid_of(images)
        return cut_patches(images.movedim(1, -1), self.config.encoder.patch).flatten(1, 2)

    def normalised(self, patches: Float[Tensor, "F P patch_dim"]) -> Float[Tensor, "F P patch_dim"]:
        """Return the reconstruction targets."""
        if not self.config.normalise_patches:
            return patches
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        return (patches - mean) / (variance + _VARIANCE_EPS).sqrt()


def _expand(indices: Int[Tensor, "F K"], width: int) -> Int[Tensor, "F K C"]:
    return indices[..., None].expand(-1, -1, width)


def _gather(tokens: Float[Tensor, "F P C"], indices: Int[Tensor, "F K"]) -> Float[Tensor, "F K C"]:
    return tokens.gather(1, _expand(indices, tokens.shape[-1]))
