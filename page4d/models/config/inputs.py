"""What enters the trunk besides patch and special tokens, as frozen records."""

from dataclasses import dataclass
from enum import StrEnum

from page4d.errors import UsageError

_STRICT = {"extra": "forbid"}


class MatchTarget(StrEnum):
    """Another image of the capture in which the patches of an image are looked for."""

    FIRST_VIEW = "first-view"
    """The first view at the same instant."""

    NEXT_VIEW = "next-view"
    """The next view at the same instant, the first one after the last."""

    PREVIOUS_VIEW = "previous-view"
    """The view before at the same instant, the last one before the first."""

    FIRST_TIME = "first-time"
    """The same view at the first instant."""

    NEXT_TIME = "next-time"
    """The same view at the next instant, the first one after the last."""

    @property
    def at_same_instant(self) -> bool:
        """True if what moves is where it was, as the image was taken at the same instant."""
        return self not in (MatchTarget.FIRST_TIME, MatchTarget.NEXT_TIME)


@dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """Explicit matches of patches between images, told to the trunk.

    Descriptors have `dim` numbers; `hidden` is the width of the perceptron through which matches become tokens.
    Patches are looked for among cells, `finer` to a patch's side. Descriptors may read the encoder's fine map, of
    `fine_dim` channels.
    """

    __pydantic_config__ = _STRICT

    dim: int = 64
    hidden: int = 96
    finer: int = 2
    fine_dim: int = 0
    targets: tuple[MatchTarget, ...] = tuple(MatchTarget)

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(MatchTarget(target) for target in self.targets))
        if min(self.dim, self.hidden, self.finer, self.fine_dim + 1) < 1:
            raise UsageError(
                f"matches: dim {self.dim}, hidden {self.hidden}, finer {self.finer}, fine_dim {self.fine_dim}",
                "use positive numbers, fine_dim 0 for no fine map",
            )
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise UsageError(
                f"matches: targets {', '.join(self.targets) or 'none'}", "name at least one target, each once"
            )
