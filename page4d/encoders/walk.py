"""What shape leaves every part of an encoder, and how many parameters the part has; nothing is computed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from page4d.encoders.build import build_encoder
from page4d.encoders.navit import NaViT
from page4d.encoders.presets import ClassifierConfig
from page4d.encoders.swin import Swin, SwinStage
from page4d.encoders.twins import Twins, TwinsStage
from page4d.encoders.vit import Pooling, ViT
from page4d.layers.embed import patch_grid
from page4d.layers.packing import group_in_order


@dataclass(frozen=True, kw_only=True)
class EncoderStage:
    """A part of an encoder and what leaves it; `symbolic` names the axes of `shape`, separated by blanks."""

    part: str
    name: str
    symbolic: str
    shape: tuple[int, ...]
    parameters: int = 0


def walk_encoder(
    config: ClassifierConfig, *, batch: int = 1, size: tuple[int, int] | None = None
) -> tuple[EncoderStage, ...]:
    """Pass `batch` images of `size` (height, width), or of the encoder's own, on the device that holds no numbers.

    The parameters of the stages add up to those of the encoder.

    Raises:
        ShapeError: if the images do not divide into patches.
    """
    height, width = size or (config.image_size, getattr(config, "image_width", None) or config.image_size)
    with torch.device("meta"), torch.no_grad():
        encoder = build_encoder(config)
        images = torch.empty(batch, 3, height, width)
        entrance = EncoderStage(part="input", name="images", symbolic="B 3 H W", shape=tuple(images.shape))
        match encoder:
            case ViT():
                stages = list(_walk_vit(encoder, images))
            case Swin() | Twins():
                stages = list(_walk_pyramid(encoder, images))
            case NaViT():
                stages = list(_walk_navit(encoder, images))
            case _:
                raise AssertionError(config)
    return (entrance, *stages)


def _walk_vit(encoder: ViT, images: Tensor) -> Iterator[EncoderStage]:
    config = encoder.config
    tables = encoder.pos_embed.numel() + (0 if encoder.cls_token is None else encoder.cls_token.numel())
    name = "class token and positions" if config.num_special else "positions"
    symbolic = f"B {config.num_special}+P C" if config.num_special else "B P C"
    yield _stage("embedding", "patches", "B P C", encoder.patches(images), _count(encoder.patches))
    tokens = encoder.embed(images)
    yield _stage("embedding", name, symbolic, tokens, tables)
    for index, block in enumerate(encoder.blocks):
        tokens = block(tokens)
        yield _stage("blocks", f"block {index}", symbolic, tokens, _count(block))
    tokens = encoder.norm(tokens)
    yield _stage("pooling", "norm", symbolic, tokens, _count(encoder.norm))
    pooled = tokens[:, 0] if config.pooling is Pooling.CLASS else tokens.mean(dim=1)
    yield _stage("pooling", "class token" if config.pooling is Pooling.CLASS else "mean", "B C", pooled)
    yield from _walk_head(encoder.head, pooled)


def _walk_pyramid(encoder: Swin | Twins, images: Tensor) -> Iterator[EncoderStage]:
    if isinstance(encoder, Swin):
        maps = encoder.embed(images)
        inside = _count(encoder.patch_embed) + _count(encoder.patch_norm)
        inside += 0 if encoder.pos_embed is None else encoder.pos_embed.numel()
        yield _stage("embedding", "patches", _on_grid(0), maps, inside)
    else:
        maps = images.movedim(1, -1)
    levels: list[Tensor] = []
    for number, stage in enumerate(encoder.stages):
        assert isinstance(stage, SwinStage | TwinsStage)
        yield from _walk_stage(number, stage, maps)
        maps = stage(maps)
        levels.append(maps)
    levels[-1] = encoder.norm(maps)
    yield _stage("pooling", "norm", _on_grid(len(levels) - 1), levels[-1], _count(encoder.norm))
    if encoder.fusion is not None and encoder.config.level is not None:
        level = encoder.config.level
        fused = encoder.fusion(levels[level:])
        yield _stage("fusion", f"levels from {level} on", _on_grid(level), fused, _count(encoder.fusion))
    pooled = levels[-1].mean(dim=(1, 2))
    yield _stage("pooling", "mean", "B C", pooled)
    yield from _walk_head(encoder.head, pooled)


def _walk_stage(number: int, stage: SwinStage | TwinsStage, maps: Tensor) -> Iterator[EncoderStage]:
    part, symbolic = f"stage {number}", _on_grid(number)
    joining = stage.merging if isinstance(stage, SwinStage) else stage.patches
    maps = joining(maps)
    if _count(joining):
        yield _stage(part, "patches", symbolic, maps, _count(joining))
    for index, block in enumerate(stage.blocks):
        maps = block(maps)
        yield _stage(part, f"block {index}", symbolic, maps, _count(block))
        if isinstance(stage, TwinsStage) and index == stage.positions_after:
            yield _stage(part, "generated positions", symbolic, stage.positions(maps), _count(stage.positions))


def _on_grid(level: int) -> str:
    """Name the axes of a map after so many halvings of the first one."""
    factor = "" if level == 0 else f"/{2**level}"
    return f"B rows{factor} columns{factor} C{level}"


def _walk_navit(encoder: NaViT, images: Tensor) -> Iterator[EncoderStage]:
    config = encoder.config
    rows, columns = patch_grid(images.shape[-2], images.shape[-1], config.patch_size)
    groups = group_in_order([rows * columns] * len(images), config.max_tokens)
    most = max(len(group) for group in groups)
    patches = torch.empty(len(groups), most * rows * columns, 3 * config.patch_size**2)
    yield _stage("packing", "patches in sequences", "S N patch", patches)
    positions = torch.zeros(*patches.shape[:2], 2, dtype=torch.long)
    tables = encoder.row_embed.numel() + encoder.column_embed.numel()
    yield _stage("embedding", "patches", "S N C", encoder.patches(patches), _count(encoder.patches))
    tokens = encoder.embed(patches, positions)
    yield _stage("embedding", "positions of rows and columns", "S N C", tokens, tables)
    for index, block in enumerate(encoder.blocks):
        tokens = block(tokens)
        yield _stage("blocks", f"block {index}", "S N C", tokens, _count(block))
    yield _stage("pooling", "norm", "S N C", encoder.norm(tokens), _count(encoder.norm))
    if encoder.pool is not None:
        pooled = tokens.new_empty(len(groups), most, config.embed_dim)
        yield _stage("pooling", "attention of one query an image", "S I C", pooled, _count(encoder.pool))
        images_in_order = tokens.new_empty(len(images), config.embed_dim)
        yield _stage("pooling", "images in their order", "B C", images_in_order)
        yield from _walk_head(encoder.head, images_in_order)


def _walk_head(head: nn.Module | None, pooled: Tensor) -> Iterator[EncoderStage]:
    if head is not None:
        yield _stage("head", "logits", "B classes", head(pooled), _count(head))


def _stage(part: str, name: str, symbolic: str, leaves: Tensor, parameters: int = 0) -> EncoderStage:
    return EncoderStage(part=part, name=name, symbolic=symbolic, shape=tuple(leaves.shape), parameters=parameters)


def _count(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())
