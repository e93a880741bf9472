"""What a network is, as frozen records that live as JSON inside its weights file, and the table of presets."""

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from page4d.encoders.dinov2 import DinoV2Config
from page4d.errors import UsageError
from page4d.layers.rope import DEFAULT_BASE
from page4d.models.schedule import FRAME_GLOBAL, TIME_VIEW, Schedule, Step

_STRICT = {"extra": "forbid"}


class MaskHeadKind(StrEnum):
    """Structure of the dynamic mask head."""

    CONV = "conv"
    """This network's own."""

    CKPT150 = "ckpt150"
    """As in PAGE-4D's `checkpoint_150`, with a learned temperature."""

    RELEASE = "release"
    """As in the public PAGE-4D release, on standardised features; useful with its weights only."""


class Streams(StrEnum):
    """How the mask tells cameras (which suppress what moves) from geometry (which may favour it)."""

    DUAL = "dual"
    """Two states after the first masked layer, one read by the camera head, one by the dense heads."""

    SINGLE = "single"
    """One state whose special tokens see the one bias and whose patches see the other."""


class BiasRows(StrEnum):
    """Which queries see the bias of a stream."""

    ALL = "all"
    SPECIAL = "special"
    """Camera and register tokens only, as in PAGE-4D."""


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """The dynamic mask and what it does to the attention of the layers named."""

    __pydantic_config__ = _STRICT

    layers: tuple[int, ...] = (8, 9, 10, 11, 12)
    head: MaskHeadKind = MaskHeadKind.CONV
    streams: Streams = Streams.DUAL
    own_blocks: bool = False
    """Whether each stream has its own copies of the masked layers' blocks."""
    bias_rows: BiasRows = BiasRows.ALL
    lambda_limit: float = 4.0
    external_floor: float = 0.02
    """External probabilities are clipped to [floor, 1 - floor] before they become log-odds."""

    def __post_init__(self) -> None:
        for name, kind in (("head", MaskHeadKind), ("streams", Streams), ("bias_rows", BiasRows)):
            object.__setattr__(self, name, kind(getattr(self, name)))
        if not self.layers or list(self.layers) != list(range(self.layers[0], self.layers[-1] + 1)):
            raise UsageError(f"mask: layers {self.layers} are not consecutive", "name them in order without gaps")
        if not (self.lambda_limit > 0 and 0 < self.external_floor < 0.5):
            raise UsageError(
                f"mask: lambda_limit {self.lambda_limit}, external_floor {self.external_floor}",
                "use a positive limit and a floor between 0 and 0.5",
            )
        if self.streams is Streams.SINGLE and (self.own_blocks or self.bias_rows is not BiasRows.ALL):
            raise UsageError("mask: own_blocks and bias_rows need two streams", "set streams to dual")


@dataclass(frozen=True, kw_only=True)
class CameraHeadConfig:
    """The iterative camera head; it works at twice the width of the trunk."""

    __pydantic_config__ = _STRICT

    trunk_depth: int = 4
    num_heads: int = 16
    num_iterations: int = 4
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-5
    layer_scale: float = 0.01

    def __post_init__(self) -> None:
        if min(self.trunk_depth, self.num_heads, self.num_iterations) < 1:
            raise UsageError("camera head: depth, heads and iterations must be at least 1", "use positive numbers")


@dataclass(frozen=True, kw_only=True)
class DPTHeadConfig:
    """A dense head that reads four layers of the trunk, coarsest last."""

    __pydantic_config__ = _STRICT

    layers: tuple[int, int, int, int] = (4, 11, 17, 23)
    features: int = 256
    out_channels: tuple[int, int, int, int] = (256, 512, 1024, 1024)
    hidden: int = 32
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if list(self.layers) != sorted(set(self.layers)):
            raise UsageError(
                f"dense head: layers {self.layers} are not in rising order", "name four different layers"
            )
        odd = [width for width in (*self.out_channels, self.features // 2) if width <= 0 or width % 4]
        if odd or self.features % 2:
            raise UsageError(
                f"dense head: out_channels {self.out_channels}, features {self.features}",
                "use multiples of 4, and of 8 for features",
            )


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Everything needed to build a network; a head that is None is left out.

    `schedule` names the two steps of each of `depth` layers. The trunk has the width of the encoder.
    """

    __pydantic_config__ = _STRICT

    encoder: DinoV2Config
    depth: int
    num_heads: int
    schedule: Schedule = TIME_VIEW
    mlp_ratio: float = 4.0
    norm_eps: float = 1e-5
    qk_norm_eps: float | None = 1e-5
    layer_scale: float | None = 0.01
    rope_base: float = DEFAULT_BASE
    num_registers: int = 4
    token_slots: int = 2
    mask: MaskConfig | None = None
    camera_head: CameraHeadConfig | None = None
    depth_head: DPTHeadConfig | None = None
    point_head: DPTHeadConfig | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", (Step(self.schedule[0]), Step(self.schedule[1])))
        if self.schedule[0].across_views == self.schedule[1].across_views:
            raise UsageError(
                f"network: schedule {'/'.join(self.schedule)}",
                "pair one of frame, time with one of view, global, in either order",
            )
        if self.token_slots not in (1, 2) or self.num_registers < 0 or self.depth < 1:
            raise UsageError(
                f"network: token_slots {self.token_slots}, num_registers {self.num_registers}, depth {self.depth}",
                "use 1 or 2 slots, no negative number of registers and at least one layer",
            )
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
        last = max((*self.dense_layers, *(() if self.mask is None else self.mask.layers), 0))
        first = min((*self.dense_layers, *(() if self.mask is None else self.mask.layers), 0))
        if last >= self.depth or first < 0:
            raise UsageError(f"network: a layer outside 0..{self.depth - 1} is named", "name layers that exist")

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels; image sides are multiples of it."""
        return self.encoder.patch_size

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Layers that a dense head reads."""
        heads = [head for head in (self.depth_head, self.point_head) if head is not None]
        return tuple(sorted({layer for head in heads for layer in head.layers}))

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


PRESETS: dict[str, NetworkConfig] = {
    "mv-tiny": _tiny(),
    "mv-small": _small(),
    "mv-large": _large(),
    "vggt": replace(_large(), schedule=FRAME_GLOBAL, mask=None),
}
"""Networks by name: for tests, for a laptop's CPU, as specified, and the public VGGT network."""
