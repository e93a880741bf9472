"""Configuration of sparse attention across all instants and views."""

from enum import StrEnum

from pydantic import Field, PositiveFloat, PositiveInt

from page4d.io.config import config_record
from page4d.models.config.inputs import check_increasing


class SparseStrategy(StrEnum):
    """Keys of sparse global attention."""

    LANDMARK = "landmark"
    """Special tokens and some patches of every image, spread over its area."""

    DILATED = "dilated"
    """All tokens of the images at certain offsets in time and view."""

    MEMORY = "memory"
    """Learned tokens that first attend to everything; they are passed on to the next chunk."""


@config_record("sparse attention")
class SparseConfig:
    """A block across all images after some layers (counted from 0), by one strategy.

    `landmarks` bounds the patches per image, `dilations` are offsets in time and view, `memory_tokens` is the number
    of learned tokens. `keypoint_weight` weighs keypoints against static pixels when landmarks are selected.
    """

    layers: tuple[int, ...] = Field(min_length=1)
    strategy: SparseStrategy = SparseStrategy.LANDMARK
    landmarks: PositiveInt = 64
    dilations: tuple[PositiveInt, ...] = Field(default=(1, 2, 4), min_length=1)
    memory_tokens: PositiveInt = 32
    keypoint_weight: float = 1.0
    lambda_limit: PositiveFloat = 4.0
    norm_eps: float | None = None
    """Of the blocks' norms; that of the preceding layer unless given."""

    def __post_init__(self) -> None:
        check_increasing("sparse attention", self.layers)
