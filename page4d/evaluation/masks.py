"""Motion mask metrics: intersection over union per frame (J), its mean (JM) and its recall (JR)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

GOOD_IOU = 0.5
"""Intersection over union from which on a frame counts for the recall."""


def mask_overlap(
    predicted: Bool[Tensor, "*batch H W"], true: Bool[Tensor, "*batch H W"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return the numbers of pixels in the intersection and in the union of masks."""
    return (predicted & true).sum((-2, -1)).double(), (predicted | true).sum((-2, -1)).double()


def iou(intersection: Float[Tensor, "*batch"], union: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return intersection over union; 1 where both masks are empty, as in DAVIS."""
    return torch.where(union > 0, intersection / union.clamp_min(1), 1.0)


def recall(ious: Float[Tensor, " frames"]) -> Float[Tensor, ""]:
    """Return the fraction of frames with an intersection over union of at least 0.5 (JR)."""
    return (ious >= GOOD_IOU).double().mean()
