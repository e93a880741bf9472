"""Execution of layers: memory bounds of a forward pass, evaluation in chunks, and regions of full precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.amp import is_autocast_available

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


def in_chunks(function: Callable[[slice], Tensor], length: int, at_once: int | None, dim: int) -> Tensor:
    """Evaluate a function on slices of at most `at_once` of `length` entries and join the results along `dim`.

    None evaluates all entries at once. Slices are as equal as possible. Without gradient, each result is copied into
    the output as it is computed, so that the slices and their concatenation are never held at the same time.
    """
    if at_once is None or at_once >= length:
        return function(slice(0, length))
    size = -(-length // -(-length // at_once))
    chunks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    if torch.is_grad_enabled():
        return torch.cat([function(chunk) for chunk in chunks], dim=dim)
    whole: Tensor | None = None
    for chunk in chunks:
        part = function(chunk)
        if whole is None:
            shape = list(part.shape)
            shape[dim] = length
            whole = part.new_empty(shape)
        whole.narrow(dim, chunk.start, part.shape[dim]).copy_(part)
        del part
    assert whole is not None
    return whole


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast on devices that support it; the meta device does not."""
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()
