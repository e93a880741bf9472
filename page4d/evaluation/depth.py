"""Depth metrics as sums over pixels, which add up exactly, and sparsification curves of confidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

DELTA = 1.25
"""Threshold of the depth ratio; its square and cube are the wider thresholds."""

MIN_DEPTH = 1e-5
"""Lower bound of predictions in the logarithmic error."""

STEPS = 100
"""Number of shares of removed pixels: 0, 1 % ... 99 %."""


@dataclass(frozen=True, kw_only=True)
class DepthSums:
    """Sums over the counted pixels of maps; every field has the maps' leading axes.

    Means are NaN without counted pixels. Depths are in the unit of the truth.

    Source: PAGE-4D `eval/eval/video_depth/tools.py` and evaluation.md. Unlike in the public code, negative
    predictions (after a shift) never count as close, although max(p / g, g / p) is below 1.25.
    """

    pixels: Float[Tensor, "*batch"]
    relative: Float[Tensor, "*batch"]
    squared_relative: Float[Tensor, "*batch"]
    squared: Float[Tensor, "*batch"]
    squared_log: Float[Tensor, "*batch"]
    close: Float[Tensor, "*batch 3"]

    def total(self) -> "DepthSums":
        """Sum over all leading axes."""
        axes = tuple(range(self.pixels.ndim))
        return self._each(lambda sums: sums.sum(axes)) if axes else self

    def __getitem__(self, index: object) -> "DepthSums":
        """Index the leading axes as in a tensor."""
        return self._each(lambda sums: sums[index])  # type: ignore[index]

    def _each(self, change: Callable[[Tensor], Tensor]) -> "DepthSums":
        return DepthSums(**{name: change(value) for name, value in vars(self).items()})

    @property
    def abs_rel(self) -> Float[Tensor, "*batch"]:
        """Mean of |p - g| / g."""
        return self.relative / self.pixels

    @property
    def sq_rel(self) -> Float[Tensor, "*batch"]:
        """Mean of (p - g)^2 / g."""
        return self.squared_relative / self.pixels

    @property
    def rmse(self) -> Float[Tensor, "*batch"]:
        """Root of the mean of (p - g)^2."""
        return (self.squared / self.pixels).sqrt()

    @property
    def log_rmse(self) -> Float[Tensor, "*batch"]:
        """Root of the mean of (log p - log g)^2."""
        return (self.squared_log / self.pixels).sqrt()

    @property
    def delta(self) -> Float[Tensor, "*batch 3"]:
        """Fractions of pixels with max(p / g, g / p) below 1.25, 1.25^2 and 1.25^3."""
        return self.close / self.pixels[..., None]


def stack_sums(parts: Sequence[DepthSums]) -> DepthSums:
    """Stack sums along a new first axis."""
    return DepthSums(**{name: torch.stack([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def sum_depth_errors(
    prediction: Float[Tensor, "*batch H W"], truth: Float[Tensor, "*batch H W"], counted: Bool[Tensor, "*batch H W"]
) -> DepthSums:
    """Compare depth maps of equal unit and size at the counted pixels, where the truth must be positive."""
    predicted, true = prediction.double(), torch.where(counted, truth, 1.0).double()
    difference = torch.where(counted, predicted - true, 0.0)
    positive = predicted > 0
    ratio = torch.where(positive, torch.maximum(predicted / true, true / predicted), torch.inf)
    log_ratio = torch.where(counted, predicted.clamp_min(MIN_DEPTH).log() - true.log(), 0.0)
    limits = DELTA ** torch.arange(1, 4, dtype=torch.float64, device=truth.device)
    close = counted[..., None] & (ratio[..., None] < limits)
    return DepthSums(
        pixels=counted.sum((-2, -1)).double(),
        relative=(difference.abs() / true).sum((-2, -1)),
        squared_relative=(difference.square() / true).sum((-2, -1)),
        squared=difference.square().sum((-2, -1)),
        squared_log=log_ratio.square().sum((-2, -1)),
        close=close.sum((-3, -2)).double(),
    )


def counted_pixels(truth: Float[Tensor, "*batch H W"], max_depth: float | None = None) -> Bool[Tensor, "*batch H W"]:
    """Return the pixels with known truth: above 0, and below `max_depth` if given."""
    known = truth > 0
    return known if max_depth is None else known & (truth < max_depth)


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
