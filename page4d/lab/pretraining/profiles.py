"""Shapes, parameters, FLOPs and memory of the pretraining networks, for `inspect-shapes` and limits of memory."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import torch

from page4d.lab.pretraining.dino import DINOConfig, SelfDistillation
from page4d.lab.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.networks.encoders.vit import ViTConfig
from page4d.networks.profile.meta import meta_run, on_meta_device
from page4d.networks.profile.table import Profile, ProfileBuilder, ProfileStage


def profile_mae(config: MAEConfig, *, batch: int = 1, size: tuple[int, int] | None = None) -> Profile:
    """Profile the masked autoencoder on `batch` images of `size` (height, width), by default that of the encoder.

    Raises:
        ShapeError: if the images do not divide into patches.
    """
    encoder = config.encoder
    height, width = size or (encoder.image_size, encoder.image_width or encoder.image_size)
    with on_meta_device():
        network = MaskedAutoencoder(config).eval().requires_grad_(False)
    with meta_run(network) as run:
        images = torch.empty(batch, 3, height, width)
        patches = prod(network.encoder.grid_of(images))
        network(images, torch.empty(batch, patches))
    masked = int(config.masked_share * patches)
    sizes = {"B": batch, "H": height, "W": width, "P": patches, "p": encoder.patch[0], "q": encoder.patch[1]}
    widths = {"M": masked, "K": patches - masked, "C": encoder.embed_dim, "D": config.decoder_dim}
    builder = ProfileBuilder(network=network, run=run, symbols=sizes | widths)
    return builder.profile((*_encoder(builder), *_decoder(builder)))


def _encoder(builder: ProfileBuilder[MaskedAutoencoder]) -> Iterator[ProfileStage]:
    encoder, part = builder.network.encoder, "encoder"
    yield builder.stage("input", "images", "B 3 H W")
    yield builder.stage(part, "patches", "B P C", "encoder.patches")
    if encoder.cls_token is not None:
        yield builder.stage(part, "class token (not used)", "1 1 C", parameters=encoder.cls_token.numel())
    yield builder.stage(part, "positions", "B P C", parameters=encoder.pos_embed.numel())
    yield builder.stage(part, "visible patches", "B K C")
    for index in range(len(encoder.blocks)):
        yield builder.stage(part, f"block {index}", "B K C", f"encoder.blocks.{index}")
    yield builder.stage(part, "norm", "B K C", "encoder.norm")


def _decoder(builder: ProfileBuilder[MaskedAutoencoder]) -> Iterator[ProfileStage]:
    network, part = builder.network, "decoder"
    yield builder.stage(part, "visible patches", "B K D", "to_decoder")
    yield builder.stage(part, "mask tokens inserted", "B P D", parameters=network.mask_token.numel())
    yield builder.stage(part, "positions", "B P D", parameters=network.positions.numel())
    for index in range(len(network.blocks)):
        yield builder.stage(part, f"block {index}", "B P D", f"blocks.{index}")
    yield builder.stage(part, "norm", "B P D", "norm")
    yield builder.stage(part, "pixels of masked patches", "B M 3*p*q", "to_pixels")


def profile_dino(
    config: DINOConfig,
    *,
    batch: int = 1,
    size: tuple[int, int] | None = None,
    small_crops: int = 8,
    small_side: int = 96,
) -> Profile:
    """Profile DINO on two large crops of `size` (height, width) per image, and small crops for the student only.

    Raises:
        ShapeError: if the crops do not divide into patches.
    """
    encoder = config.encoder
    height, width = size or (encoder.image_size, encoder.image_width or encoder.image_size)
    with on_meta_device():
        network = SelfDistillation(config).eval().requires_grad_(False)
    with meta_run(network) as run:
        large = [torch.empty(batch, 3, height, width) for _ in range(2)]
        small = [torch.empty(batch, 3, small_side, small_side) for _ in range(small_crops)]
        patches, small_patches = (prod(network.student.encoder.grid_of(crops[0])) for crops in (large, small))
        network(large, small)
    sizes = {"B": batch, "H": height, "W": width, "P": patches, "S": small_crops, "s": small_side, "Q": small_patches}
    builder = ProfileBuilder(
        network=network, run=run, symbols=sizes | {"C": encoder.embed_dim, "K": config.projector.classes}
    )
    return builder.profile(_distillation(builder))


def _distillation(builder: ProfileBuilder[SelfDistillation]) -> Iterator[ProfileStage]:
    encoder, part = builder.network.student.encoder, "student"
    special = "1+" * encoder.config.num_special
    tables = encoder.pos_embed.numel() + (0 if encoder.cls_token is None else encoder.cls_token.numel())
    yield builder.stage("input", "two large crops", "2*B 3 H W")
    yield builder.stage("input", "small crops", "S*B 3 s s")
    yield builder.stage(part, "patches of large crops", "2*B P C", "student.encoder.patches")
    yield builder.stage(part, "positions", f"2*B {special}P C", parameters=tables)
    for index in range(len(encoder.blocks)):
        yield builder.stage(part, f"block {index}", f"2*B {special}P C", f"student.encoder.blocks.{index}")
    yield builder.stage(part, "norm", f"2*B {special}P C", "student.encoder.norm")
    yield builder.stage(part, "small crops, through the same layers", f"S*B {special}Q C")
    yield builder.stage(part, "logits of all crops", "2*B+S*B K", "student.projector")
    yield builder.stage("teacher", "logits of large crops", "2*B K", "teacher")


PRETRAINING_PROFILES: dict[str, Callable[..., Profile]] = {
    "mae": partial(profile_mae, MAEConfig()),
    "dino": partial(profile_dino, DINOConfig(encoder=ViTConfig(embed_dim=384, num_heads=6))),
}
"""Profiles of the papers' networks by method, as functions of batch size and image size."""
