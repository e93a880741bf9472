"""Semi-global aggregation of matching scores along image rows and columns."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_MAX_TOGETHER = 1 << 24
"""Numbers that are aggregated at once: 64 MB. The scores of more pixels are no faster."""


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
        lines = score.movedim(dim, 0).movedim(-1, 1)
        both = torch.stack([lines, lines.flip(0)], dim=2)
        _replace_by_messages(both, penalty, max_penalty)
        messages = both[:, :, 0] + both[:, :, 1].flip(0)
        total += messages.movedim(1, -1).movedim(0, dim)
    return total


def aggregate_together(
    scores: Sequence[Float[Tensor, "_ _ K"]], penalty: float, max_penalty: float
) -> list[Float[Tensor, "_ _ K"]]:
    """Aggregate scores of images whose sizes may differ, as `aggregate_scores` does one by one.

    The time of small images is that of starting kernels, so that many take little longer than one.
    """
    size = [max(score.shape[axis] for score in scores) for axis in (0, 1)] if scores else []
    found: list[Tensor] = []
    while len(found) < len(scores):
        at_once = max(1, _MAX_TOGETHER // (size[0] * size[1] * scores[0].shape[-1]))
        part = scores[len(found) : len(found) + at_once]
        # Scores of 0 beyond the borders send no messages.
        margins = [(0, 0, 0, size[1] - score.shape[1], 0, size[0] - score.shape[0]) for score in part]
        padded = torch.stack([functional.pad(*pair) for pair in zip(part, margins, strict=True)])
        aggregated = aggregate_scores(padded, penalty, max_penalty)
        found += [one[: own.shape[0], : own.shape[1]] for one, own in zip(aggregated, part, strict=True)]
    return found


def _replace_by_messages(lines: Float[Tensor, "lines K *paths pixels"], penalty: float, max_penalty: float) -> None:
    """Replace the scores of every line by the message that it gets from the previous one; zero for the first.

    Labels are before pixels, so that operations on neighbouring labels run over consecutive memory.
    """
    message = torch.zeros_like(lines[0])
    for line in lines:
        path = line + message
        line.copy_(message)
        message = (_max_convolution(path, penalty, max_penalty) - path.amax(dim=0)).clamp_(min=-max_penalty)


def _max_convolution(
    score: Float[Tensor, "K *paths pixels"], penalty: float, max_penalty: float
) -> Float[Tensor, "K *paths pixels"]:
    """Return, for every label, the maximum over labels of the score minus the linear penalty.

    Doubling offsets 1, 2, 4, ... reach every offset whose penalty is below the maximum.
    """
    best, offset = score, 1
    while offset < len(score) and offset * penalty < max_penalty:
        lower = best - offset * penalty
        wider = best.clone()
        torch.maximum(best[offset:], lower[:-offset], out=wider[offset:])
        torch.maximum(wider[:-offset], lower[offset:], out=wider[:-offset])
        best, offset = wider, 2 * offset
    return best
