"""Which encoder a configuration names."""

from typing import Annotated

from pydantic import Field

from page4d.encoders.base import Encoder
from page4d.encoders.dinov2 import DinoV2, DinoV2Config
from page4d.encoders.stem import Stem, StemConfig

EncoderConfig = Annotated[DinoV2Config | StemConfig, Field(discriminator="kind")]
"""Told apart by `kind`."""


def build_encoder(config: EncoderConfig) -> Encoder:
    """Build an encoder with fresh weights, drawn from torch's global generator."""
    return Stem(config) if isinstance(config, StemConfig) else DinoV2(config)
