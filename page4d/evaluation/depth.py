"""Depth metrics as sums over pixels, so that the sums of frames add up exactly to those of views and captures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

DELTA = 1.25
"""Threshold of the depth ratio; its square and cube are the wider thresholds."""

MIN_DEPTH = 1e-5
"""Lower bound of predictions in the logarithmic error."""


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
