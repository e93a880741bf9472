"""What the trunk of a network expects of an image encoder."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PatchTokens:
    """Tokens of the patches of F images, row by row; the grid (rows, columns) is rarely square.

    `fine` is a map of half the image's sides, of an encoder that has one, for dense heads that want sharp edges.
    `pyramid` are all levels of an encoder that has several, the finest first, each with its own width and grid.
    """

    tokens: Float[Tensor, "F P C"]
    grid: tuple[int, int]
    fine: Float[Tensor, "F D H/2 W/2"] | None = None
    pyramid: tuple["PatchTokens", ...] = ()


class Encoder(Protocol):
    """A module that turns images, normalised by mean and deviation, into patch tokens."""

    def __call__(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode every image by itself."""


class Classifier(Encoder, Protocol):
    """An encoder that also says what an image as a whole is, if it was built with a number of classes."""

    def forward_features(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F C"]:
        """Return one vector an image."""

    def classify(self, images: Float[Tensor, "F 3 H W"]) -> Float[Tensor, "F classes"]:
        """Return the logits of the classes.

        Raises:
            UsageError: if it has no head.
        """


def apply_head(head: nn.Module | None, features: Float[Tensor, "F C"]) -> Float[Tensor, "F classes"]:
    """Turn one vector an image into logits.

    Raises:
        UsageError: if there is no head.
    """
    if head is None:
        raise UsageError("this encoder has no classes", "build it with num_classes")
    logits: Tensor = head(features)
    return logits
