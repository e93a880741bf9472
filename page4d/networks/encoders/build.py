"""Encoder configurations as JSON, published sizes by name, and encoders built from configurations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from page4d.io.json_records import config_from_json
from page4d.networks.encoders.dino import DinoV2, DinoV2Config, DinoV3, DinoV3Config
from page4d.networks.encoders.navit import NaViT, NaViTConfig
from page4d.networks.encoders.stem import Stem, StemConfig
from page4d.networks.encoders.swin import Swin, SwinConfig
from page4d.networks.encoders.twins import Twins, TwinsConfig
from page4d.networks.encoders.vit import ViT, ViTConfig

EncoderConfig = Annotated[
    DinoV2Config | DinoV3Config | StemConfig | ViTConfig | SwinConfig | TwinsConfig | NaViTConfig,
    Field(discriminator="kind"),
]
"""The configuration of any encoder; in JSON, `kind` selects the class."""

_ADAPTER: TypeAdapter[EncoderConfig] = TypeAdapter(EncoderConfig)

_ENCODERS: dict[type, Callable[[Any], Any]] = {
    DinoV2Config: DinoV2,
    DinoV3Config: DinoV3,
    StemConfig: Stem,
    ViTConfig: ViT,
    SwinConfig: Swin,
    TwinsConfig: Twins,
    NaViTConfig: NaViT,
}

ClassifierConfig = ViTConfig | SwinConfig | TwinsConfig | NaViTConfig
"""An encoder with an optional classification head."""

_CLASSES = 1000

ENCODER_PRESETS: dict[str, ClassifierConfig] = {
    "vit-s16": ViTConfig(embed_dim=384, num_heads=6, num_classes=_CLASSES),
    "vit-b16": ViTConfig(num_classes=_CLASSES),
    "vit-b32": ViTConfig(patch_size=32, num_classes=_CLASSES),
    "vit-l16": ViTConfig(embed_dim=1024, depth=24, num_heads=16, num_classes=_CLASSES),
    "vit-h14": ViTConfig(patch_size=14, embed_dim=1280, depth=32, num_heads=16, num_classes=_CLASSES),
    "swin-t": SwinConfig(num_classes=_CLASSES),
    "swin-s": SwinConfig(depths=(2, 2, 18, 2), num_classes=_CLASSES),
    "swin-b": SwinConfig(dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), num_classes=_CLASSES),
    "twins-svt-s": TwinsConfig(num_classes=_CLASSES),
    "twins-svt-b": TwinsConfig(
        dims=(96, 192, 384, 768), depths=(2, 2, 18, 2), num_heads=(3, 6, 12, 24), num_classes=_CLASSES
    ),
    "twins-svt-l": TwinsConfig(
        dims=(128, 256, 512, 1024), depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), num_classes=_CLASSES
    ),
    "navit": NaViTConfig(num_classes=_CLASSES),
}
"""Sizes of the papers; `navit` has the size of ViT-B/16 and positions for images of up to 512 x 512 px."""


def encoder_from_json(text: str) -> EncoderConfig:
    """Read what `config_to_json` wrote; fields that are left out take their defaults.

    Raises:
        UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
    """
    return config_from_json(_ADAPTER, text, "encoder", "it was made by another version of page4d", strict=True)


def build_encoder(config: EncoderConfig) -> DinoV2 | DinoV3 | Stem | ViT | Swin | Twins | NaViT:
    """Build an encoder with initial weights, drawn from torch's global generator."""
    return _ENCODERS[type(config)](config)


def without_head(config: ClassifierConfig, level: int | None = None) -> ClassifierConfig:
    """Return the encoder without its head, for a network; a hierarchical one may fuse its stages from `level` on."""
    if level is not None and isinstance(config, SwinConfig | TwinsConfig):
        return replace(config, num_classes=None, level=level)
    return replace(config, num_classes=None)
