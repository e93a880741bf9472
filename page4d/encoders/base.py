"""Interface of image encoders, and their output."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PatchTokens:
    """Patch tokens of F images, row by row on a grid of (rows, columns).

    `fine` is a half-resolution feature map for dense heads, if the encoder has one. `pyramid` holds all levels of a
    hierarchical encoder, finest first, each with its own width and grid.
    """

    tokens: Float[Tensor, "F P C"]
    grid: tuple[int, int]
    fine: Float[Tensor, "F D H/2 W/2"] | None = None
    pyramid: tuple["PatchTokens", ...] = ()


class Encoder(Protocol):
    """A module that turns images, normalized by mean and standard deviation, into patch tokens."""

    def __call__(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode each image independently."""


def apply_head(head: nn.Module | None, features: Float[Tensor, "F C"]) -> Float[Tensor, "F classes"]:
    """Return the class logits of feature vectors.

    Raises:
        UsageError: if there is no head.
    """
    if head is None:
        raise UsageError("this encoder has no classification head", "build it with num_classes")
    logits: Tensor = head(features)
    return logits
