"""Configurations of explicit inputs of the trunk: matches and the epipolar prior."""

from enum import StrEnum

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from page4d.errors import UsageError
from page4d.io.config import config_record


class MatchTarget(StrEnum):
    """Another image of the capture in which the patches of an image are searched."""

    FIRST_VIEW = "first-view"
    """The first view at the same instant."""

    NEXT_VIEW = "next-view"
    """The next view at the same instant, cyclically."""

    PREVIOUS_VIEW = "previous-view"
    """The previous view at the same instant, cyclically."""

    FIRST_TIME = "first-time"
    """The same view at the first instant."""

    NEXT_TIME = "next-time"
    """The same view at the next instant, cyclically."""

    @property
    def at_same_instant(self) -> bool:
        """True if both images are of one instant, so that moving objects match too."""
        return self not in (MatchTarget.FIRST_TIME, MatchTarget.NEXT_TIME)


@config_record("matches")
class MatchConfig:
    """Explicit patch matches between images as an input of the trunk.

    `dim` is the descriptor length, `hidden` the width of the MLP that turns matches into tokens. Patches are searched
    among cells, `finer` per patch side. Descriptors read the encoder's fine map of `fine_dim` channels; 0 for none.
    """

    dim: PositiveInt = 64
    hidden: PositiveInt = 96
    finer: PositiveInt = 2
    fine_dim: NonNegativeInt = 0
    targets: tuple[MatchTarget, ...] = Field(default=tuple(MatchTarget), min_length=1)

    def __post_init__(self) -> None:
        if len(set(self.targets)) < len(self.targets):
            raise UsageError(f"matches: targets {', '.join(self.targets)}", "name each target once")


@config_record("epipolar prior")
class EpipolarConfig:
    """Penalty on the attention logits of patch pairs off their epipolar line, in the named layers.

    Patches up to `band` patch sides from the line are not penalized.
    """

    layers: tuple[int, ...] = Field(default=(8, 9, 10, 11, 12), min_length=1)
    penalty: NonNegativeFloat = 2.0
    band: PositiveFloat = 1.5

    def __post_init__(self) -> None:
        check_increasing("epipolar prior", self.layers)


def check_increasing(name: str, layers: tuple[int, ...]) -> None:
    """Refuse layers that are not different and in increasing order.

    Raises:
        UsageError: naming them.
    """
    if list(layers) != sorted(set(layers)):
        raise UsageError(f"{name}: layers {layers}", "name different layers in increasing order")
