"""Semi-global aggregation of matching scores along image rows and columns."""

import torch
from jaxtyping import Float
from torch import Tensor


def aggregate_scores(
    score: Float[Tensor, "N rows columns K"], penalty: float, max_penalty: float
) -> Float[Tensor, "N rows columns K"]:
    """Add to the K label scores of every pixel the best path scores that end there, from four directions.

    Scores are log-likelihoods. A difference in labels between neighbours costs `penalty` per label, at most
    `max_penalty`.

    Source: Hirschmüller (2008), "Stereo Processing by Semiglobal Matching", eq. 13 and 14, with four paths and a
    truncated linear penalty.
    """
    total = score.clone()
    for dim in (1, 2):
        lines = score.unbind(dim)
        for order in (lines, lines[::-1]):
            messages = torch.stack(_path_messages(order, penalty, max_penalty), dim=dim)
            total += messages if order is lines else messages.flip(dim)
    return total


def _path_messages(
    lines: tuple[Float[Tensor, "N L K"], ...], penalty: float, max_penalty: float
) -> list[Float[Tensor, "N L K"]]:
    """Return the message that every line gets from the previous one; zero for the first."""
    messages = [torch.zeros_like(lines[0])]
    for line in lines[:-1]:
        path = line + messages[-1]
        best = path.amax(dim=-1, keepdim=True)
        messages.append((_max_convolution(path, penalty, max_penalty) - best).clamp(min=-max_penalty))
    return messages


def _max_convolution(score: Float[Tensor, "N L K"], penalty: float, max_penalty: float) -> Float[Tensor, "N L K"]:
    """Return, for every label, the maximum over labels of the score minus the linear penalty.

    Doubling offsets 1, 2, 4, ... reach every offset whose penalty is below the maximum.
    """
    best, offset = score, 1
    while offset < score.shape[-1] and offset * penalty < max_penalty:
        wider = best.clone()
        lower, upper = best[..., :-offset] - offset * penalty, best[..., offset:] - offset * penalty
        torch.maximum(wider[..., offset:], lower, out=wider[..., offset:])
        torch.maximum(wider[..., :-offset], upper, out=wider[..., :-offset])
        best, offset = wider, 2 * offset
    return best
