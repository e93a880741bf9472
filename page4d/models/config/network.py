"""What a network is, as frozen records that live as JSON inside its weights file, and the table of presets."""

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from page4d.encoders.build import EncoderConfig
from page4d.encoders.dinov2 import DinoV2Config
from page4d.encoders.presets import ENCODER_PRESETS, ClassifierConfig, without_head
from page4d.encoders.stem import StemConfig
from page4d.encoders.vit import ViTConfig
from page4d.errors import UsageError
from page4d.layers.rope import DEFAULT_BASE
from page4d.models.config.heads import (
    CameraHeadConfig,
    DPTHeadConfig,
    FrameHeadConfig,
    MotionHeadConfig,
)
from page4d.models.config.inputs import MatchConfig, MatchTarget
from page4d.models.config.mask import BiasRows, MaskConfig, MaskFusion, MaskHeadKind, MaskRule, Streams
from page4d.models.config.sparse import SparseConfig, SparseStrategy
from page4d.models.inputs.epipolar import EpipolarConfig
from page4d.models.schedule import FRAME_GLOBAL, TIME_VIEW, Schedule, Step

__all__ = [
    "PRESETS",
    "BiasRows",
    "CameraHeadConfig",
    "DPTHeadConfig",
    "EpipolarConfig",
    "FrameHeadConfig",
    "FullAttention",
    "MaskConfig",
    "MaskFusion",
    "MaskHeadKind",
    "MaskRule",
    "MatchConfig",
    "MatchTarget",
    "MotionHeadConfig",
    "NetworkConfig",
    "SparseConfig",
    "SparseStrategy",
    "Streams",
    "TimeEncoding",
]

_STRICT = {"extra": "forbid"}


class TimeEncoding(StrEnum):
    """How attention across time knows how far apart instants are."""

    NONE = "none"
    ALIBI = "alibi"
    """A distance in time lowers the logits."""

    ROPE = "rope"
    """A time turns queries and keys further."""


class FullAttention(StrEnum):
    """When all images attend to each other as if they were views of one instant."""

    NEVER = "never"
    ONE_VIEW = "one-view"
    """For a single view, which has no other views to look at."""

    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Everything needed to build a network; a head that is None is left out.

    `schedule` names the two steps of each of `depth` layers. The trunk has the width of the encoder. The frame head
    predicts cameras, depth and points by itself and stands alone.
    """

    __pydantic_config__ = _STRICT

    encoder: EncoderConfig
    depth: int
    num_heads: int
    schedule: Schedule = TIME_VIEW
    full_attention: FullAttention = FullAttention.NEVER
    time_encoding: TimeEncoding = TimeEncoding.NONE
    mlp_ratio: float = 4.0
    norm_eps: float | tuple[float, ...] = 1e-5
    """Of the blocks' norms; one number for every layer where layers come from different networks."""
    qk_norm_eps: float | None = 1e-5
    layer_scale: float | None = 0.01
    rope_base: float = DEFAULT_BASE
    num_registers: int = 4
    token_slots: int = 2
    camera_token: bool = True
    """Whether a camera token stands before the registers."""
    matches: MatchConfig | None = None
    known_cameras: bool = False
    """Whether patches are told what is known of their rays: an input that may be missing."""
    ray_head: bool = False
    """Whether the dense stream's patches say along which rays they look: a target of training for fields of view."""
    mask: MaskConfig | None = None
    sparse: SparseConfig | None = None
    epipolar: EpipolarConfig | None = None
    camera_head: CameraHeadConfig | None = None
    depth_head: DPTHeadConfig | None = None
    point_head: DPTHeadConfig | None = None
    motion_head: MotionHeadConfig | None = None
    frame_head: FrameHeadConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", (Step(self.schedule[0]), Step(self.schedule[1])))
        if self.schedule[0].across_views == self.schedule[1].across_views:
            raise UsageError(
                f"network: schedule {'/'.join(self.schedule)}",
                "pair one of frame, time with one of view, global, cross, in either order",
            )
        object.__setattr__(self, "full_attention", FullAttention(self.full_attention))
        object.__setattr__(self, "time_encoding", TimeEncoding(self.time_encoding))
        if self.epipolar is not None and Step.VIEW not in self.schedule:
            raise UsageError(
                f"network: epipolar prior in the schedule {'/'.join(self.schedule)}", "use a schedule with view"
            )
        if self.time_encoding is not TimeEncoding.NONE and Step.TIME not in self.schedule:
            raise UsageError(
                f"network: time encoding in the schedule {'/'.join(self.schedule)}", "use a schedule with time"
            )
        if self.token_slots not in (1, 2) or self.num_registers < 0 or self.depth < 1:
            raise UsageError(
                f"network: token_slots {self.token_slots}, num_registers {self.num_registers}, depth {self.depth}",
                "use 1 or 2 slots, no negative number of registers and at least one layer",
            )
        if isinstance(self.norm_eps, tuple) and len(self.norm_eps) != self.depth:
            raise UsageError(
                f"network: {len(self.norm_eps)} values of norm_eps for {self.depth} layers", "give one for each layer"
            )
        self._check_heads()
        width = self.encoder.embed_dim
        if width % (4 * self.num_heads):
            raise UsageError(
                f"network: width {width} does not give {self.num_heads} heads a width in multiples of 4",
                "change num_heads",
            )
        if self.camera_head is not None and 2 * width % self.camera_head.num_heads:
            raise UsageError(
                f"network: camera head of width {2 * width} with {self.camera_head.num_heads} heads",
                "change the camera head's num_heads",
            )
        named = [
            layer for part in (self.mask, self.sparse, self.epipolar) if part is not None for layer in part.layers
        ]
        self._check_inputs()
        if any(not 0 <= layer < self.depth for layer in (*self.dense_layers, *named)):
            raise UsageError(f"network: a layer outside 0..{self.depth - 1} is named", "name layers that exist")
        if self.mask is not None and self.mask.rule is MaskRule.PAGE4D and self.schedule[0].across_views:
            raise UsageError(
                f"network: PAGE-4D's mask in the schedule {'/'.join(self.schedule)}",
                "put the step within views first",
            )

        if self.mask is not None and self.sparse is not None and self.sparse.layers[0] < self.mask.layers[0]:
            raise UsageError(
                f"network: sparse attention in layer {self.sparse.layers[0]}, mask from {self.mask.layers[0]}",
                "put it after the first masked layer",
            )

    def _check_heads(self) -> None:
        others = (self.camera_head, self.depth_head, self.point_head)
        if self.frame_head is not None and any(head is not None for head in others):
            raise UsageError("network: the frame head stands beside other heads", "leave one or the others out")
        if self.frame_head is not None and self.mask is not None and self.mask.streams is Streams.DUAL:
            raise UsageError("network: the frame head reads one stream", "set the mask's streams to single")
        if self.motion_head is not None and (self.mask is None or not self.dense_layers):
            raise UsageError("network: a motion head without a mask or a dense head", "add them or leave it out")
        if self.camera_head is not None and not self.camera_token:
            raise UsageError("network: a camera head without a camera token", "set camera_token to true")

    def _check_inputs(self) -> None:
        encoder = self.encoder
        if isinstance(encoder, ClassifierConfig) and encoder.num_classes is not None:
            raise UsageError(f"network: an encoder with {encoder.num_classes} classes", "set num_classes to null")
        if isinstance(encoder, ViTConfig) and encoder.patch[0] != encoder.patch[1]:
            raise UsageError(f"network: patches of {encoder.patch[1]} x {encoder.patch[0]} px", "use square patches")
        if self.ray_head and not self.dense_layers:
            raise UsageError("network: a ray head without a dense head", "set ray_head to false or add a dense head")
        fine = self.encoder.fine_dim if isinstance(self.encoder, StemConfig) else 0
        readers = {
            "a dense head": self.depth_head,
            "another": self.point_head,
            "matching": self.matches,
            "the motion head": self.motion_head,
        }
        for name, reader in readers.items():
            if reader is not None and reader.fine_dim not in (0, fine):
                raise UsageError(
                    f"network: {name} reads a fine map of {reader.fine_dim} channels, the encoder's has {fine}",
                    "set its fine_dim to that of the encoder, or to 0 if it can do without",
                )
        if self.matches is not None and self.matches.fine_dim and self.patch_size % (2 * self.matches.finer):
            raise UsageError(
                f"network: {self.matches.finer} cells a patch's side, of {self.patch_size} px, with a fine map",
                "use as many cells as let each be a multiple of 2 px",
            )

    def norm_eps_of(self, layer: int) -> float:
        """Return the constant of the norms of a layer's blocks."""
        return self.norm_eps[layer] if isinstance(self.norm_eps, tuple) else self.norm_eps

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

    def to_json(self) -> str:
        """Write the record as one line of JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "NetworkConfig":
        """Read what `to_json` wrote; fields that a file of an older version lacks take their defaults.

        Raises:
            UsageError: if the text is no such record, names an unknown field or holds a wrong type.
        """
        try:
            return _ADAPTER.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"network configuration: {place or 'text'}: {first['msg']}",
                "it was made by another version of page4d",
            ) from error


_ADAPTER = TypeAdapter(NetworkConfig)


_DEMO_ENCODER = StemConfig()


def _tiny() -> NetworkConfig:
    dense = DPTHeadConfig(layers=(0, 1, 2, 3), features=16, out_channels=(8, 8, 16, 16), hidden=8)
    return NetworkConfig(
        encoder=DinoV2Config(image_size=70, embed_dim=32, depth=1, num_heads=2),
        depth=4,
        num_heads=2,
        mask=MaskConfig(layers=(1, 2)),
        camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=2),
        depth_head=dense,
        point_head=dense,
    )


def _small() -> NetworkConfig:
    dense = DPTHeadConfig(layers=(1, 2, 4, 5), features=64, out_channels=(48, 96, 192, 192))
    return NetworkConfig(
        encoder=DinoV2Config(image_size=224, embed_dim=192, depth=6, num_heads=3),
        depth=6,
        num_heads=3,
        mask=MaskConfig(layers=(2, 3)),
        camera_head=CameraHeadConfig(trunk_depth=2, num_heads=6),
        depth_head=dense,
        point_head=dense,
    )


def _small_with(encoder: str) -> NetworkConfig:
    """Return the small network on an encoder of published size, whose patches are made, or fused, to be 16 px."""
    chosen = without_head(ENCODER_PRESETS[encoder], level=2)
    camera_head = CameraHeadConfig(trunk_depth=2, num_heads=8)
    return replace(_small(), encoder=chosen, num_heads=chosen.embed_dim // 64, camera_head=camera_head)


def _demo() -> NetworkConfig:
    dense = DPTHeadConfig(
        layers=(0, 1, 2, 3), features=32, out_channels=(32, 48, 64, 96), hidden=32, fine_dim=_DEMO_ENCODER.fine_dim
    )
    return NetworkConfig(
        encoder=_DEMO_ENCODER,
        depth=4,
        num_heads=4,
        layer_scale=None,
        mask=MaskConfig(layers=(2, 3), streams=Streams.SINGLE, teaches_trunk=True),
        matches=MatchConfig(fine_dim=_DEMO_ENCODER.fine_dim),
        known_cameras=True,
        ray_head=True,
        camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=3, mlp_ratio=2.0),
        depth_head=dense,
        motion_head=MotionHeadConfig(fine_dim=_DEMO_ENCODER.fine_dim),
    )


def _large() -> NetworkConfig:
    return NetworkConfig(
        encoder=DinoV2Config(),
        depth=24,
        num_heads=16,
        mask=MaskConfig(),
        camera_head=CameraHeadConfig(),
        depth_head=DPTHeadConfig(),
        point_head=DPTHeadConfig(),
    )


def _pi3() -> NetworkConfig:
    return NetworkConfig(
        encoder=DinoV2Config(),
        depth=18,
        num_heads=16,
        schedule=FRAME_GLOBAL,
        norm_eps=1e-6,
        num_registers=5,
        token_slots=1,
        camera_token=False,
        frame_head=FrameHeadConfig(),
    )


_PAGE4D_MASK = MaskConfig(
    layers=tuple(range(10, 20)),
    head=MaskHeadKind.RELEASE,
    rule=MaskRule.PAGE4D,
    streams=Streams.SINGLE,
    bias_rows=BiasRows.SPECIAL,
)

PRESETS: dict[str, NetworkConfig] = {
    "mv-tiny": _tiny(),
    "mv-small": _small(),
    "mv-demo": _demo(),
    "mv-vit": _small_with("vit-s16"),
    "mv-swin": _small_with("swin-t"),
    "mv-twins": _small_with("twins-svt-s"),
    "mv-navit": _small_with("navit"),
    "mv-large": _large(),
    "vggt": replace(_large(), schedule=FRAME_GLOBAL, mask=None),
    "page4d": replace(_large(), schedule=FRAME_GLOBAL, mask=None),
    "page4d-mask": replace(_large(), schedule=FRAME_GLOBAL, mask=_PAGE4D_MASK),
    "pi3": _pi3(),
}
"""Networks by name: for tests, for a laptop's CPU, on other encoders, as specified, and the public networks.

PAGE-4D has two checkpoints: one that runs without its mask, when it is VGGT with other weights, and one with it.
"""
