"""Which encoder a configuration names."""

from typing import Annotated

from pydantic import Field

from page4d.encoders.base import Encoder
from page4d.encoders.dinov2 import DinoV2, DinoV2Config
from page4d.encoders.navit import NaViT, NaViTConfig
from page4d.encoders.stem import Stem, StemConfig
from page4d.encoders.swin import Swin, SwinConfig
from page4d.encoders.twins import Twins, TwinsConfig
from page4d.encoders.vit import ViT, ViTConfig

EncoderConfig = Annotated[
    DinoV2Config | StemConfig | ViTConfig | SwinConfig | TwinsConfig | NaViTConfig, Field(discriminator="kind")
]
"""Told apart by `kind`."""


def build_encoder(config: EncoderConfig) -> Encoder:
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
