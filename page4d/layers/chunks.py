"""Chunked evaluation that bounds peak memory."""

from collections.abc import Callable

import torch
from torch import Tensor


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
