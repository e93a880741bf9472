"""What the trunk of a network expects of an image encoder."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PatchTokens:
    """Tokens of the patches of F images, row by row; the grid (rows, columns) is rarely square.

    `fine` is a map of half the image's sides, of an encoder that has one, for dense heads that want sharp edges.
    """

    tokens: Float[Tensor, "F P C"]
    grid: tuple[int, int]
    fine: Float[Tensor, "F D H/2 W/2"] | None = None


class Encoder(Protocol):
    """A module that turns images, normalised by mean and deviation, into patch tokens."""

    def __call__(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode every image by itself."""
