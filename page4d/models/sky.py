"""Depth of the sky: maps of networks that predict where the sky is."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SKY_THRESHOLD = 0.3
"""Pixels whose sky is at least this are in the sky."""

_MIN_PIXELS = 10
_FARTHEST = 0.99
_MAX_PIXELS = 2**24
"""Maximum number of values of `torch.quantile`."""


def is_sky(sky: Float[Tensor, "*batch H W"]) -> Bool[Tensor, "*batch H W"]:
    """Return the mask of the sky."""
    return sky >= SKY_THRESHOLD


def farthest_depth(
    depth: Float[Tensor, "*batch H W"], in_sky: Bool[Tensor, "*batch H W"], share: float = _FARTHEST
) -> Float[Tensor, ""] | None:
    """Return the 0.99 quantile of the depth outside the sky.

    None unless more than 10 pixels are in the sky and more than 10 are not.

    Source: the public Depth Anything 3 code (reference facts).
    """
    return quantile(depth[~in_sky], share) if has_both(in_sky) else None


def has_both(in_sky: Bool[Tensor, "*pixels"]) -> bool:
    """Return whether more than 10 pixels are in the sky and more than 10 are not."""
    inside = int(in_sky.sum())
    return min(inside, in_sky.numel() - inside) > _MIN_PIXELS


def quantile(values: Float[Tensor, " N"], share: float) -> Float[Tensor, ""]:
    """Return a quantile; of every n-th value above 16.8 million, where the public code draws 100,000 at random."""
    return torch.quantile(values[:: -(-len(values) // _MAX_PIXELS)].float(), share).to(values)


def fill_sky(depth: Float[Tensor, "B T V H W"], sky: Float[Tensor, "B T V H W"]) -> Float[Tensor, "B T V H W"]:
    """Set the depth of the sky to the 0.99 quantile of the rest, over all images of a scene."""
    filled = []
    for own, in_sky in zip(depth, is_sky(sky), strict=True):
        farthest = farthest_depth(own, in_sky)
        filled.append(own if farthest is None else torch.where(in_sky, farthest, own))
    return torch.stack(filled)
