"""Checkpoints of single encoders in the names of timm and of Microsoft: key maps and configurations."""

import math
from dataclasses import replace

from page4d.errors import UsageError, WeightsError
from page4d.networks.encoders.build import ENCODER_PRESETS
from page4d.networks.encoders.swin import SwinConfig
from page4d.networks.encoders.twins import TwinsConfig
from page4d.networks.encoders.vit import ViTConfig
from page4d.weights.conversion.accounting import KeyMap, Rule
from page4d.weights.families.family import Specs, count, shape_of

_BLOCK = r"(norm1|norm2|mlp\.fc1|mlp\.fc2)\.(weight|bias)"

VIT_TIMM: KeyMap = (
    Rule(r"(cls_token|pos_embed|norm\..*|head\..*)", r"\1"),
    Rule(r"patch_embed\.proj\.(.*)", r"patches.embed.proj.\1"),
    Rule(rf"blocks\.(\d+)\.{_BLOCK}", r"blocks.\1.\2.\3"),
    Rule(r"blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)", r"blocks.\1.attn.\2.\3"),
)


def _swin(merging: tuple[Rule, ...]) -> KeyMap:
    return (
        Rule(
            r"layers\.(\d)\.blocks\.(\d+)\.attn\.relative_position_bias_table",
            r"stages.\1.blocks.\2.attn.offset_table",
            "relative position bias tables",
            adapt=lambda table: table[None],
        ),
        Rule("absolute_pos_embed", "pos_embed", "absolute position table"),
        Rule(r"patch_embed\.proj\.(.*)", r"patch_embed.proj.\1"),
        Rule(r"patch_embed\.norm\.(.*)", r"patch_norm.\1"),
        Rule(r"layers\.(\d)\.blocks\.(\d+)\.attn\.(relative_position_index)", None),
        Rule(r"layers\.(\d)\.blocks\.(\d+)\.(attn_mask)", None),
        Rule(rf"layers\.(\d)\.blocks\.(\d+)\.{_BLOCK}", r"stages.\1.blocks.\2.\3.\4"),
        Rule(
            r"layers\.(\d)\.blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)", r"stages.\1.blocks.\2.attn.inside.\3.\4"
        ),
        *merging,
        Rule(r"norm\.(weight|bias)", r"norm.\1"),
        Rule(r"head\.(?:fc\.)?(weight|bias)", r"head.\1"),
    )


SWIN_TIMM: KeyMap = _swin((Rule(r"layers\.(\d)\.downsample\.(.*)", r"stages.\1.merging.\2"),))

# In Microsoft's code, patch merging ends a stage; in page4d it starts the next one.
SWIN_MICROSOFT: KeyMap = _swin(
    tuple(Rule(rf"layers\.{stage}\.downsample\.(.*)", rf"stages.{stage + 1}.merging.\1") for stage in range(3))
)

TWINS_TIMM: KeyMap = (
    Rule(r"patch_embeds\.(\d)\.proj\.(.*)", r"stages.\1.patches.convolution.proj.\2"),
    Rule(r"patch_embeds\.(\d)\.norm\.(.*)", r"stages.\1.patches.norm.\2"),
    Rule(r"pos_block\.(\d)\.proj\.0\.(.*)", r"stages.\1.positions.proj.\2"),
    Rule(rf"blocks\.(\d)\.(\d+)\.{_BLOCK}", r"stages.\1.blocks.\2.\3.\4"),
    # Even blocks attend locally, odd blocks to sub-sampled keys.
    Rule(r"blocks\.(\d)\.(\d*[02468])\.attn\.(qkv|proj)\.(.*)", r"stages.\1.blocks.\2.attn.inside.\3.\4"),
    Rule(r"blocks\.(\d)\.(\d+)\.attn\.(q|kv|proj|norm)\.(.*)", r"stages.\1.blocks.\2.attn.\3.\4"),
    Rule(r"blocks\.(\d)\.(\d+)\.attn\.sr\.(.*)", r"stages.\1.blocks.\2.attn.summary.proj.\3"),
    Rule(r"(norm|head)\.(weight|bias)", r"\1.\2"),
)


def read_vit(specs: Specs, where: str) -> ViTConfig:
    """Return the configuration of a ViT in the names of timm."""
    dim, _, patch, _ = shape_of(specs, "patch_embed.proj.weight", 4)
    depth, patches = count(specs, "blocks."), shape_of(specs, "pos_embed", 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'pos_embed' covers {patches} patches, which is not a square", "check the weights")
    for config in ENCODER_PRESETS.values():
        if isinstance(config, ViTConfig) and (config.embed_dim, config.depth) == (dim, depth):
            return replace(
                config,
                patch_size=patch,
                image_size=side * patch,
                qkv_bias="blocks.0.attn.qkv.bias" in specs,
                num_classes=_num_classes(specs),
            )
    raise UsageError(
        f"'{where}' is a ViT of width {dim} and depth {depth}, which is not a published size",
        "its number of heads cannot be read from tensors: convert one of " + _presets(ViTConfig),
    )


def read_swin(specs: Specs, where: str) -> SwinConfig:  # noqa: ARG001  shapes determine all sizes
    """Return the configuration of a Swin transformer in the names of timm or Microsoft."""
    dim, _, patch, _ = shape_of(specs, "patch_embed.proj.weight", 4)
    stages = count(specs, "layers.")
    tables = [shape_of(specs, f"layers.{i}.blocks.0.attn.relative_position_bias_table", 2) for i in range(stages)]
    position = specs.get("absolute_pos_embed")
    side = SwinConfig.image_size // patch if position is None else math.isqrt(position.shape[1])
    return SwinConfig(
        image_size=side * patch,
        first_patch=patch,
        dim=dim,
        depths=tuple(count(specs, f"layers.{i}.blocks.") for i in range(stages)),
        num_heads=tuple(table[1] for table in tables),
        window=(math.isqrt(tables[0][0]) + 1) // 2,
        mlp_ratio=shape_of(specs, "layers.0.blocks.0.mlp.fc1.weight", 2)[0] / dim,
        qkv_bias="layers.0.blocks.0.attn.qkv.bias" in specs,
        patch_norm="patch_embed.norm.weight" in specs,
        absolute_positions=position is not None,
        num_classes=_num_classes(specs),
    )


def read_twins(specs: Specs, where: str) -> TwinsConfig:
    """Return the configuration of a Twins-SVT in the names of timm."""
    stages = count(specs, "patch_embeds.")
    dims = tuple(shape_of(specs, f"patch_embeds.{i}.proj.weight", 4)[0] for i in range(stages))
    depths = tuple(count(specs, f"blocks.{i}.") for i in range(stages))
    for config in ENCODER_PRESETS.values():
        if isinstance(config, TwinsConfig) and (config.dims, config.depths) == (dims, depths):
            return replace(config, num_classes=_num_classes(specs))
    raise UsageError(
        f"'{where}' is a Twins-SVT of widths {dims} and depths {depths}, which is not a published size",
        "its heads and windows cannot be read from tensors: convert one of " + _presets(TwinsConfig),
    )


def _presets(kind: type) -> str:
    return ", ".join(name for name, config in ENCODER_PRESETS.items() if isinstance(config, kind))


def _num_classes(specs: Specs) -> int | None:
    found = [specs[name].shape[0] for name in ("head.weight", "head.fc.weight") if name in specs]
    return found[0] if found else None
