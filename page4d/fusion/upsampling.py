"""Edge-aware upsampling of depth: surfaces end where the colors of the larger image change."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_REACH = 2
"""Pixels on each side of a position that are candidates: 4 x 4."""

_SPATIAL_SIGMA = 0.8
"""In pixels of the smaller map."""

_COLOR_SIGMA = 0.12
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
    distance = offset.square().sum(dim=-1) / (2 * _SPATIAL_SIGMA**2) + color / (2 * _COLOR_SIGMA**2)
    weights = torch.exp(-distance).clamp(min=_MIN_WEIGHT) * weight[row, column] * is_inside
    values = maps[:, row, column]
    ordered, order = values[0].sort(dim=-1)
    cumulative = weights.gather(-1, order).cumsum(dim=-1)
    middle = (cumulative < cumulative[..., -1:] / 2).sum(dim=-1, keepdim=True).clamp(max=ordered.shape[-1] - 1)
    weights = weights * ((values[0] - ordered.gather(-1, middle)).abs() <= _SAME_SURFACE)
    total = weights.sum(dim=-1)
    tiny = torch.finfo(total.dtype).tiny
    return (values * weights).sum(dim=-1) / total.clamp(min=tiny), total > tiny
