"""Sparsification curves: how well confidence ranks errors."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 100
"""Number of shares of removed pixels: 0, 1 % ... 99 %."""


@dataclass(frozen=True, kw_only=True)
class Sparsification:
    """Mean error of the remaining pixels when those of lowest confidence, or of largest error, are removed first.

    Source: Ilg et al., "Uncertainty estimates and multi-hypotheses networks for optical flow", ECCV 2018, section 4.
    """

    by_confidence: Float[Tensor, " steps"]
    by_error: Float[Tensor, " steps"]

    @property
    def ause(self) -> float:
        """Area under the sparsification error (AUSE): between the two curves, in units of the error; 0 is best."""
        return float((self.by_confidence - self.by_error).mean())

    @property
    def ordering(self) -> float | None:
        """1 - AUSE / AUSE of a random order: 1 is the ideal order, 0 a random one, negative values are worse.

        None if all errors are equal.
        """
        random = float((self.by_error[0] - self.by_error).mean())
        return 1 - self.ause / random if random > 1e-12 * float(self.by_error[0]) else None


def sparsify(errors: Float[Tensor, " N"], confidence: Float[Tensor, " N"]) -> Sparsification:
    """Compute the curves by confidence and by error; ties of confidence take the expectation over random orders."""
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
