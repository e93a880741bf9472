"""Joint weighted-median filter: depth edges aligned with color edges."""

from functools import cache

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

_WINDOW = 5
"""Side of the window in px."""

_ITERATIONS = 2
_SPATIAL_SIGMA_PX = 3.0
_COLOR_SIGMA = 0.1
"""Standard deviation of the color weight, for colors in [0, 1]."""

_INDEX_BITS = (_WINDOW**2 - 1).bit_length()
"""Low bits of the mantissa that hold the place in the window while values are sorted."""


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
    for value, certainty, image in zip(values.float(), confidence, images, strict=True):  # windows take much memory
        difference = value.new_zeros(len(spatial), *value.shape)
        for channel in image:
            difference += (_windows(channel) - channel).square_()
        weight = difference.mul_(-1 / (2 * _COLOR_SIGMA**2)).exp_() * _windows(certainty)
        weight *= spatial[:, None, None]
        for _ in range(_ITERATIONS):
            value = _weighted_median(value, weight)
        filtered.append(value)
    return torch.stack(filtered)


def _weighted_median(values: Float[Tensor, "H W"], weight: Float[Tensor, "K H W"]) -> Float[Tensor, "H W"]:
    """Return the smallest value of every window with at least half of the total weight at or below it.

    Weights outside the image must be 0. All windows are sorted by one network of comparisons of whole images, several
    times faster than one by one.
    """
    bits = (values - values.amin()).view(torch.int32)  # in the order of the numbers, as none is negative
    places = torch.arange(len(weight), dtype=torch.int32, device=values.device)[:, None, None]
    keys = list((_windows(bits >> _INDEX_BITS << _INDEX_BITS) | places).unbind())
    for first, second in _comparisons(len(keys)):
        pair = keys[first], keys[second]
        keys[first], keys[second] = torch.minimum(*pair), torch.maximum(*pair)
    pixels = torch.arange(values.numel(), device=values.device).view_as(values)

    def places_of(key: Int[Tensor, "H W"]) -> Int[Tensor, "H W"]:
        return (key & ((1 << _INDEX_BITS) - 1)).long() * values.numel() + pixels

    median, below, half = keys[0], torch.zeros_like(weight[0]), weight.sum(dim=0) / 2
    for key in keys:
        median = torch.where(below < half, key, median)
        below += weight.flatten()[places_of(key)]
    return _windows(values).flatten()[places_of(median)]


@cache
def _comparisons(count: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons (first, second) that sort numbers in ascending order.

    Source: Batcher (1968), "Sorting Networks and Their Applications": odd-even merge sort; Knuth, The Art of Computer
    Programming 3, section 5.2.2, algorithm M.
    """
    found, highest = [], 1 << (count - 1).bit_length() - 1 if count > 1 else 0
    width = highest
    while width:
        gap, distance, parity = highest, width, 0
        while True:
            found += [(low, low + distance) for low in range(count - distance) if low & width == parity]
            if gap == width:
                break
            distance, gap, parity = gap - width, gap // 2, width
        width //= 2
    return tuple(found)


def _windows(values: Shaped[Tensor, "H W"]) -> Shaped[Tensor, "K H W"]:
    """Return the windows around all pixels, zero outside the image."""
    half = _WINDOW // 2
    wide = functional.pad(values, (half, half, half, half))
    return wide.unfold(0, _WINDOW, 1).unfold(1, _WINDOW, 1).permute(2, 3, 0, 1).flatten(0, 1)
