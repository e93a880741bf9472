"""Base of the settings of published networks: what tensor shapes do not determine, such as numbers of heads."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class NetworkSettings(BaseModel):
    """Settings of a published network or of a part of it; `model` is the name of its family."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class EncoderSettings(NetworkSettings):
    """The DINOv2 encoder; options with a single supported value are checked."""

    num_heads: int
    embed_dim: int
    depth: int
    norm_eps: float
    interpolate_antialias: Literal[True] = True
    interpolate_offset: float = Field(default=0.0, ge=0, le=0)
    qkv_bias: Literal[True] = True
    qk_norm: Literal[False] = False


LARGE_ENCODER = EncoderSettings(num_heads=16, embed_dim=1024, depth=24, norm_eps=1e-6)
"""DINOv2-L with registers."""
