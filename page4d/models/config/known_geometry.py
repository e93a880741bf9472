"""Configuration of known intrinsics, depth and poses as inputs of a network."""

from pydantic import Field

from page4d.encoders.dinov2 import DinoV2Config
from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.layers.ranges import Epsilon, Layer, Ratio, Width
from page4d.models.config.parts import check_increasing

DEPTH_CHANNELS = 2
"""Normalized depth, and whether it is valid."""


@config_record("known geometry")
class KnownGeometryConfig:
    """Known intrinsics, depth maps and poses of single images as inputs, as in Pi3X.

    Known poses enter after the step across views of `pose_layers`, by blocks of the width of the trunk.
    """

    depth_encoder: DinoV2Config
    pose_layers: tuple[Layer, ...] = Field(min_length=1)
    num_heads: Width = 16
    mlp_ratio: Ratio = 4.0
    norm_eps: Epsilon = 1e-6
    qk_norm_eps: Epsilon | None = 1e-5
    layer_scale: float | None = 0.01

    def __post_init__(self) -> None:
        check_increasing("known geometry", self.pose_layers)
        width, channels = self.depth_encoder.embed_dim, self.depth_encoder.in_channels
        if channels != DEPTH_CHANNELS:
            raise UsageError(
                f"known geometry: a depth encoder of {channels} channels", f"set its in_channels to {DEPTH_CHANNELS}"
            )
        if width % (8 * self.num_heads):
            raise UsageError(
                f"known geometry: width {width} with {self.num_heads} heads",
                "choose num_heads so that the width is a multiple of 8 per head",
            )
