"""Profile of an image encoder, with its classification head if it has one, from a run on the meta device."""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from page4d.errors import UsageError
from page4d.networks.encoders.build import ClassifierConfig, build_encoder
from page4d.networks.encoders.navit import NaViT
from page4d.networks.encoders.swin import Swin
from page4d.networks.encoders.twins import Twins, TwinsStage
from page4d.networks.encoders.vit import Pooling, ViT
from page4d.networks.layers.block import patch_grid
from page4d.networks.profile.meta import meta_run, on_meta_device
from page4d.networks.profile.table import Profile, ProfileBuilder, ProfileStage


def profile_encoder(config: ClassifierConfig, *, batch: int = 1, size: tuple[int, int] | None = None) -> Profile:
    """Run an encoder on `batch` images of `size` (height, width), by default its nominal size, on the meta device.

    Raises:
        ShapeError: if the images do not divide into the patches of all stages.
        UsageError: if there are no images.
    """
    height, width = size or (config.image_size, getattr(config, "image_width", None) or config.image_size)
    if batch < 1:
        raise UsageError(f"{batch} images", "give at least one")
    with on_meta_device():
        encoder = build_encoder(config).eval().requires_grad_(False)
    assert isinstance(encoder, ViT | Swin | Twins | NaViT)
    symbols = {"B": batch, "H": height, "W": width}
    if isinstance(encoder, NaViT):
        return _profile_navit(encoder, symbols)
    last = prod(encoder.config.patches) if isinstance(encoder, Swin | Twins) else 1
    patch_grid(height, width, last)
    with meta_run(encoder) as run:
        images = torch.empty(batch, 3, height, width)
        encoder(images) if config.num_classes is None else encoder.classify(images)
    if isinstance(encoder, ViT):
        patch = encoder.config.patch
        symbols |= {"P": (height // patch[0]) * (width // patch[1]), "C": encoder.config.embed_dim}
        vit = ProfileBuilder(network=encoder, run=run, symbols=symbols | _classes(config))
        return vit.profile((_input(vit), *_vit(vit)))
    symbols |= {f"C{stage}": dim for stage, dim in enumerate(encoder.config.dims)}
    pyramid = ProfileBuilder(network=encoder, run=run, symbols=symbols | _classes(config))
    return pyramid.profile((_input(pyramid), *_pyramid(pyramid)))


def _classes(config: ClassifierConfig) -> dict[str, int]:
    return {} if config.num_classes is None else {"K": config.num_classes}


def _input(builder: ProfileBuilder[Any]) -> ProfileStage:
    return builder.stage("input", "images", "B 3 H W")


def _vit(builder: ProfileBuilder[ViT]) -> Iterator[ProfileStage]:
    encoder, tokens = builder.network, f"B {'1+' * builder.network.config.num_special}P C"
    yield builder.stage("embedding", "patches", "B P C", "patches")
    if encoder.cls_token is not None:
        yield builder.stage("embedding", "class token", tokens, parameters=encoder.cls_token.numel())
    yield builder.stage("embedding", "positions", tokens, parameters=encoder.pos_embed.numel())
    for index in range(len(encoder.blocks)):
        yield builder.stage("blocks", f"block {index}", tokens, f"blocks.{index}")
    yield builder.stage("pooling", "norm", tokens, "norm")
    if encoder.head is not None:
        pooled = "class token" if encoder.config.pooling is Pooling.CLASS else "mean"
        yield builder.stage("pooling", pooled, "B C")
        yield builder.stage("head", "logits", "B K", "head")


def _pyramid(builder: ProfileBuilder[Swin | Twins]) -> Iterator[ProfileStage]:
    encoder = builder.network
    sides = encoder.config.patches
    maps = [f"B H/{prod(sides[: stage + 1])} W/{prod(sides[: stage + 1])} C{stage}" for stage in range(len(sides))]
    if isinstance(encoder, Swin):
        table = 0 if encoder.pos_embed is None else encoder.pos_embed.numel()
        yield builder.stage("embedding", "patches", maps[0], "patch_embed", "patch_norm", parameters=table)
    for number, stage in enumerate(encoder.stages):
        yield from _pyramid_stage(builder, number, stage, maps[number])
    yield builder.stage("pooling", "norm", maps[-1], "norm")
    level = encoder.config.level
    if level is not None:
        yield builder.stage("fusion", f"fused levels from {level} on", maps[level], "fusion")
    if encoder.head is not None:
        yield builder.stage("pooling", "mean", f"B C{len(sides) - 1}")
        yield builder.stage("head", "logits", "B K", "head")


def _pyramid_stage(
    builder: ProfileBuilder[Swin | Twins], number: int, stage: object, maps: str
) -> Iterator[ProfileStage]:
    part, path = f"stage {number}", f"stages.{number}"
    if isinstance(stage, TwinsStage):
        yield builder.stage(part, "patches", maps, f"{path}.patches")
    elif number:
        yield builder.stage(part, "patches", maps, f"{path}.merging")
    for index in range(builder.network.config.depths[number]):
        yield builder.stage(part, f"block {index}", maps, f"{path}.blocks.{index}")
        if isinstance(stage, TwinsStage) and index == stage.positions_after:
            yield builder.stage(part, "conditional positions", maps, f"{path}.positions")


def _profile_navit(encoder: NaViT, symbols: dict[str, int]) -> Profile:
    """Pack images of one size."""
    config, batch = encoder.config, symbols["B"]
    with meta_run(encoder) as run:
        images = torch.empty(batch, 3, symbols["H"], symbols["W"])
        packing = encoder.pack(images)
        tokens = encoder.transform(encoder.embed(packing.patches, packing.positions), packing)
        if encoder.pool is not None and encoder.head is not None:
            encoder.head(encoder.pool(tokens, packing).flatten(0, 1)[:batch])
    symbols |= {
        "P": prod(encoder.grid_of(images)),
        "p": config.patch_size,
        **dict(zip("SN", packing.images.shape, strict=True)),
    }
    symbols |= {"I": packing.most_images, "C": config.embed_dim, **_classes(config)}
    builder = ProfileBuilder(network=encoder, run=run, symbols=symbols)
    return builder.profile((_input(builder), *_navit(builder)))


def _navit(builder: ProfileBuilder[NaViT]) -> Iterator[ProfileStage]:
    encoder = builder.network
    tables = encoder.row_embed.numel() + encoder.column_embed.numel()
    yield builder.stage("packing", "packed patches", "S N 3*p*p")
    yield builder.stage("embedding", "patches", "S N C", "patches")
    yield builder.stage("embedding", "row and column positions", "S N C", parameters=tables)
    for index in range(len(encoder.blocks)):
        yield builder.stage("blocks", f"block {index}", "S N C", f"blocks.{index}")
    yield builder.stage("pooling", "norm", "S N C", "norm")
    if encoder.pool is not None:
        yield builder.stage("pooling", "attention pooling, one query per image", "S I C", "pool")
        yield builder.stage("pooling", "one vector per image", "B C")
        yield builder.stage("head", "logits", "B K", "head")
