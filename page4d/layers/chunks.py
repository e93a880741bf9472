"""Long work in pieces: the same result from less memory."""

from collections.abc import Callable

import torch
from torch import Tensor


def in_chunks(function: Callable[[slice], Tensor], length: int, at_once: int | None, dim: int) -> Tensor:
    """Join along `dim` what a function makes of at most `at_once` of `length` things at a time; None is all of them.

    Pieces are as even as can be: no larger than needed for their number.
    Where nothing is to be learned, pieces are copied into the result as they come and never held together beside it.
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
