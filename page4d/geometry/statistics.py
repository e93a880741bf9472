"""Robust statistics: medians, with weights and without, and the deviation that they imply."""

from jaxtyping import Float
from torch import Tensor

MAD_TO_STD = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations."""


def median(values: Tensor) -> float | None:
    """Return the lower median; None without values."""
    return float(values.median()) if values.numel() else None


def robust_std(residuals: Float[Tensor, " K"]) -> float:
    """Return the standard deviation of normal errors with this median absolute deviation."""
    return MAD_TO_STD * float(residuals.abs().median())


def weighted_median(
    values: Float[Tensor, "N ..."], weight: Float[Tensor, "N ..."], *, above: bool = False
) -> Float[Tensor, "..."]:
    """Return the smallest value over the first axis with at least half of the weight at or below it.

    With `above`, more than half: another value only where the weight splits evenly.
    """
    ordered, order = values.sort(dim=0, stable=True)
    cumulative = weight.gather(0, order).cumsum(dim=0)
    half = cumulative[-1:] / 2
    middle = ((cumulative <= half) if above else (cumulative < half)).sum(dim=0, keepdim=True)
    found: Tensor = ordered.gather(0, middle.clamp(max=len(values) - 1))[0]
    return found


def central_weighted_median(values: Float[Tensor, "N ..."], weight: Float[Tensor, "N ..."]) -> Float[Tensor, "..."]:
    """Return the weighted median: the mean of the two middle values if the weight splits evenly between them."""
    return (weighted_median(values, weight) + weighted_median(values, weight, above=True)) / 2
