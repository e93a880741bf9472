"""Configurations of networks and encoders from the names and shapes of their tensors.

Settings of published networks hold what shapes do not determine, such as numbers of heads.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from page4d.errors import WeightsError
from page4d.networks.config_parts import DPTHeadConfig
from page4d.networks.encoders.build import EncoderConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.block import FeedForwardKind
from page4d.weights.store import TensorSpec

Specs = Mapping[str, TensorSpec]
"""Shapes and types of tensors by name."""


def count(specs: Specs, prefix: str) -> int:
    """Count the distinct numbers that follow a prefix."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
    return len({match[1] for name in specs if (match := pattern.match(name)) is not None})


def shape_of(specs: Specs, name: str, num_axes: int) -> tuple[int, ...]:
    """Return the shape of a tensor that determines a size."""
    if name not in specs:
        raise WeightsError(
            f"the weights lack the tensor '{name}'", "they are incomplete, or their names were changed"
        )
    shape = specs[name].shape
    if len(shape) != num_axes or 0 in shape:
        raise WeightsError(
            f"tensor '{name}' is {list(shape)} where {num_axes} axes are expected", "these weights were changed"
        )
    return shape


def table_side(specs: Specs, name: str) -> int:
    """Return the side in patches of the square that a position table with a class token covers."""
    patches = shape_of(specs, name, 3)[1] - 1
    side = math.isqrt(max(patches, 0))
    if side * side != patches:
        raise WeightsError(f"'{name}' covers {patches} patches, which is not a square", "check the weights")
    return side


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

    def read(self, specs: Specs, prefix: str) -> DinoV2Config:
        """Return the configuration of the encoder whose tensor names begin with `prefix`."""
        sizes = {"depth": self.depth, "num_heads": self.num_heads, "norm_eps": self.norm_eps}
        return read_dinov2(specs, prefix, DinoV2Config(), **sizes)


LARGE_ENCODER = EncoderSettings(num_heads=16, embed_dim=1024, depth=24, norm_eps=1e-6)
"""DINOv2-L with registers."""


def read_dense_head(
    specs: Specs, name: str, layers: tuple[int, ...], published: DPTHeadConfig | None = None
) -> DPTHeadConfig:
    """Return the configuration of the head whose tensor names begin with `name`.

    What shapes do not determine is that of the published head, by default VGGT's.
    """
    first, second, third, fourth = (shape_of(specs, f"{name}.projects.{level}.weight", 4)[0] for level in range(4))
    hidden = f"{name}.scratch.output_conv2.0.weight"  # a head that ends in a pixel shuffle has none
    return replace(
        published or DPTHeadConfig(),
        layers=layers,  # type: ignore[arg-type]
        features=shape_of(specs, f"{name}.scratch.layer1_rn.weight", 4)[0],
        out_channels=(first, second, third, fourth),
        hidden=shape_of(specs, hidden, 4)[0] if hidden in specs else DPTHeadConfig.hidden,
    )


def read_dinov2(specs: Specs, prefix: str, published: EncoderConfig, **settings: Any) -> DinoV2Config:
    """Return the configuration of the encoder whose tensor names begin with `prefix`.

    What neither shapes nor `settings` determine is that of the published encoder.
    """
    assert isinstance(published, DinoV2Config)
    dim, channels, patch, _ = shape_of(specs, f"{prefix}patch_embed.proj.weight", 4)
    swiglu = f"{prefix}blocks.0.mlp.w12.weight" in specs
    return replace(
        published,
        image_size=table_side(specs, f"{prefix}pos_embed") * patch,
        patch_size=patch,
        in_channels=channels,
        embed_dim=dim,
        mlp_ratio=4.0 if swiglu else shape_of(specs, f"{prefix}blocks.0.mlp.fc1.weight", 2)[0] / dim,
        feed_forward=FeedForwardKind.SWIGLU if swiglu else FeedForwardKind.MLP,
        num_registers=shape_of(specs, f"{prefix}register_tokens", 3)[1] if published.num_registers else 0,
        **settings,
    )
