"""Memory bounds of a forward pass; they do not change its result."""

from pydantic import PositiveInt

from page4d.io.config import config_record


@config_record("limits")
class ForwardLimits:
    """Maximum numbers processed at once; None is unlimited.

    `max_images` applies to encoder and dense heads, `max_tokens` to the blocks of the trunk (tokens that attend to
    each other are not split), `max_queries` to the queries of attention and the tokens of feed-forward networks.
    """

    max_images: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_queries: PositiveInt | None = None


NO_LIMITS = ForwardLimits()
"""No bounds."""
