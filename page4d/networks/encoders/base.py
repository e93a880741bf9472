"""Interface of image encoders, their output, and the checks that their configurations share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from page4d.errors import UsageError

DropPathRate = Annotated[float, Field(ge=0, lt=1)]
"""Stochastic depth rate of the last block in training; the rate grows linearly from 0 in the first block."""


@dataclass(frozen=True, kw_only=True)
class PatchTokens:
    """Patch tokens of F images, row by row on a grid of (rows, columns).

    `fine` is a half-resolution feature map for dense heads, if the encoder has one. `class_tokens` are those that
    enter the last block, for the selection of a reference view. `levels` are the normalized outputs of some blocks,
    for dense heads that read the encoder.
    """

    tokens: Float[Tensor, "F P C"]
    grid: tuple[int, int]
    fine: Float[Tensor, "F D H/2 W/2"] | None = None
    class_tokens: Float[Tensor, "F C"] | None = None
    levels: tuple[Float[Tensor, "F P C"], ...] = ()


class Encoder(Protocol):
    """A module that turns images, normalized by mean and standard deviation, into patch tokens."""

    def __call__(self, images: Float[Tensor, "F 3 H W"]) -> PatchTokens:
        """Encode each image independently."""


class Classifier(nn.Module, ABC):
    """An encoder with an optional classification head."""

    head: nn.Module | None

    @abstractmethod
    def forward_features(self, images: Any) -> Float[Tensor, "F C"]:
        """Return one vector per image."""

    def classify(self, images: Any) -> Float[Tensor, "F classes"]:
        """Return the class logits.

        Raises:
            UsageError: if there is no head.
        """
        if self.head is None:
            raise UsageError("this encoder has no classification head", "build it with num_classes")
        return self.head(self.forward_features(images))


def check_multiple(name: str, number: int, divisor_name: str, divisor: int, record: str = "encoder") -> None:
    """Refuse a number of a record that is not a multiple of another one.

    Raises:
        UsageError: naming both.
    """
    if number % divisor:
        raise UsageError(
            f"{record}: {name} {number} is not a multiple of {divisor_name} ({divisor})", "choose a multiple"
        )


def check_stages(**fields: tuple[int, ...]) -> None:
    """Refuse tuples without exactly one number per stage.

    Raises:
        UsageError: naming all fields with their lengths.
    """
    lengths = {name: len(numbers) for name, numbers in fields.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise UsageError(f"encoder: {found}", "give one number per stage in each of them")


def check_level(level: int | None, num_stages: int) -> None:
    """Refuse a level that does not exist.

    Raises:
        UsageError: naming it.
    """
    if level is not None and level >= num_stages:
        raise UsageError(f"encoder: level {level} of {num_stages} stages", f"use 0 to {num_stages - 1}, or null")
