"""Encoder configurations as JSON, and encoders built from them."""

from typing import Annotated

from pydantic import Field, TypeAdapter

from page4d.encoders.dinov2 import DinoV2, DinoV2Config
from page4d.encoders.navit import NaViT, NaViTConfig
from page4d.encoders.stem import Stem, StemConfig
from page4d.encoders.swin import Swin, SwinConfig
from page4d.encoders.twins import Twins, TwinsConfig
from page4d.encoders.vit import ViT, ViTConfig
from page4d.io.config import config_from_json

EncoderConfig = Annotated[
    DinoV2Config | StemConfig | ViTConfig | SwinConfig | TwinsConfig | NaViTConfig, Field(discriminator="kind")
]
"""The configuration of any encoder; in JSON, `kind` selects the class."""

_ADAPTER: TypeAdapter[EncoderConfig] = TypeAdapter(EncoderConfig)


def encoder_from_json(text: str) -> EncoderConfig:
    """Read what `config_to_json` wrote; fields that are left out take their defaults.

    Raises:
        UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
    """
    return config_from_json(_ADAPTER, text, "encoder", "it was made by another version of page4d", strict=True)


def build_encoder(config: EncoderConfig) -> DinoV2 | Stem | ViT | Swin | Twins | NaViT:
    """Build an encoder with initial weights, drawn from torch's global generator."""
    match config:
        case DinoV2Config():
            return DinoV2(config)
        case StemConfig():
            return Stem(config)
        case ViTConfig():
            return ViT(config)
        case SwinConfig():
            return Swin(config)
        case TwinsConfig():
            return Twins(config)
        case NaViTConfig():
            return NaViT(config)
