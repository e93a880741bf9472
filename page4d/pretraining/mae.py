"""The masked autoencoder: most of an image's patches are hidden, and painted from the few that are seen."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.encoders.vit import ViT, ViTConfig
from page4d.errors import UsageError
from page4d.layers.attention import Attention
from page4d.layers.block import INIT_STD, MixerBlock, initialise_linears
from page4d.layers.embed import cut_patches, join_patches
from page4d.layers.positions import resample_positions

_VARIANCE_EPS = 1e-6
"""Added to the variance of a patch before it is divided by."""


@dataclass(frozen=True, kw_only=True)
class MAEConfig:
    """What is hidden and how it is painted; the decoder is thrown away afterwards.

    With `normalise_patches`, what is painted are pixels less their patch's mean, over its deviation.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    kind: Literal["mae"] = "mae"
    encoder: ViTConfig = field(default_factory=ViTConfig)
    masked_share: float = 0.75
    normalise_patches: bool = True
    decoder_dim: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    decoder_head_dim: int | None = None
    mlp_ratio: float = 4.0

    def __post_init__(self) -> None:
        rows, columns = self.encoder.table_grid
        if not 0 < self.masked_share < 1 or not 0 < int(self.masked_share * rows * columns) < rows * columns:
            raise UsageError(
                f"mae: a share of {self.masked_share:g} of {rows * columns} patches is masked",
                "choose one that leaves some masked and some visible",
            )
        if self.encoder.num_classes is not None:
            raise UsageError(f"mae: an encoder with {self.encoder.num_classes} classes", "set num_classes to null")
        if min(self.decoder_dim, self.decoder_depth, self.decoder_heads) < 1:
            raise UsageError(
                f"mae: decoder of width {self.decoder_dim}, depth {self.decoder_depth}, {self.decoder_heads} heads",
                "use positive numbers",
            )


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Numbers of the patches of every image that are hidden and of those that are seen, in a random order."""

    masked: Int[Tensor, "F M"]
    visible: Int[Tensor, "F K"]


@dataclass(frozen=True, kw_only=True)
class Painted:
    """What the decoder says of the hidden patches, and how far that is from the truth."""

    loss: Float[Tensor, ""]
    pixels: Float[Tensor, "F M patch_dim"]
    masking: Masking


def draw_masking(noise: Float[Tensor, "F P"], masked_share: float) -> Masking:
    """Hide the patches of the smallest numbers."""
    order = noise.argsort(dim=-1)
    num_masked = int(masked_share * noise.shape[-1])
    return Masking(masked=order[:, :num_masked], visible=order[:, num_masked:])


class MaskedAutoencoder(nn.Module):
    """An encoder that sees some patches and a small decoder that paints the others.

    A class token takes no part.

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
                    dim,
                    config.decoder_heads,
                    head_dim=config.decoder_head_dim,
                    qkv_bias=config.encoder.qkv_bias,
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

    def forward(self, images: Float[Tensor, "F 3 H W"], noise: Float[Tensor, "F P"] | None = None) -> Painted:
        """Hide patches, by `noise` or at random, and paint them.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        patches = self.cut(images)
        if noise is None:
            noise = torch.rand(patches.shape[:2], device=images.device)
        masking = draw_masking(noise, self.config.masked_share)
        pixels = self.paint(self.encode(images, masking), masking, self.encoder.grid_of(images))
        target = _chosen(self.normalised(patches), masking.masked)
        return Painted(loss=(pixels - target).square().mean(), pixels=pixels, masking=masking)

    def encode(self, images: Float[Tensor, "F 3 H W"], masking: Masking) -> Float[Tensor, "F K C"]:
        """Encode the visible patches only."""
        special = self.config.encoder.num_special
        positions = self.encoder.position_table(self.encoder.grid_of(images))[:, special:]
        return self.encoder.transform(_chosen(self.encoder.patches(images) + positions, masking.visible))

    def paint(
        self, encoded: Float[Tensor, "F K C"], masking: Masking, grid: tuple[int, int]
    ) -> Float[Tensor, "F M patch_dim"]:
        """Return the pixels of the hidden patches, in their random order."""
        tokens = self.to_decoder(encoded)
        frames, num_masked = masking.masked.shape
        hidden = self.mask_token.to(tokens.dtype).expand(frames, num_masked, -1)
        order = torch.cat([masking.masked, masking.visible], dim=1)
        in_place = torch.cat([hidden, tokens], dim=1).gather(1, _spread(order.argsort(dim=1), tokens.shape[-1]))
        tokens = in_place + resample_positions(self.positions, self.config.encoder.table_grid, grid)
        for block in self.blocks:
            tokens = block(tokens)
        pixels: Tensor = self.to_pixels(_chosen(self.norm(tokens), masking.masked))
        return pixels

    def cut(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F P patch_dim"]:
        """Return the pixels of every patch, row by row.

        Raises:
            ShapeError: if image sides are not multiples of those of a patch.
        """
        self.encoder.grid_of(images)
        return cut_patches(images.movedim(1, -1), self.config.encoder.patch).flatten(1, 2)

    def normalised(self, patches: Float[Tensor, "F P patch_dim"]) -> Float[Tensor, "F P patch_dim"]:
        """Return what is to be painted."""
        if not self.config.normalise_patches:
            return patches
        mean, deviation = _statistics(patches)
        return (patches - mean) / deviation

    def picture(self, images: Float[Tensor, "F 3 H W"], painted: Painted) -> Float[Tensor, "F 3 H W"]:
        """Return the images with the hidden patches as they were painted.

        A normalised patch gets back its true mean and deviation.
        """
        patches = self.cut(images)
        pixels = painted.pixels.to(patches.dtype)
        if self.config.normalise_patches:
            mean, deviation = _statistics(_chosen(patches, painted.masking.masked))
            pixels = pixels * deviation + mean
        return self._joined(images, patches.scatter(1, _spread(painted.masking.masked, patches.shape[-1]), pixels))

    def hidden(self, images: Float[Tensor, "F 3 H W"], masking: Masking, colour: float = 0.0) -> Tensor:
        """Return the images with the hidden patches in one colour."""
        patches = self.cut(images)
        filled = patches.scatter(1, _spread(masking.masked, patches.shape[-1]), colour)
        return self._joined(images, filled)

    def _joined(self, images: Tensor, patches: Tensor) -> Float[Tensor, "F 3 H W"]:
        maps = torch.unflatten(patches, 1, self.encoder.grid_of(images))
        return join_patches(maps, self.config.encoder.patch).movedim(-1, 1)


def _spread(places: Int[Tensor, "F K"], width: int) -> Int[Tensor, "F K C"]:
    return places[..., None].expand(-1, -1, width)


def _chosen(tokens: Float[Tensor, "F P C"], places: Int[Tensor, "F K"]) -> Float[Tensor, "F K C"]:
    return tokens.gather(1, _spread(places, tokens.shape[-1]))


def _statistics(patches: Float[Tensor, "F P patch_dim"]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the pixels of every patch."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return mean, (variance + _VARIANCE_EPS).sqrt()
