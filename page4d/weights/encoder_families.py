"""Recognise which published encoder tensors are of, and read its sizes from them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

from page4d.encoders.build import EncoderConfig
from page4d.encoders.presets import ENCODER_PRESETS
from page4d.encoders.swin import SwinConfig
from page4d.encoders.twins import TwinsConfig
from page4d.encoders.vit import ViTConfig
from page4d.errors import UsageError, WeightsError
from page4d.weights.accounting import Exemption, Stage
from page4d.weights.keymap import KeyMap, Rule
from page4d.weights.stream import TensorSpec

Specs = Mapping[str, TensorSpec]


class EncoderFamily(StrEnum):
    """Whose code named the tensors."""

    VIT = "ViT (timm)"
    SWIN = "Swin (timm)"
    SWIN_MICROSOFT = "Swin (Microsoft)"
    TWINS = "Twins-SVT (timm)"
    OWN = "page4d"


ENCODER_LICENCES: dict[EncoderFamily, str] = {
    EncoderFamily.VIT: "Apache-2.0 for the weights of Google's ViT in timm; others have their own",
    EncoderFamily.SWIN: "MIT (Microsoft)",
    EncoderFamily.SWIN_MICROSOFT: "MIT (Microsoft)",
    EncoderFamily.TWINS: "Apache-2.0 (Meituan)",
}
"""What the authors say of their weights, to the best of our knowledge."""

_BLOCK = r"(norm1|norm2|mlp\.fc1|mlp\.fc2)\.(weight|bias)"

_VIT: KeyMap = (
    Rule(pattern=r"(cls_token|pos_embed|norm\..*|head\..*)", target=r"\1"),
    Rule(pattern=r"patch_embed\.proj\.(.*)", target=r"patches.embed.proj.\1"),
    Rule(pattern=rf"blocks\.(\d+)\.{_BLOCK}", target=r"blocks.\1.\2.\3"),
    Rule(pattern=r"blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)", target=r"blocks.\1.attn.\2.\3"),
)


def _swin(merging: tuple[Rule, ...]) -> KeyMap:
    return (
        Rule(pattern=r"patch_embed\.proj\.(.*)", target=r"patch_embed.proj.\1"),
        Rule(pattern=r"patch_embed\.norm\.(.*)", target=r"patch_norm.\1"),
        Rule(pattern=r"layers\.(\d)\.blocks\.(\d+)\.attn\.(relative_position_index)", target=None),
        Rule(pattern=r"layers\.(\d)\.blocks\.(\d+)\.(attn_mask)", target=None),
        Rule(pattern=rf"layers\.(\d)\.blocks\.(\d+)\.{_BLOCK}", target=r"stages.\1.blocks.\2.\3.\4"),
        Rule(
            pattern=r"layers\.(\d)\.blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)",
            target=r"stages.\1.blocks.\2.attn.inside.\3.\4",
        ),
        *merging,
        Rule(pattern=r"norm\.(weight|bias)", target=r"norm.\1"),
        Rule(pattern=r"head\.(?:fc\.)?(weight|bias)", target=r"head.\1"),
    )


_TWINS: KeyMap = (
    Rule(pattern=r"patch_embeds\.(\d)\.proj\.(.*)", target=r"stages.\1.patches.convolution.proj.\2"),
    Rule(pattern=r"patch_embeds\.(\d)\.norm\.(.*)", target=r"stages.\1.patches.norm.\2"),
    Rule(pattern=r"pos_block\.(\d)\.proj\.0\.(.*)", target=r"stages.\1.positions.proj.\2"),
    Rule(pattern=rf"blocks\.(\d)\.(\d+)\.{_BLOCK}", target=r"stages.\1.blocks.\2.\3.\4"),
    # Blocks of even number attend in groups, those of odd number to a summary.
    Rule(
        pattern=r"blocks\.(\d)\.(\d*[02468])\.attn\.(qkv|proj)\.(.*)", target=r"stages.\1.blocks.\2.attn.inside.\3.\4"
    ),
    Rule(pattern=r"blocks\.(\d)\.(\d+)\.attn\.(q|kv|proj|norm)\.(.*)", target=r"stages.\1.blocks.\2.attn.\3.\4"),
    Rule(pattern=r"blocks\.(\d)\.(\d+)\.attn\.sr\.(.*)", target=r"stages.\1.blocks.\2.attn.summary.proj.\3"),
    Rule(pattern=r"(norm|head)\.(weight|bias)", target=r"\1.\2"),
)

ENCODER_KEYS: dict[EncoderFamily, KeyMap] = {
    EncoderFamily.VIT: _VIT,
    EncoderFamily.SWIN: _swin((Rule(pattern=r"layers\.(\d)\.downsample\.(.*)", target=r"stages.\1.merging.\2"),)),
    # There, merging ends a stage; here it begins the next one.
    EncoderFamily.SWIN_MICROSOFT: _swin(
        tuple(
            Rule(pattern=rf"layers\.{stage}\.downsample\.(.*)", target=rf"stages.{stage + 1}.merging.\1")
            for stage in range(3)
        )
    ),
    EncoderFamily.TWINS: _TWINS,
    EncoderFamily.OWN: (Rule(pattern=r"(.*)", target=r"\1"),),
}
"""The published encoders, and ours, into ours."""


def _with_axis(table: Tensor) -> Tensor:
    return table[None]


_OFFSET_TABLES = Exemption(
    rule="tables of offsets",
    pattern=r"layers\.(\d)\.blocks\.(\d+)\.attn\.relative_position_bias_table",
    target=r"stages.\1.blocks.\2.attn.offset_table",
    adapt=_with_axis,
)
_ABSOLUTE = Exemption(rule="absolute positions", pattern="absolute_pos_embed", target="pos_embed")


@dataclass(frozen=True, kw_only=True)
class RecognisedEncoder:
    """Whose an encoder is, and its sizes."""

    family: EncoderFamily
    config: EncoderConfig

    @property
    def stage(self) -> Stage:
        """How its tensors enter ours."""
        swin = self.family in (EncoderFamily.SWIN, EncoderFamily.SWIN_MICROSOFT)
        exemptions = (_OFFSET_TABLES, _ABSOLUTE) if swin else ()
        return Stage(origin=self.family.value, exemptions=exemptions, keys=ENCODER_KEYS[self.family])


def encoder_family(names: Iterable[str]) -> EncoderFamily | None:
    """Tell the encoder by the names of its tensors; None if it is none that is known."""
    held = set(names)
    if {"cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= held:
        return None if "register_tokens" in held or "blocks.0.ls1.gamma" in held else EncoderFamily.VIT
    if "layers.0.blocks.0.attn.relative_position_bias_table" in held:
        ends = "layers.0.downsample.norm.weight" in held
        return EncoderFamily.SWIN_MICROSOFT if ends else EncoderFamily.SWIN
    return EncoderFamily.TWINS if {"patch_embeds.0.proj.weight", "pos_block.0.proj.0.weight"} <= held else None


def read_encoder(specs: Specs, family: EncoderFamily, where: str) -> RecognisedEncoder:
    """Read the sizes of an encoder; what tensors cannot tell is that of the published size.

    Raises:
        UsageError: if it has no published size.
        WeightsError: if tensors that tell a size are missing or misshaped.
    """
    if family is EncoderFamily.VIT:
        return RecognisedEncoder(family=family, config=_vit(specs, where))
    if family is EncoderFamily.TWINS:
        return RecognisedEncoder(family=family, config=_twins(specs, where))
    return RecognisedEncoder(family=family, config=_swin_config(specs))


def _vit(specs: Specs, where: str) -> ViTConfig:
    dim, _, patch, _ = _shape(specs, "patch_embed.proj.weight", 4)
    depth = _count(specs, r"blocks\.(\d+)\..*")
    patches = _shape(specs, "pos_embed", 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'pos_embed' covers {patches} patches, which is no square", "check the weights")
    for config in ENCODER_PRESETS.values():
        if isinstance(config, ViTConfig) and (config.embed_dim, config.depth) == (dim, depth):
            return replace(
                config,
                patch_size=patch,
                image_size=side * patch,
                qkv_bias="blocks.0.attn.qkv.bias" in specs,
                num_classes=_classes(specs),
            )
    raise UsageError(
        f"'{where}' is a ViT of width {dim} and depth {depth}, which is no published size",
        "tensors cannot tell its number of heads: convert one of " + ", ".join(_names(ViTConfig)),
    )


def _swin_config(specs: Specs) -> SwinConfig:
    dim, _, patch, _ = _shape(specs, "patch_embed.proj.weight", 4)
    stages = _count(specs, r"layers\.(\d+)\..*")
    tables = [_shape(specs, f"layers.{i}.blocks.0.attn.relative_position_bias_table", 2) for i in range(stages)]
    position = specs.get("absolute_pos_embed")
    side = SwinConfig.image_size // patch if position is None else math.isqrt(position.shape[1])
    return SwinConfig(
        image_size=side * patch,
        first_patch=patch,
        dim=dim,
        depths=tuple(_count(specs, rf"layers\.{i}\.blocks\.(\d+)\..*") for i in range(stages)),
        num_heads=tuple(table[1] for table in tables),
        window=(math.isqrt(tables[0][0]) + 1) // 2,
        mlp_ratio=_shape(specs, "layers.0.blocks.0.mlp.fc1.weight", 2)[0] / dim,
        qkv_bias="layers.0.blocks.0.attn.qkv.bias" in specs,
        patch_norm="patch_embed.norm.weight" in specs,
        absolute_positions=position is not None,
        num_classes=_classes(specs),
    )


def _twins(specs: Specs, where: str) -> TwinsConfig:
    stages = _count(specs, r"patch_embeds\.(\d+)\..*")
    dims = tuple(_shape(specs, f"patch_embeds.{i}.proj.weight", 4)[0] for i in range(stages))
    depths = tuple(_count(specs, rf"blocks\.{i}\.(\d+)\..*") for i in range(stages))
    for config in ENCODER_PRESETS.values():
        if isinstance(config, TwinsConfig) and (config.dims, config.depths) == (dims, depths):
            return replace(config, num_classes=_classes(specs))
    raise UsageError(
        f"'{where}' is a Twins-SVT of widths {dims} and depths {depths}, which is no published size",
        "tensors cannot tell its heads and windows: convert one of " + ", ".join(_names(TwinsConfig)),
    )


def _names(kind: type) -> list[str]:
    return [name for name, config in ENCODER_PRESETS.items() if isinstance(config, kind)]


def _classes(specs: Specs) -> int | None:
    found = [specs[name].shape[0] for name in ("head.weight", "head.fc.weight") if name in specs]
    return found[0] if found else None


def _count(specs: Specs, pattern: str) -> int:
    return len({match[1] for name in specs if (match := re.fullmatch(pattern, name)) is not None})


def _shape(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that tells a size."""
    if name not in specs or len(specs[name].shape) != num_axes or 0 in specs[name].shape:
        found = f"is {list(specs[name].shape)}" if name in specs else "is missing"
        raise WeightsError(f"tensor '{name}' {found}", "these weights are incomplete or were changed")
    return specs[name].shape
