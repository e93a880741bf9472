"""Whether confidence orders the errors: sparsification."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 100
"""Shares of pixels taken away: 0, 1 % ... 99 %."""


@dataclass(frozen=True, kw_only=True)
class Sparsification:
    """Mean error of what is left when a share of the pixels is taken away, the least confident or the worst first.

    Source: Ilg et al., "Uncertainty estimates and multi-hypotheses networks for optical flow", ECCV 2018, section 4.
    """

    by_confidence: Float[Tensor, " steps"]
    by_error: Float[Tensor, " steps"]

    @property
    def ause(self) -> float:
        """Area between the two curves, in units of the error: 0 is best."""
        return float((self.by_confidence - self.by_error).mean())

    @property
    def ordering(self) -> float | None:
        """1 less the area over that of a random order: 1 orders perfectly, 0 says nothing, below 0 misleads.

        None where all errors are equal, so that there is nothing to order.
        """
        random = float((self.by_error[0] - self.by_error).mean())
        return 1 - self.ause / random if random > 1e-12 * float(self.by_error[0]) else None


def sparsify(errors: Float[Tensor, " N"], confidence: Float[Tensor, " N"]) -> Sparsification:
    """Take pixels away by confidence and by error; pixels of equal confidence go in a random order (its mean)."""
    errors = errors.double()
    levels, level, number = torch.unique(confidence, return_inverse=True, return_counts=True)
    mean = torch.zeros(len(levels), dtype=errors.dtype).index_add_(0, level, errors) / number
    removed = torch.arange(STEPS) * len(errors) // STEPS
    return Sparsification(
        by_confidence=_means_of_rest(mean.repeat_interleave(number), removed),
        by_error=_means_of_rest(errors.sort(descending=True).values, removed),
    )


def _means_of_rest(ordered: Float[Tensor, " N"], removed: Tensor) -> Float[Tensor, " steps"]:
    total = torch.cat([ordered.flip(0).cumsum(0).flip(0), ordered.new_zeros(1)])
    means: Tensor = total[removed] / (len(ordered) - removed)
    return means
