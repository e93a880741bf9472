"""Bounds on the memory of a forward pass, none of which changes its result."""

from dataclasses import dataclass

from page4d.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ForwardLimits:
    """How much is processed at once; None is everything.

    `max_images` bounds what is encoded or decoded, `max_tokens` the groups of tokens that pass a block of the trunk
    (at least one group: tokens that attend to each other stay together), `max_queries` the queries of an
    attention and the tokens of a feed-forward network.
    """

    max_images: int | None = None
    max_tokens: int | None = None
    max_queries: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_images", "max_tokens", "max_queries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}", "give at least 1")


NO_LIMITS = ForwardLimits()
"""Everything at once."""
