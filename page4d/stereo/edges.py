"""Depth edges aligned with color edges: a joint weighted-median filter, and edge-aware upsampling."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional

from page4d.geometry.statistics import weighted_median
from page4d.stereo import kernels

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
    for value, certainty, image in zip(values.float(), confidence, images, strict=True):  # windows take much memory
        difference = value.new_zeros(len(spatial), *value.shape)
        for channel in image:
            difference += (_windows(channel) - channel).square_()
        weight = difference.mul_(-1 / (2 * _COLOR_SIGMA**2)).exp_() * _windows(certainty)
        weight *= spatial[:, None, None]
        for _ in range(_ITERATIONS):
            value = _median_of_windows(value, weight)
        filtered.append(value)
    return torch.stack(filtered)


def _median_of_windows(values: Float[Tensor, "H W"], weight: Float[Tensor, "K H W"]) -> Float[Tensor, "H W"]:
    """Return the weighted median of every window. Weights outside the image must be 0."""
    if kernels.apply_to(values, weight):
        return kernels.median_of_windows(values, weight)
    return weighted_median(_windows(values), weight)


def _windows(values: Shaped[Tensor, "H W"]) -> Shaped[Tensor, "K H W"]:
    """Return the windows around all pixels, zero outside the image."""
    half = _WINDOW // 2
    wide = functional.pad(values, (half, half, half, half))
    return wide.unfold(0, _WINDOW, 1).unfold(1, _WINDOW, 1).permute(2, 3, 0, 1).flatten(0, 1)


_REACH = 2
"""Pixels on each side of a position that are candidates: 4 x 4."""

_SPATIAL_SIGMA = 0.8
"""In pixels of the smaller map."""

_UPSAMPLING_COLOR_SIGMA = 0.12
"""Standard deviation of the difference of colors in [0, 1], over all channels."""

_SAME_SURFACE = 0.08
"""Largest difference of log depth from the median of the candidates that are averaged."""

_MIN_WEIGHT = 1e-8
"""Of a candidate of any color, so that a color that none of them has does not leave a hole."""

_MAX_CANDIDATES = 1 << 21
"""Candidates at once: some 100 MB."""


@torch.no_grad()
def upsample(
    maps: Float[Tensor, "C h w"],
    weight: Float[Tensor, "h w"],
    guide: Float[Tensor, "3 h w"],
    image: Float[Tensor, "3 H W"],
    positions: Float[Tensor, "H W 2"],
) -> tuple[Float[Tensor, "C H W"], Bool[Tensor, "H W"]]:
    """Sample maps at positions in px, for an image of higher resolution; also return where a candidate has weight.

    The first map is log depth. Of the 4x4 pixels around a position, weighted by distance, by the difference of their
    color in `guide` from that of the image, and by `weight`, those on the surface of the weighted median are
    averaged: slanted surfaces stay smooth, and no value lies between two surfaces. Colors are in [0, 1].

    Source: Kopf et al. (2007), "Joint Bilateral Upsampling", with the median of Ma et al. (2013), "Constant Time
    Weighted Median Filtering for Stereo Matching and Beyond", as the choice of the surface.
    """
    if kernels.apply_to(maps, weight, guide, image, positions):
        spread = _SPATIAL_SIGMA, _UPSAMPLING_COLOR_SIGMA, _SAME_SURFACE
        return kernels.upsample(maps, weight, guide, image, positions, spread, _MIN_WEIGHT)
    height, width = positions.shape[:2]
    sampled = maps.new_zeros(len(maps), height, width)
    found = torch.zeros(height, width, dtype=torch.bool, device=maps.device)
    rows = max(1, _MAX_CANDIDATES // ((2 * _REACH) ** 2 * max(width, 1)))
    for start in range(0, height, rows):
        part = slice(start, start + rows)
        sampled[:, part], found[part] = _upsample_rows(maps, weight, guide, image[:, part], positions[part])
    return sampled, found


def _upsample_rows(
    maps: Float[Tensor, "C h w"],
    weight: Float[Tensor, "h w"],
    guide: Float[Tensor, "3 h w"],
    image: Float[Tensor, "3 R W"],
    positions: Float[Tensor, "R W 2"],
) -> tuple[Float[Tensor, "C R W"], Bool[Tensor, "R W"]]:
    height, width = weight.shape
    steps = torch.arange(1 - _REACH, 1 + _REACH, device=maps.device)
    first = (positions - 0.5).floor().long()
    column = first[..., 0, None] + steps.repeat(2 * _REACH)
    row = first[..., 1, None] + steps.repeat_interleave(2 * _REACH)
    is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    column, row = column.clamp(0, width - 1), row.clamp(0, height - 1)
    offset = torch.stack([column, row], dim=-1) + 0.5 - positions[..., None, :]
    color = (guide[:, row, column] - image[..., None]).square().sum(dim=0)
    distance = offset.square().sum(dim=-1) / (2 * _SPATIAL_SIGMA**2) + color / (2 * _UPSAMPLING_COLOR_SIGMA**2)
    weights = torch.exp(-distance).clamp(min=_MIN_WEIGHT) * weight[row, column] * is_inside
    values = maps[:, row, column]
    ordered, order = values[0].sort(dim=-1)
    cumulative = weights.gather(-1, order).cumsum(dim=-1)
    middle = (cumulative < cumulative[..., -1:] / 2).sum(dim=-1, keepdim=True).clamp(max=ordered.shape[-1] - 1)
    weights = weights * ((values[0] - ordered.gather(-1, middle)).abs() <= _SAME_SURFACE)
    total = weights.sum(dim=-1)
    tiny = torch.finfo(total.dtype).tiny
    return (values * weights).sum(dim=-1) / total.clamp(min=tiny), total > tiny
