"""Image encoders: from normalized images to one token per patch."""

from page4d.networks.encoders.base import Encoder, PatchTokens
from page4d.networks.encoders.dino import DinoV2, DinoV2Config

__all__ = ["DinoV2", "DinoV2Config", "Encoder", "PatchTokens"]
