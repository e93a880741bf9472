"""What sparse attention over all instants and views is, as a frozen record."""

from dataclasses import dataclass
from enum import StrEnum

from page4d.errors import UsageError


class SparseStrategy(StrEnum):
    """Which tokens a token exchanges with."""

    LANDMARK = "landmark"
    """Special tokens and some patches of every image, spread over its area."""

    DILATED = "dilated"
    """All tokens of the images that are certain steps of time and view away."""

    MEMORY = "memory"
    """A few learned tokens that first look at everything; they go on to the next chunk of instants."""


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """A block across all images after some layers (counted from 0), by one strategy.

    `landmarks` bounds the patches an image, `dilations` are the steps of time and of view, `memory_tokens` counts
    the learned tokens. `keypoint_weight` says how much keypoints attract landmarks, against what stands still.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  pydantic's marker, not a field

    layers: tuple[int, ...]
    strategy: SparseStrategy = SparseStrategy.LANDMARK
    landmarks: int = 64
    dilations: tuple[int, ...] = (1, 2, 4)
    memory_tokens: int = 32
    keypoint_weight: float = 1.0
    lambda_limit: float = 4.0
    norm_eps: float | None = None
    """Of the blocks' norms; that of the layer they follow unless given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", SparseStrategy(self.strategy))
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise UsageError(f"sparse attention: layers {self.layers}", "name different layers in rising order")
        if min(self.landmarks, self.memory_tokens, *self.dilations, 1) < 1 or not self.dilations:
            raise UsageError(
                f"sparse attention: landmarks {self.landmarks}, memory_tokens {self.memory_tokens}, "
                f"dilations {self.dilations}",
                "use at least 1 each",
            )
        if self.lambda_limit <= 0:
            raise UsageError(f"sparse attention: lambda_limit {self.lambda_limit}", "use a positive limit")
