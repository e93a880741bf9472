"""Joint weighted-median filter: depth edges aligned with color edges."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_WINDOW = 5
"""Side of the window in px."""

_ITERATIONS = 2
_SPATIAL_SIGMA_PX = 3.0
_COLOR_SIGMA = 0.1
"""Standard deviation of the color weight, for colors in [0, 1]."""


@torch.no_grad()
def filter_edges(
    values: Float[Tensor, "N H W"], confidence: Float[Tensor, "N H W"], images: Float[Tensor, "N 3 H W"]
) -> Float[Tensor, "N H W"]:
    """Replace every value by a weighted median of its window.

    Weights are spatial and color Gaussians times the confidence, which is low between two surfaces, where predicted
    values lie on neither. Images are in [0, 1].

    Source: Ma et al. (2013), "Constant Time Weighted Median Filtering for Stereo Matching and Beyond", with the
    weights of Tomasi & Manduchi (1998), "Bilateral Filtering for Gray and Color Images".
    """
    offset = torch.arange(_WINDOW, device=values.device) - _WINDOW // 2
    squared = offset[:, None].square() + offset.square()
    spatial = torch.exp(-squared / (2 * _SPATIAL_SIGMA_PX**2)).flatten().to(values)
    filtered = []
    for value, certainty, image in zip(values, confidence, images, strict=True):  # one by one: windows are large
        difference = value.new_zeros(*value.shape, len(spatial))
        for channel in image:
            difference += (_windows(channel) - channel[..., None]).square()
        weight = spatial * torch.exp(-difference / (2 * _COLOR_SIGMA**2)) * _windows(certainty)
        for _ in range(_ITERATIONS):
            value = _weighted_median(_windows(value), weight)
        filtered.append(value)
    return torch.stack(filtered)


def _weighted_median(values: Float[Tensor, "H W K"], weight: Float[Tensor, "H W K"]) -> Float[Tensor, "H W"]:
    """Return the smallest value with at least half of the total weight at or below it."""
    ordered, order = values.sort(dim=-1)
    cumulative = weight.gather(-1, order).cumsum(dim=-1)
    middle = (cumulative < cumulative[..., -1:] / 2).sum(dim=-1, keepdim=True)
    return ordered.gather(-1, middle)[..., 0]


def _windows(values: Float[Tensor, "H W"]) -> Float[Tensor, "H W K"]:
    """Return the windows around all pixels, zero outside the image."""
    half = _WINDOW // 2
    wide = functional.pad(values, (half, half, half, half))
    return wide.unfold(0, _WINDOW, 1).unfold(1, _WINDOW, 1).flatten(2)
