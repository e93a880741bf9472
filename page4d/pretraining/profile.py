"""Walk through the networks of pretraining without computing them."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import torch

from page4d.encoders.vit import ViTConfig
from page4d.pretraining.dino import DINOConfig, SelfDistillation
from page4d.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.profiling.meta_run import rehearsed, unwritten
from page4d.profiling.table import Book, Stage, Walk


def walk_mae(config: MAEConfig, *, batch: int = 1, size: tuple[int, int] | None = None) -> Walk:
    """Hide patches of `batch` images of `size` (height, width), or of the encoder's own, and paint them.

    Raises:
        ShapeError: if the images do not divide into patches.
    """
    encoder = config.encoder
    height, width = size or (encoder.image_size, encoder.image_width or encoder.image_size)
    with unwritten():
        network = MaskedAutoencoder(config).eval().requires_grad_(False)
    with rehearsed(network) as rehearsal:
        images = torch.empty(batch, 3, height, width)
        patches = prod(network.encoder.grid_of(images))
        network(images, torch.empty(batch, patches))
    masked = int(config.masked_share * patches)
    sizes = {"B": batch, "H": height, "W": width, "P": patches, "p": encoder.patch[0], "q": encoder.patch[1]}
    widths = {"M": masked, "K": patches - masked, "C": encoder.embed_dim, "D": config.decoder_dim}
    book = Book(network=network, rehearsal=rehearsal, symbols=sizes | widths)
    return book.walk((*_encoder(book), *_decoder(book)))


def _encoder(book: Book[MaskedAutoencoder]) -> Iterator[Stage]:
    encoder, part = book.network.encoder, "encoder"
    yield book.stage("input", "images", "B 3 H W")
    yield book.stage(part, "patches", "B P C", "encoder.patches")
    if encoder.cls_token is not None:
        yield book.stage(part, "class token, which takes no part", "1 1 C", parameters=encoder.cls_token.numel())
    yield book.stage(part, "positions", "B P C", parameters=encoder.pos_embed.numel())
    yield book.stage(part, "visible patches", "B K C")
    for index in range(len(encoder.blocks)):
        yield book.stage(part, f"block {index}", "B K C", f"encoder.blocks.{index}")
    yield book.stage(part, "norm", "B K C", "encoder.norm")


def _decoder(book: Book[MaskedAutoencoder]) -> Iterator[Stage]:
    network, part = book.network, "decoder"
    yield book.stage(part, "visible patches", "B K D", "to_decoder")
    yield book.stage(part, "mask tokens in the others' places", "B P D", parameters=network.mask_token.numel())
    yield book.stage(part, "positions", "B P D", parameters=network.positions.numel())
    for index in range(len(network.blocks)):
        yield book.stage(part, f"block {index}", "B P D", f"blocks.{index}")
    yield book.stage(part, "norm", "B P D", "norm")
    yield book.stage(part, "pixels of the masked patches", "B M 3*p*q", "to_pixels")


def walk_dino(
    config: DINOConfig,
    *,
    batch: int = 1,
    size: tuple[int, int] | None = None,
    small_crops: int = 8,
    small_side: int = 96,
) -> Walk:
    """Show student and teacher two large crops of `size` (height, width) of `batch` images; small ones the student.

    Raises:
        ShapeError: if the crops do not divide into patches.
    """
    encoder = config.encoder
    height, width = size or (encoder.image_size, encoder.image_width or encoder.image_size)
    with unwritten():
        network = SelfDistillation(config).eval().requires_grad_(False)
    with rehearsed(network) as rehearsal:
        large = [torch.empty(batch, 3, height, width) for _ in range(2)]
        small = [torch.empty(batch, 3, small_side, small_side) for _ in range(small_crops)]
        patches, few = (prod(network.student.encoder.grid_of(crops[0])) for crops in (large, small))
        network(large, small)
    sizes = {"B": batch, "H": height, "W": width, "P": patches, "S": small_crops, "s": small_side, "Q": few}
    book = Book(
        network=network,
        rehearsal=rehearsal,
        symbols=sizes | {"C": encoder.embed_dim, "K": config.projector.classes},
    )
    return book.walk(_distillation(book))


def _distillation(book: Book[SelfDistillation]) -> Iterator[Stage]:
    encoder, part = book.network.student.encoder, "student"
    special = "1+" * encoder.config.num_special
    tables = encoder.pos_embed.numel() + (0 if encoder.cls_token is None else encoder.cls_token.numel())
    yield book.stage("input", "two large crops", "2*B 3 H W")
    yield book.stage("input", "small crops", "S*B 3 s s")
    yield book.stage(part, "patches of large crops", "2*B P C", "student.encoder.patches")
    yield book.stage(part, "positions", f"2*B {special}P C", parameters=tables)
    for index in range(len(encoder.blocks)):
        yield book.stage(part, f"block {index}", f"2*B {special}P C", f"student.encoder.blocks.{index}")
    yield book.stage(part, "norm", f"2*B {special}P C", "student.encoder.norm")
    yield book.stage(part, "small crops, all the same way", f"S*B {special}Q C")
    yield book.stage(part, "classes of all crops", "2*B+S*B K", "student.projector")
    yield book.stage("teacher", "classes of large crops", "2*B K", "teacher")


PRETRAINING_WALKS: dict[str, Callable[..., Walk]] = {
    "mae": partial(walk_mae, MAEConfig()),
    "dino": partial(walk_dino, DINOConfig(encoder=ViTConfig(embed_dim=384, num_heads=6))),
}
"""Walks through the networks of the papers by the method's name, for a number and a size of images."""
