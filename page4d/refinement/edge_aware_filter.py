"""Depth that steps where colours do: every pixel takes the median of those around it that look as it does."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_WINDOW = 5
"""Side in px of the square around a pixel."""

_TIMES = 2
_DISTANCE = 3.0
_COLOUR = 0.1
"""Standard deviations, in px and in colours from 0 to 1: what is further away, or looks different, counts less."""


@torch.no_grad()
def sharpen(
    values: Float[Tensor, "N H W"], confidence: Float[Tensor, "N H W"], images: Float[Tensor, "N 3 H W"]
) -> Float[Tensor, "N H W"]:
    """Return for every pixel the weighted median of the values around it.

    A neighbour counts the more the nearer it is, the more it looks the same, and the surer it is: networks are unsure
    between two surfaces, where what they say is on neither. Images are from 0 to 1.

    Source: Ma et al. (2013), "Constant Time Weighted Median Filtering for Stereo Matching and Beyond", with the
    weights of Tomasi & Manduchi (1998), "Bilateral Filtering for Gray and Color Images".
    """
    away = torch.arange(_WINDOW, device=values.device) - _WINDOW // 2
    near = torch.exp(-(away[:, None].square() + away.square()) / (2 * _DISTANCE**2)).flatten().to(values)
    sharp = []
    for value, sure, image in zip(values, confidence, images, strict=True):  # one by one: windows are large
        different = value.new_zeros(*value.shape, len(near))
        for channel in image:
            different += (_around(channel) - channel[..., None]).square()
        weight = near * torch.exp(-different / (2 * _COLOUR**2)) * _around(sure)
        for _ in range(_TIMES):
            value = _weighted_median(_around(value), weight)
        sharp.append(value)
    return torch.stack(sharp)


def _weighted_median(values: Float[Tensor, "H W K"], weight: Float[Tensor, "H W K"]) -> Float[Tensor, "H W"]:
    """Return the least value that half of the weight does not exceed."""
    in_order, order = values.sort(dim=-1)
    counted = weight.gather(-1, order).cumsum(dim=-1)
    middle = (counted < counted[..., -1:] / 2).sum(dim=-1, keepdim=True)
    return in_order.gather(-1, middle)[..., 0]


def _around(values: Float[Tensor, "H W"]) -> Float[Tensor, "H W K"]:
    """Return the windows around pixels; 0 outside, where confidence is 0, too."""
    half = _WINDOW // 2
    wide = functional.pad(values, (half, half, half, half))
    return wide.unfold(0, _WINDOW, 1).unfold(1, _WINDOW, 1).flatten(2)
