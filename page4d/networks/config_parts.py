"""Configurations of the parts of a network: dynamic mask, prediction heads, sparse attention, and explicit inputs."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag

from page4d.choices import SparseStrategy
from page4d.errors import UsageError
from page4d.io.json_records import config_record
from page4d.networks.encoders.base import check_multiple
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.block import BlockOptions
from page4d.networks.layers.execution import Count, Depth, Epsilon, Layer, OptionalWidth, Ratio, Side, Width


class MaskHeadKind(StrEnum):
    """Structure of the dynamic mask head."""

    CONV = "conv"
    """Convolutions: the head of the view x time network."""

    CKPT150 = "ckpt150"
    """As in PAGE-4D's `checkpoint_150`, with a learned temperature."""

    RELEASE = "release"
    """As in the public PAGE-4D release, on standardized features; useful with its weights only."""


class Streams(StrEnum):
    """Separation of the pose stream (moving patches suppressed) from the geometry stream (moving patches kept)."""

    DUAL = "dual"
    """Two token states from the first masked layer on: the camera head reads one, the dense heads the other."""

    SINGLE = "single"
    """One token state: special tokens use the pose bias, patches the geometry bias."""


class BiasRows(StrEnum):
    """Queries that a stream's bias applies to."""

    ALL = "all"
    SPECIAL = "special"
    """Camera and register tokens only, as in PAGE-4D."""


class MaskFusion(StrEnum):
    """Weights of the predicted and the external mask in their sum of log-odds."""

    SCALAR = "scalar"
    """One learned number each."""

    GATED = "gated"
    """A gate in (0, 1) each, predicted per image from the mean of its patches."""


class MaskRule(StrEnum):
    """Conversion of motion log-odds into an attention bias."""

    LAMBDA = "lambda"
    """Learned, clamped weights for the pose and the geometry stream, in all steps of the named layers. The mask is
    predicted from the input tokens of the first of them."""

    PAGE4D = "page4d"
    """The fixed weight of the public PAGE-4D release: special tokens favour static patches, in the steps across views
    of the named layers. The mask is predicted one layer earlier, after the step within views."""


@config_record("mask")
class MaskConfig:
    """The dynamic mask and its bias on the attention of the named layers."""

    layers: tuple[Layer, ...] = Field(default=(8, 9, 10, 11, 12), min_length=1)
    head: MaskHeadKind = MaskHeadKind.CONV
    fusion: MaskFusion = MaskFusion.SCALAR
    rule: MaskRule = MaskRule.LAMBDA
    streams: Streams = Streams.DUAL
    own_blocks: bool = False
    """Whether each stream has its own copies of the masked layers' blocks."""
    bias_rows: BiasRows = BiasRows.ALL
    lambda_limit: PositiveFloat = 4.0
    external_floor: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """External probabilities are clipped to [floor, 1 - floor] before they become log-odds."""
    teaches_trunk: bool = False
    """Whether the gradient of the mask loss reaches the layers below the mask head."""

    def __post_init__(self) -> None:
        if list(self.layers) != list(range(self.layers[0], self.layers[-1] + 1)):
            raise UsageError(f"mask: layers {self.layers} are not consecutive", "name them in order without gaps")
        if self.rule is MaskRule.PAGE4D:
            if self.streams is not Streams.SINGLE or self.bias_rows is not BiasRows.SPECIAL or self.own_blocks:
                raise UsageError(
                    "mask: PAGE-4D's rule has one stream and biases special tokens only",
                    "set streams to single, bias_rows to special and own_blocks to false",
                )
            if self.layers[0] == 0:
                raise UsageError(
                    "mask: PAGE-4D's rule predicts the mask one layer earlier", "start at layer 1 or later"
                )
        elif self.streams is Streams.SINGLE and (self.own_blocks or self.bias_rows is not BiasRows.ALL):
            raise UsageError("mask: own_blocks and bias_rows need two streams", "set streams to dual")


class MatchTarget(StrEnum):
    """Another image of the capture in which the patches of an image are searched."""

    FIRST_VIEW = "first-view"
    """The first view at the same instant."""

    NEXT_VIEW = "next-view"
    """The next view at the same instant, cyclically."""

    PREVIOUS_VIEW = "previous-view"
    """The previous view at the same instant, cyclically."""

    FIRST_TIME = "first-time"
    """The same view at the first instant."""

    NEXT_TIME = "next-time"
    """The same view at the next instant, cyclically."""

    @property
    def at_same_instant(self) -> bool:
        """True if both images are of one instant, so that moving objects match too."""
        return self not in (MatchTarget.FIRST_TIME, MatchTarget.NEXT_TIME)


@config_record("matches")
class MatchConfig:
    """Explicit patch matches between images as an input of the trunk.

    `dim` is the descriptor length, `hidden` the width of the MLP that turns matches into tokens. Patches are searched
    among cells, `finer` per patch side. Descriptors read the encoder's fine map of `fine_dim` channels; 0 for none.
    """

    dim: Width = 64
    hidden: Width = 96
    finer: Annotated[int, Field(ge=1, le=16)] = 2
    fine_dim: OptionalWidth = 0
    targets: tuple[MatchTarget, ...] = Field(default=tuple(MatchTarget), min_length=1)

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise UsageError(f"matches: targets {', '.join(self.targets)}", "name each target once")


@config_record("epipolar prior")
class EpipolarConfig:
    """Penalty on the attention logits of patch pairs off their epipolar line, in the named layers.

    Patches up to `band` patch sides from the line are not penalized.
    """

    layers: tuple[Layer, ...] = Field(default=(8, 9, 10, 11, 12), min_length=1)
    penalty: NonNegativeFloat = 2.0
    band: PositiveFloat = 1.5

    def __post_init__(self) -> None:
        check_increasing("epipolar prior", self.layers)


def check_increasing(name: str, layers: tuple[Layer, ...]) -> None:
    """Refuse layers that are not different and in increasing order.

    Raises:
        UsageError: naming them.
    """
    if list(layers) != sorted(set(layers)):
        raise UsageError(f"{name}: layers {layers}", "name different layers in increasing order")


class PatchPositions(StrEnum):
    """Rotary positions of patches in a step of the trunk; special tokens are at (0, 0)."""

    GRID = "grid"
    """(row, column), counted from 1."""

    SHARED = "shared"
    """(1, 1) for every patch: patches are rotated relative to special tokens, not to each other."""

    CENTERED = "centered"
    """2 pi times the coordinates of the patch centers, from -1 to 1 along the longer side of the image."""

    NONE = "none"
    """No rotary positions."""


class ReferenceView(StrEnum):
    """Image that gets the first slot of the special tokens, where there are two."""

    FIRST = "first"
    """The first view at the first instant."""

    SADDLE_BALANCED = "saddle-balanced"
    """The image whose class token is closest to the middle of the range in mean similarity, norm and variance."""


@config_record("camera head")
class CameraHeadConfig(BlockOptions):
    """The iterative camera head; its width is twice that of the trunk."""

    kind: Literal["iterative"] = "iterative"
    trunk_depth: Depth = 4
    num_iterations: Depth = 4
    layer_scale: float = 0.01


@config_record("camera head")
class CameraMLPConfig:
    """A camera head that decodes the camera token of each image separately, as in Depth Anything 3."""

    kind: Literal["mlp"] = "mlp"


@config_record("camera head")
class CameraTransformerConfig(BlockOptions):
    """A camera head of blocks across the special tokens of all images, without iterations, as in VGGT-Omega."""

    kind: Literal["transformer"] = "transformer"
    depth: Depth = 4


def _camera_head_kind(value: Any) -> str:
    """Return the kind of a camera head; files of older versions record iterative ones without it."""
    found = value.get("kind", "iterative") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return str(found)


AnyCameraHeadConfig = Annotated[
    Annotated[CameraHeadConfig, Tag("iterative")]
    | Annotated[CameraMLPConfig, Tag("mlp")]
    | Annotated[CameraTransformerConfig, Tag("transformer")],
    Discriminator(_camera_head_kind),
]
"""The configuration of any camera head; in JSON, `kind` selects the class."""


@config_record("camera encoder")
class CameraEncoderConfig(BlockOptions):
    """Blocks across the known cameras of all images; their output replaces the learned camera token."""

    depth: Depth = 4
    layer_scale: float | None = 0.01


_Channels = Annotated[Width, Field(multiple_of=4)]


class ResidualKind(StrEnum):
    """What a residual unit of a dense head adds its convolutions to."""

    RECTIFIED = "rectified"
    """relu(x), as in VGGT."""

    PLAIN = "plain"
    """x."""


class DenseOutput(StrEnum):
    """How a dense head makes pixels from its fused map."""

    CONVOLUTIONS = "convolutions"
    """Convolutions, the last ones at image size, as in VGGT."""

    PIXEL_SHUFFLE = "pixel-shuffle"
    """One linear layer each for values and confidence, whose channels are pixels, as in VGGT-Omega."""


@config_record("dense head")
class DPTHeadConfig:
    """A DPT head that reads four layers of the trunk, coarsest last.

    With `fine_dim`, the number of channels of the encoder's half-resolution feature map, the head fuses that map and
    works at its resolution: cheaper than full resolution, with sharp depth edges.
    """

    layers: tuple[Layer, Layer, Layer, Layer] = (4, 11, 17, 23)
    features: Annotated[Width, Field(multiple_of=8)] = 256
    out_channels: tuple[_Channels, _Channels, _Channels, _Channels] = (256, 512, 1024, 1024)
    hidden: Width = 32
    fine_dim: OptionalWidth = 0
    norm_eps: Epsilon | None = 1e-5
    """Of the norm of the tokens; None leaves the norm out."""
    residual: ResidualKind = ResidualKind.RECTIFIED
    positions: bool = True
    """Whether encodings of image coordinates are added to the maps."""
    confidence: bool = True
    """Whether a confidence is predicted."""
    sky: bool = False
    """Whether a second output on the fused map predicts the sky: 0 or more, 0.3 or more in the sky."""
    ray_map: bool = False
    """Whether a second chain of fusions predicts the rays of a grid 8 times finer than that of the patches."""
    output: DenseOutput = DenseOutput.CONVOLUTIONS
    """With pixel-shuffle, `hidden` is not used."""

    def __post_init__(self) -> None:
        check_increasing("dense head", self.layers)
        if self.sky and self.fine_dim:
            raise UsageError("dense head: sky with a fine map", "set fine_dim to 0, or sky to false")
        if self.ray_map and self.fine_dim:
            raise UsageError("dense head: a ray map with a fine map", "set fine_dim to 0, or ray_map to false")
        if self.output is DenseOutput.PIXEL_SHUFFLE and (self.fine_dim or self.sky or not self.confidence):
            raise UsageError(
                "dense head: output pixel-shuffle with a fine map, with a sky or without confidence",
                "set fine_dim to 0, sky to false and confidence to true",
            )


@config_record("motion head")
class MotionHeadConfig:
    """A per-pixel motion head at the resolution of the encoder's half-resolution feature map.

    Cells are compared between instants by `compared` feature channels and their colors. `dim` is the width,
    `dilations` are those of the convolutions in order, `fine_dim` is the encoder's.
    """

    dim: Width = 32
    compared: Width = 16
    dilations: Annotated[tuple[Side, ...], Field(max_length=64)] = (1, 2, 4, 8, 1)
    fine_dim: Width = 32


@config_record("sparse attention")
class SparseConfig:
    """A block across all images after some layers (counted from 0), by one strategy.

    `landmarks` bounds the patches per image, `dilations` are offsets in time and view, `memory_tokens` is the number
    of learned tokens. `keypoint_weight` weighs keypoints against static pixels when landmarks are selected.
    """

    layers: tuple[Layer, ...] = Field(min_length=1)
    strategy: SparseStrategy = SparseStrategy.LANDMARK
    landmarks: Count = 64
    dilations: tuple[Count, ...] = Field(default=(1, 2, 4), min_length=1, max_length=64)
    memory_tokens: Count = 32
    keypoint_weight: float = 1.0
    lambda_limit: PositiveFloat = 4.0
    norm_eps: Epsilon | None = None
    """Of the blocks' norms; that of the preceding layer unless given."""

    def __post_init__(self) -> None:
        check_increasing("sparse attention", self.layers)


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
        check_multiple("width", self.dim, "4 * num_heads", 4 * self.num_heads, "metric head")


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
        check_multiple("width", self.dim, "4 * num_heads", 4 * self.num_heads, "frame head")


DEPTH_CHANNELS = 2
"""Normalized depth, and whether it is valid."""


@config_record("known geometry")
class KnownGeometryConfig(BlockOptions):
    """Known intrinsics, depth maps and poses of single images as inputs, as in Pi3X.

    Known poses enter after the step across views of `pose_layers`, by blocks of the width of the trunk.
    """

    depth_encoder: DinoV2Config
    pose_layers: tuple[Layer, ...] = Field(min_length=1)
    norm_eps: Epsilon = 1e-6
    qk_norm_eps: Epsilon | None = 1e-5
    layer_scale: float | None = 0.01

    def __post_init__(self) -> None:
        check_increasing("known geometry", self.pose_layers)
        channels = self.depth_encoder.in_channels
        if channels != DEPTH_CHANNELS:
            raise UsageError(
                f"known geometry: a depth encoder of {channels} channels", f"set its in_channels to {DEPTH_CHANNELS}"
            )
        check_multiple("width", self.depth_encoder.embed_dim, "8 * num_heads", 8 * self.num_heads, "known geometry")
