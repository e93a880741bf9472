"""Configuration of the frame head and of its variants."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.layers.ranges import Depth, Epsilon, Ratio, Width

_UpsampledWidth = Annotated[Width, Field(multiple_of=16)]


@config_record("convolutional head")
class ConvHeadConfig:
    """Convolutional maps of points and confidence, as in Pi3X.

    `widths` are the channels at 2, 4 and 8 times the resolution of the patch grid, `hidden` those of the last
    convolution. Logarithms of depth are clipped to `max_log_depth`.
    """

    widths: tuple[_UpsampledWidth, _UpsampledWidth, _UpsampledWidth] = (256, 128, 64)
    hidden: Width = 32
    norm_eps: Epsilon = 1e-5
    max_log_depth: PositiveFloat = 15.0


@config_record("metric head")
class MetricHeadConfig:
    """Blocks of cross-attention from one learned token to the tokens of all images: the metric scale of Pi3X."""

    dim: Width = 512
    depth: Depth = 5
    num_heads: Width = 8
    out_dim: Width = 512
    mlp_ratio: Ratio = 4.0
    norm_eps: Epsilon = 1e-6

    def __post_init__(self) -> None:
        _check_heads("metric head", self.dim, self.num_heads)


@config_record("frame head")
class FrameHeadConfig:
    """Three per-image decoders on the last layer of the trunk, as in Pi3.

    `point_dim` is the output width of the point and confidence decoders, `camera_dim` that of the camera decoder.
    Without `conv`, a linear layer predicts all pixels of a patch. With `metric`, lengths are approximately metres.
    """

    dim: Width = 1024
    depth: Depth = 5
    num_heads: Width = 16
    point_dim: Width = 1024
    camera_dim: Width = 512
    mlp_ratio: Ratio = 4.0
    norm_eps: Epsilon = 1e-6
    conv: ConvHeadConfig | None = None
    metric: MetricHeadConfig | None = None

    def __post_init__(self) -> None:
        _check_heads("frame head", self.dim, self.num_heads)


def _check_heads(name: str, dim: int, num_heads: int) -> None:
    """Refuse heads whose width has no rotary positions."""
    if dim % (4 * num_heads):
        raise UsageError(
            f"{name}: width {dim} with {num_heads} heads", "choose a width that is a multiple of 4 per head"
        )
