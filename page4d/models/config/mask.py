"""Configuration of the dynamic mask and of its bias on the attention."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, PositiveFloat

from page4d.errors import UsageError
from page4d.io.config import config_record


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

    layers: tuple[int, ...] = Field(default=(8, 9, 10, 11, 12), min_length=1)
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
