"""Configurations of the prediction heads."""

from typing import Annotated

from pydantic import Field, PositiveInt

from page4d.errors import UsageError
from page4d.io.config import config_record
from page4d.models.config.inputs import check_increasing


@config_record("camera head")
class CameraHeadConfig:
    """The iterative camera head; its width is twice that of the trunk."""

    trunk_depth: PositiveInt = 4
    num_heads: PositiveInt = 16
    num_iterations: PositiveInt = 4
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-5
    layer_scale: float = 0.01


_Channels = Annotated[int, Field(gt=0, multiple_of=4)]


@config_record("dense head")
class DPTHeadConfig:
    """A DPT head that reads four layers of the trunk, coarsest last.

    With `fine_dim`, the number of channels of the encoder's half-resolution feature map, the head fuses that map and
    works at its resolution: cheaper than full resolution, with sharp depth edges.
    """

    layers: tuple[int, int, int, int] = (4, 11, 17, 23)
    features: Annotated[int, Field(gt=0, multiple_of=8)] = 256
    out_channels: tuple[_Channels, _Channels, _Channels, _Channels] = (256, 512, 1024, 1024)
    hidden: int = 32
    fine_dim: int = 0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_increasing("dense head", self.layers)


@config_record("motion head")
class MotionHeadConfig:
    """A per-pixel motion head at the resolution of the encoder's half-resolution feature map.

    Cells are compared between instants by `compared` feature channels and their colors. `dim` is the width,
    `dilations` are those of the convolutions in order, `fine_dim` is the encoder's.
    """

    dim: PositiveInt = 32
    compared: PositiveInt = 16
    dilations: tuple[PositiveInt, ...] = (1, 2, 4, 8, 1)
    fine_dim: PositiveInt = 32


@config_record("frame head")
class FrameHeadConfig:
    """Three per-image decoders on the last layer of the trunk, as in Pi3.

    `point_dim` is the output width of the point and confidence decoders, `camera_dim` that of the camera decoder.
    """

    dim: PositiveInt = 1024
    depth: PositiveInt = 5
    num_heads: PositiveInt = 16
    point_dim: PositiveInt = 1024
    camera_dim: PositiveInt = 512
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.dim % (4 * self.num_heads):
            raise UsageError(
                f"frame head: width {self.dim} with {self.num_heads} heads",
                "choose a width that is a multiple of 4 per head",
            )
