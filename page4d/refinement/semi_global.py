"""Evidence for the values of neighbours in an image, shared along lines through it."""

import torch
from jaxtyping import Float
from torch import Tensor


def aggregate(
    score: Float[Tensor, "N rows columns K"], step: float, largest: float
) -> Float[Tensor, "N rows columns K"]:
    """Add to the score of every place's K labels the best that places along its row and column say of them.

    Scores are log-likelihoods, the larger the better. Neighbours whose labels differ lose `step` for each label that
    is between, and `largest` at most.

    Source: Hirschmüller (2008), "Stereo Processing by Semiglobal Matching", eq. 13 and 14, with four paths and a
    penalty that grows in proportion.
    """
    total = score.clone()
    for dim in (1, 2):
        lines = score.unbind(dim)
        for order in (lines, lines[::-1]):
            told = torch.stack(_told_by_those_before(order, step, largest), dim=dim)
            total += told if order is lines else told.flip(dim)
    return total


def _told_by_those_before(
    lines: tuple[Float[Tensor, "N L K"], ...], step: float, largest: float
) -> list[Float[Tensor, "N L K"]]:
    """Return what every line is told by the one before; the first is told nothing."""
    told = [torch.zeros_like(lines[0])]
    for line in lines[:-1]:
        sum_so_far = line + told[-1]
        highest = sum_so_far.amax(dim=-1, keepdim=True)
        told.append((_spread(sum_so_far, step, largest) - highest).clamp(min=-largest))
    return told


def _spread(score: Float[Tensor, "N L K"], step: float, largest: float) -> Float[Tensor, "N L K"]:
    """Return for every label the best of all, less what they lose, where that is less than `largest`.

    Labels that are up to 1, 3, 7, ... away are reached in turn: a way of any length is one of 1, 2, 4, ... in a row.
    """
    best, away = score, 1
    while away < score.shape[-1] and away * step < largest:
        further = best.clone()
        lower, upper = best[..., :-away] - away * step, best[..., away:] - away * step
        torch.maximum(further[..., away:], lower, out=further[..., away:])
        torch.maximum(further[..., :-away], upper, out=further[..., :-away])
        best, away = further, 2 * away
    return best
