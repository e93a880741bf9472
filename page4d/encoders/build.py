"""Which encoder a configuration names."""

import json
from dataclasses import asdict
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from page4d.encoders.dinov2 import DinoV2, DinoV2Config
from page4d.encoders.navit import NaViT, NaViTConfig
from page4d.encoders.stem import Stem, StemConfig
from page4d.encoders.swin import Swin, SwinConfig
from page4d.encoders.twins import Twins, TwinsConfig
from page4d.encoders.vit import ViT, ViTConfig
from page4d.errors import UsageError

EncoderConfig = Annotated[
    DinoV2Config | StemConfig | ViTConfig | SwinConfig | TwinsConfig | NaViTConfig, Field(discriminator="kind")
]
"""Told apart by `kind`."""

_ADAPTER: TypeAdapter[EncoderConfig] = TypeAdapter(EncoderConfig)


def encoder_to_json(config: EncoderConfig) -> str:
    """Write the record as one line of JSON with sorted keys."""
    return json.dumps(asdict(config), sort_keys=True)


def encoder_from_json(text: str) -> EncoderConfig:
    """Read what `encoder_to_json` wrote; fields that are left out take their defaults.

    Raises:
        UsageError: if the text is no such record, names an unknown field or holds a wrong type.
    """
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"encoder configuration: {place or 'text'}: {first['msg']}", "it was made by another version of page4d"
        ) from error


def build_encoder(config: EncoderConfig) -> DinoV2 | Stem | ViT | Swin | Twins | NaViT:
    """Build an encoder with fresh weights, drawn from torch's global generator."""
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
