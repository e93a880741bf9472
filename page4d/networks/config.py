"""The network configuration, stored as JSON inside the weights file, and its attention schedule.

A schedule names the axes of [B, T, V, N, C] tokens that attend to each other in each step of a layer.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from jaxtyping import Shaped
from pydantic import Field, PositiveFloat, TypeAdapter
from torch import Tensor

from page4d.choices import FullAttention, TimeEncoding
from page4d.errors import UsageError
from page4d.io.json_records import config_from_json, config_record, config_to_json
from page4d.networks.config_parts import (
    AnyCameraHeadConfig,
    CameraEncoderConfig,
    CameraMLPConfig,
    DenseOutput,
    DPTHeadConfig,
    EpipolarConfig,
    FrameHeadConfig,
    KnownGeometryConfig,
    MaskConfig,
    MaskRule,
    MatchConfig,
    MotionHeadConfig,
    PatchPositions,
    ReferenceView,
    SparseConfig,
    Streams,
)
from page4d.networks.encoders.base import check_multiple
from page4d.networks.encoders.build import ClassifierConfig, EncoderConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.encoders.stem import StemConfig
from page4d.networks.encoders.vit import ViTConfig
from page4d.networks.layers.attention import DEFAULT_BASE
from page4d.networks.layers.block import FeedForwardKind
from page4d.networks.layers.execution import (
    Epsilon,
    Layer,
    OptionalCount,
    OptionalDepth,
    Ratio,
    RotaryBase,
    Side,
    Width,
)


class Step(StrEnum):
    """The set of tokens that attend to each other in one block."""

    FRAME = "frame"
    """One image."""

    VIEW = "view"
    """All views of one instant."""

    TIME = "time"
    """All instants of one view."""

    GLOBAL = "global"
    """All images."""

    @property
    def across_views(self) -> bool:
        """Whether tokens of different views interact; such a step is the second half of a layer's output."""
        return self in (Step.VIEW, Step.GLOBAL)


Schedule = tuple[Step, Step]
"""The two steps of every layer in order: one within views and one across views."""

TIME_VIEW: Schedule = (Step.TIME, Step.VIEW)
FRAME_GLOBAL: Schedule = (Step.FRAME, Step.GLOBAL)


def images_together(step: Step, num_times: int, num_views: int) -> int:
    """Return the number of images in one sequence."""
    return {Step.FRAME: 1, Step.VIEW: num_views, Step.TIME: num_times}.get(step, num_times * num_views)


def merge(values: Shaped[Tensor, "B T V N *rest"], step: Step) -> Shaped[Tensor, "G L *rest"]:
    """Merge the tokens that attend to each other: G sequences of L tokens."""
    if step is Step.TIME:
        values = values.transpose(1, 2)  # [B, V, T, N, ...]
    num_merged = {Step.FRAME: 1, Step.VIEW: 2, Step.TIME: 2, Step.GLOBAL: 3}[step]
    length = values.shape[4 - num_merged : 4].numel()
    return values.reshape(-1, length, *values.shape[4:])


def split(merged: Shaped[Tensor, "G L *rest"], step: Step, shape: Sequence[int]) -> Shaped[Tensor, "B T V N *rest"]:
    """Invert `merge`; `shape` is [B, T, V, N]."""
    batch, times, views, tokens = shape
    if step is Step.TIME:
        return merged.reshape(batch, views, times, tokens, *merged.shape[2:]).transpose(1, 2)
    return merged.reshape(*shape, *merged.shape[2:])


@config_record("network")
class NetworkConfig:
    """Everything needed to build a network; a head that is None is left out.

    `schedule` names the two steps of each of `depth` layers. The trunk has the width of the encoder. With depth 0
    there is no trunk: the depth head reads the levels of the encoder, and every image is predicted alone. The frame
    head predicts cameras, depth and points by itself and excludes the other heads.
    """

    encoder: EncoderConfig
    depth: OptionalDepth
    num_heads: Width
    schedule: Schedule = TIME_VIEW
    full_attention: FullAttention = FullAttention.NEVER
    time_encoding: TimeEncoding = TimeEncoding.NONE
    starts_across: bool = False
    """Whether the first layer has its step across views only."""
    register_layers: tuple[Layer, ...] = ()
    """Layers whose step across views acts on the special tokens alone; patches pass unchanged."""
    mlp_ratio: Ratio = 4.0
    feed_forward: FeedForwardKind = FeedForwardKind.MLP
    norm_eps: Epsilon | tuple[Epsilon, ...] = 1e-5
    """Of the blocks' norms; one number per layer where layers come from different networks."""
    qk_norm_eps: Epsilon | None = 1e-5
    layer_scale: float | None = 0.01
    rope_base: RotaryBase = DEFAULT_BASE
    within_positions: PatchPositions = PatchPositions.GRID
    across_positions: PatchPositions = PatchPositions.GRID
    num_registers: OptionalCount = 4
    token_slots: Annotated[int, Field(ge=1, le=2)] = 2
    reference_view: ReferenceView = ReferenceView.FIRST
    camera_token: bool = True
    """Whether a camera token precedes the registers."""
    readout_norm_eps: Epsilon | None = None
    """Of a norm on the outputs of steps across views that dense heads read; None leaves the norm out."""
    matches: MatchConfig | None = None
    known_cameras: bool = False
    """Whether known cameras may be given as input, as an embedding of the patches' rays."""
    camera_encoder: CameraEncoderConfig | None = None
    """Known cameras may be given as input, in place of the camera token; intrinsics without poses are not used."""
    known_geometry: KnownGeometryConfig | None = None
    """Whether intrinsics, depth maps and poses may be given per image."""
    ray_head: bool = False
    """Whether the patches of the dense stream predict their rays: a training target for fields of view."""
    mask: MaskConfig | None = None
    sparse: SparseConfig | None = None
    epipolar: EpipolarConfig | None = None
    camera_head: AnyCameraHeadConfig | None = None
    depth_head: DPTHeadConfig | None = None
    point_head: DPTHeadConfig | None = None
    motion_head: MotionHeadConfig | None = None
    frame_head: FrameHeadConfig | None = None
    metric_focal: PositiveFloat | None = None
    """Depth is in metres for a camera of this focal length in pixels, and proportional to the focal length."""
    metric_network: "NetworkConfig | None" = None
    """Predicts metric depth and the sky of single images; lengths are scaled to its depth."""
    default_long_side: Side | None = None
    """Long side of images in pixels unless the user gives one; None for the size of the position table."""

    def __post_init__(self) -> None:
        self._check_schedule()
        self._check_widths()
        self._check_layers()
        self._check_heads()
        self._check_inputs()
        if self.depth == 0:
            self._check_without_trunk()
        self._check_known_geometry()
        self._check_metric_network()

    def _check_schedule(self) -> None:
        schedule = "/".join(self.schedule)
        if self.schedule[0].across_views == self.schedule[1].across_views:
            raise UsageError(
                f"network: schedule {schedule}", "pair one of frame, time with one of view, global, in either order"
            )
        if self.epipolar is not None and Step.VIEW not in self.schedule:
            raise UsageError(f"network: epipolar prior in the schedule {schedule}", "use a schedule with view")
        if self.time_encoding is not TimeEncoding.NONE and Step.TIME not in self.schedule:
            raise UsageError(f"network: time encoding in the schedule {schedule}", "use a schedule with time")
        if self.mask is not None and self.mask.rule is MaskRule.PAGE4D and self.schedule[0].across_views:
            raise UsageError(f"network: PAGE-4D's mask in the schedule {schedule}", "put the step within views first")

        if self.starts_across and self.schedule[0].across_views:
            raise UsageError(f"network: starts_across in the schedule {schedule}", "put the step within views first")
        self._check_positions()

    def _check_positions(self) -> None:
        """Refuse parts that compute positions or biases of their own where steps have other positions."""
        plain = self.within_positions is self.across_positions is PatchPositions.GRID and not self.register_layers
        parts = {
            "a mask": self.mask is not None,
            "a time encoding": self.time_encoding is not TimeEncoding.NONE,
            "sparse attention": self.sparse is not None,
            "an epipolar prior": self.epipolar is not None,
        }
        for name, is_there in parts.items():
            if is_there and not (plain and not self.starts_across):
                raise UsageError(
                    f"network: {name} with register layers, without a first step within views, or with positions "
                    "other than grid",
                    "leave one of them out",
                )

    def _check_widths(self) -> None:
        width = self.encoder.embed_dim
        check_multiple("width", width, "4 * num_heads", 4 * self.num_heads, "network")
        if self.camera_encoder is not None:
            check_multiple("width", width, "num_heads", self.camera_encoder.num_heads, "camera encoder")
        if self.camera_head is not None and not isinstance(self.camera_head, CameraMLPConfig):
            check_multiple("width", 2 * width, "num_heads", self.camera_head.num_heads, "camera head")

    def _check_layers(self) -> None:
        if isinstance(self.norm_eps, tuple) and len(self.norm_eps) != self.depth:
            raise UsageError(
                f"network: {len(self.norm_eps)} values of norm_eps for {self.depth} layers", "give one per layer"
            )
        if self.depth == 0:
            return
        parts = [part for part in (self.mask, self.sparse, self.epipolar) if part is not None]
        named = [layer for part in parts for layer in part.layers]
        named += [] if self.known_geometry is None else self.known_geometry.pose_layers
        if any(not 0 <= layer < self.depth for layer in (*self.dense_layers, *self.register_layers, *named)):
            raise UsageError(f"network: a layer outside 0..{self.depth - 1} is named", "name layers that exist")
        if self.register_layers and not (self.camera_token or self.num_registers):
            raise UsageError("network: register layers without special tokens", "set num_registers or camera_token")
        if self.starts_across and 0 in self.dense_layers:
            raise UsageError("network: a head reads layer 0, which has no step within views", "name later layers")
        if self.mask is not None and self.sparse is not None and self.sparse.layers[0] < self.mask.layers[0]:
            raise UsageError(
                f"network: sparse attention in layer {self.sparse.layers[0]}, mask from {self.mask.layers[0]}",
                "put it after the first masked layer",
            )

    def _check_without_trunk(self) -> None:
        """Refuse everything but a depth head on levels of the encoder."""
        head, levels = self.depth_head, getattr(self.encoder, "levels", ())
        if head is None or head.layers != levels:
            raise UsageError(
                f"network: depth 0, with levels {levels} of the encoder",
                "add a depth head whose layers are the levels of the encoder",
            )
        parts = (self.matches, self.mask, self.sparse, self.epipolar, self.camera_encoder, self.camera_head)
        others = (self.point_head, self.motion_head, self.frame_head)
        special = self.camera_token or self.num_registers or self.readout_norm_eps is not None
        if special or self.known_cameras or self.ray_head or any(part is not None for part in (*parts, *others)):
            raise UsageError(
                "network: depth 0 with special tokens, or with parts other than a depth head",
                "leave them out: set camera_token to false and num_registers to 0",
            )

    def _check_heads(self) -> None:
        others = (self.camera_head, self.depth_head, self.point_head)
        if self.frame_head is not None and any(head is not None for head in others):
            raise UsageError("network: the frame head excludes other heads", "leave one or the others out")
        if self.frame_head is not None and self.mask is not None and self.mask.streams is Streams.DUAL:
            raise UsageError("network: the frame head reads one stream", "set the mask's streams to single")
        if self.motion_head is not None and (self.mask is None or not self.dense_layers):
            raise UsageError("network: a motion head without a mask or a dense head", "add them or leave it out")
        if self.camera_head is not None and not self.camera_token:
            raise UsageError("network: a camera head without a camera token", "set camera_token to true")
        if self.ray_head and not self.dense_layers:
            raise UsageError("network: a ray head without a dense head", "set ray_head to false or add a dense head")
        heads = [head for head in (self.depth_head, self.point_head) if head is not None]
        if self.patch_size % 4 and any(head.output is DenseOutput.PIXEL_SHUFFLE for head in heads):
            raise UsageError(
                f"network: a dense head with output pixel-shuffle on patches of {self.patch_size} px",
                "use patches whose side is a multiple of 4 px",
            )

    def _check_inputs(self) -> None:
        encoder = self.encoder
        if self.camera_encoder is not None and not self.camera_token:
            raise UsageError("network: a camera encoder without a camera token", "set camera_token to true")
        if self.reference_view is not ReferenceView.FIRST and not isinstance(encoder, DinoV2Config):
            raise UsageError(
                f"network: reference view {self.reference_view} with encoder {encoder.kind}, without class tokens",
                "set reference_view to first",
            )
        if isinstance(encoder, ClassifierConfig) and encoder.num_classes is not None:
            raise UsageError(f"network: an encoder with {encoder.num_classes} classes", "set num_classes to null")
        if isinstance(encoder, ViTConfig) and encoder.patch[0] != encoder.patch[1]:
            raise UsageError(f"network: patches of {encoder.patch[1]} x {encoder.patch[0]} px", "use square patches")
        fine = encoder.fine_dim if isinstance(encoder, StemConfig) else 0
        readers = {
            "the depth head": self.depth_head,
            "the point head": self.point_head,
            "matching": self.matches,
            "the motion head": self.motion_head,
        }
        for name, reader in readers.items():
            if reader is not None and reader.fine_dim not in (0, fine):
                raise UsageError(
                    f"network: {name} reads a fine map of {reader.fine_dim} channels, the encoder's has {fine}",
                    "set its fine_dim to that of the encoder, or to 0 if it is optional",
                )
        if self.matches is not None and self.matches.fine_dim and self.patch_size % (2 * self.matches.finer):
            raise UsageError(
                f"network: {self.matches.finer} cells per side of a {self.patch_size} px patch, with a fine map",
                "choose matches.finer so that the side of a cell is a multiple of 2 px",
            )

    def _check_known_geometry(self) -> None:
        if isinstance(self.encoder, DinoV2Config) and self.encoder.in_channels != 3:
            raise UsageError(
                f"network: an encoder of images of {self.encoder.in_channels} channels", "set in_channels to 3"
            )
        if self.known_geometry is None:
            return
        own = self.known_geometry.depth_encoder
        if (own.embed_dim, own.patch_size) != (self.encoder.embed_dim, self.patch_size):
            raise UsageError(
                f"network: a depth encoder of width {own.embed_dim} with patches of {own.patch_size} px",
                "choose the width and patch size of the encoder of images",
            )

    def _check_metric_network(self) -> None:
        metric = self.metric_network
        if metric is None:
            return
        if self.camera_head is None or self.depth_head is None or not self.depth_head.confidence:
            raise UsageError(
                "network: a metric network without a camera head and a depth head with confidence",
                "add them, or leave the metric network out",
            )
        if self.point_head is not None or self.motion_head is not None or self.metric_focal is not None:
            raise UsageError(
                "network: a metric network with a point head, a motion head or a metric_focal", "leave them out"
            )
        if metric.depth or metric.metric_focal is None or metric.depth_head is None or not metric.depth_head.sky:
            raise UsageError(
                "network: a metric network with a trunk, or without metric_focal or sky",
                "use depth 0, with a metric_focal and a depth head with sky",
            )
        if metric.patch_size != self.patch_size:
            raise UsageError(
                f"network: patches of {self.patch_size} px with a metric network of {metric.patch_size} px",
                "use patches of one size",
            )

    def norm_eps_of(self, layer: int) -> float:
        """Return the epsilon of the norms of a layer's blocks."""
        return self.norm_eps[layer] if isinstance(self.norm_eps, tuple) else self.norm_eps

    @property
    def head_width(self) -> int:
        """Channels of the tokens that heads read: the outputs of both steps of a layer, or a level of the encoder."""
        return (2 if self.depth else 1) * self.encoder.embed_dim

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels; image sides are multiples of it."""
        return self.encoder.patch_size

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Layers that a dense head reads."""
        heads = [head for head in (self.depth_head, self.point_head) if head is not None]
        last = () if self.frame_head is None else (self.depth - 1,)
        return tuple(sorted({*last, *(layer for head in heads for layer in head.layers)}))

    @property
    def takes_cameras(self) -> bool:
        """Whether calibrated cameras are an input: of embeddings, of the epipolar prior, or of the unit of depth."""
        parts = (self.camera_encoder, self.known_geometry, self.epipolar, self.metric_focal)
        return self.known_cameras or any(part is not None for part in parts)

    @property
    def predicts_cameras(self) -> bool:
        """Whether a head predicts cameras; depth of other networks needs calibrated ones."""
        return self.camera_head is not None or self.frame_head is not None

    @property
    def predicts_metres(self) -> bool:
        """Whether lengths of the predictions are approximately metres."""
        by_head = self.frame_head is not None and self.frame_head.metric is not None
        return by_head or self.metric_focal is not None or self.metric_network is not None

    def to_json(self) -> str:
        """Write the record as one line of JSON with sorted keys."""
        return config_to_json(self)

    @staticmethod
    def from_json(text: str) -> "NetworkConfig":
        """Read what `to_json` wrote; fields that a file of an older version lacks take their defaults.

        Raises:
            UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
        """
        return config_from_json(_ADAPTER, text, "network", "it was made by another version of page4d", strict=True)


_ADAPTER = TypeAdapter(NetworkConfig)
