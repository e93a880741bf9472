"""Bounds on the memory of a forward pass, none of which changes its result."""

from pydantic import PositiveInt

from page4d.io.config import config_record


@config_record("limits")
class ForwardLimits:
    """How much is processed at once; None is everything.

    `max_images` bounds the images that are encoded or decoded, `max_tokens` the groups of tokens that pass a block of
    the trunk (at least one group: tokens that attend to each other stay together), `max_queries` the queries of an
    attention and the tokens of a feed-forward network.
    """

    max_images: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_queries: PositiveInt | None = None


NO_LIMITS = ForwardLimits()
"""Everything at once."""
