"""Evidence for the values of neighbours in an image, shared along lines through it."""

import torch
from jaxtyping import Float
from torch import Tensor


def aggregate(
    score: Float[Tensor, "N rows columns K"], penalty: Float[Tensor, "K K"]
) -> Float[Tensor, "N rows columns K"]:
    """Add to the score of every place's K labels the best that places along its row and column say of them.

    Scores are log-likelihoods, the larger the better; `penalty` is subtracted where neighbours differ in their label.

    Source: Hirschmüller (2008), "Stereo Processing by Semiglobal Matching", eq. 13 and 14, with four paths.
    """
    total = score.clone()
    for dim in (1, 2):
        lines = score.unbind(dim)
        for order in (lines, lines[::-1]):
            told = torch.stack(_told_by_those_before(order, penalty), dim=dim)
            total += told if order is lines else told.flip(dim)
    return total


def _told_by_those_before(
    lines: tuple[Float[Tensor, "N L K"], ...], penalty: Float[Tensor, "K K"]
) -> list[Float[Tensor, "N L K"]]:
    """Return what every line is told by the one before; the first is told nothing."""
    told = [torch.zeros_like(lines[0])]
    for line in lines[:-1]:
        sum_so_far = line + told[-1]
        best = (sum_so_far[..., None, :] - penalty).amax(dim=-1)
        told.append(best - best.amax(dim=-1, keepdim=True))
    return told
