"""What the dynamic mask is and how it acts on the attention, as a frozen record."""

from dataclasses import dataclass
from enum import StrEnum

from page4d.errors import UsageError

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


class MaskFusion(StrEnum):
    """How what the head sees and what an external mask says are weighed."""

    SCALAR = "scalar"
    """By one learned number each."""

    GATED = "gated"
    """By a number between 0 and 1 each, found anew for every image from the mean of its patches."""


class MaskRule(StrEnum):
    """How log-odds that a patch moves become a bias of the attention."""

    LAMBDA = "lambda"
    """Learned weights, clamped, for cameras and geometry; all steps of the layers named. The mask is taken from the
    tokens that enter the first of them."""

    PAGE4D = "page4d"
    """A fixed weight of the public PAGE-4D release: special tokens turn towards what is static, in the steps across
    views of the layers named. The mask is taken one layer earlier, after the step within views."""


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """The dynamic mask and what it does to the attention of the layers named."""

    __pydantic_config__ = _STRICT

    layers: tuple[int, ...] = (8, 9, 10, 11, 12)
    head: MaskHeadKind = MaskHeadKind.CONV
    fusion: MaskFusion = MaskFusion.SCALAR
    rule: MaskRule = MaskRule.LAMBDA
    streams: Streams = Streams.DUAL
    own_blocks: bool = False
    """Whether each stream has its own copies of the masked layers' blocks."""
    bias_rows: BiasRows = BiasRows.ALL
    lambda_limit: float = 4.0
    external_floor: float = 0.02
    """External probabilities are clipped to [floor, 1 - floor] before they become log-odds."""
    teaches_trunk: bool = False
    """Whether a loss on the mask reaches the layers below its head; they learn from what they tell the mask."""

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        if not self.layers or list(self.layers) != list(range(self.layers[0], self.layers[-1] + 1)):
            raise UsageError(f"mask: layers {self.layers} are not consecutive", "name them in order without gaps")
        if not (self.lambda_limit > 0 and 0 < self.external_floor < 0.5):
            raise UsageError(
                f"mask: lambda_limit {self.lambda_limit}, external_floor {self.external_floor}",
                "use a positive limit and a floor between 0 and 0.5",
            )
        if self.rule is MaskRule.PAGE4D:
            if self.streams is not Streams.SINGLE or self.bias_rows is not BiasRows.SPECIAL or self.own_blocks:
                raise UsageError(
                    "mask: PAGE-4D's rule has one stream and biases special tokens only",
                    "set streams to single, bias_rows to special and own_blocks to false",
                )
            if self.layers[0] == 0:
                raise UsageError("mask: PAGE-4D's rule takes the mask one layer earlier", "start at layer 1 or later")
        elif self.streams is Streams.SINGLE and (self.own_blocks or self.bias_rows is not BiasRows.ALL):
            raise UsageError("mask: own_blocks and bias_rows need two streams", "set streams to dual")


_ENUMS: dict[str, type[StrEnum]] = {
    "head": MaskHeadKind,
    "fusion": MaskFusion,
    "rule": MaskRule,
    "streams": Streams,
    "bias_rows": BiasRows,
}
