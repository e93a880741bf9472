"""Dense optical flow between two pictures of a view, checked forward and backward, and the noise of the pictures."""

from typing import NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from page4d.geometry.camera import pixel_grid
from page4d.geometry.warp import sample

MAX_INCONSISTENCY_PX = 1.0
"""Largest distance between a pixel and the end of its flow forward and backward."""

MIN_SIDE = 16
"""Smallest side in px of a picture whose flow can be computed: OpenCV fails below 12 px."""

_MIN_NOISE = 0.5
"""Smallest noise of the difference of two pictures, in levels of 8 bits: that of rounding."""

_CLIP, _CLIPPINGS, _CLIPPED_DEVIATION = 2.5, 8, 0.955
"""Limit in standard deviations, repetitions, and the deviation of a normal variable of unit variance cut there."""

_HALF_NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a normal variable of unit variance."""


class ViewFlow(NamedTuple):
    """Optical flow of a picture in px, whether it is consistent with the flow back, and where the picture changes.

    `changed` is False where the picture differs from the other one by no more than noise around the pixel.
    """

    flow: Float[Tensor, "H W 2"]
    consistent: Bool[Tensor, "H W"]
    changed: Bool[Tensor, "H W"]


def to_gray(image: Float[Tensor, "3 H W"]) -> UInt8[np.ndarray, "H W"]:
    """Convert RGB in [0, 1] to luma of 8 bits. Source: ITU-R BT.601."""
    weights = image.new_tensor([0.299, 0.587, 0.114])
    return (torch.einsum("c,chw->hw", weights, image) * 255).round().to(torch.uint8).numpy()


def optical_flow(
    first: UInt8[np.ndarray, "H W"], second: UInt8[np.ndarray, "H W"]
) -> tuple[Float[np.ndarray, "H W 2"], Float[np.ndarray, "H W 2"]]:
    """Return the flow from the first picture to the second, and back, in px.

    Source: Kroeger et al. (2016), dense inverse search, in OpenCV's implementation down to the full resolution.
    """
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    start = np.zeros((*first.shape, 2), dtype=np.float32)  # not used as a first guess by default
    forward = search.calc(first, second, start.copy())
    return np.asarray(forward, dtype=np.float32), np.asarray(search.calc(second, first, start), dtype=np.float32)


def view_flow(
    first: UInt8[np.ndarray, "H W"],
    second: UInt8[np.ndarray, "H W"],
    forward: Float[np.ndarray, "H W 2"],
    backward: Float[np.ndarray, "H W 2"],
) -> ViewFlow:
    """Check the flow from the first picture to the second with that back."""
    flow, back = torch.from_numpy(forward), torch.from_numpy(backward)
    ends = pixel_grid(*first.shape) + flow
    returned = sample(back.permute(2, 0, 1)[None], ends[None])[0].permute(1, 2, 0)
    height, width = first.shape
    inside = (ends > 0).all(-1) & (ends[..., 0] < width) & (ends[..., 1] < height)
    consistent = inside & ((flow + returned).norm(dim=-1) < MAX_INCONSISTENCY_PX)
    return ViewFlow(flow, consistent, torch.from_numpy(changed_pixels(first, second)))


def difference_noise(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Return the standard deviation of the noise of a difference, in levels, if most of the picture stands still.

    It is that of the differences below `_CLIP` deviations, repeatedly.
    """
    counts = np.bincount(cv2.absdiff(first, second).ravel(), minlength=256).astype(np.float64)
    levels = np.arange(256)
    noise = max(float(np.searchsorted(counts.cumsum(), counts.sum() / 2)) / _HALF_NORMAL_MEDIAN, _MIN_NOISE)
    for _ in range(_CLIPPINGS):
        kept = counts * (levels <= max(_CLIP * noise, 1.0))
        noise = max(float(np.sqrt((kept * levels**2).sum() / kept.sum())) / _CLIPPED_DEVIATION, _MIN_NOISE)
    return noise


PATCH = 7
"""Side in px of the patches whose change is compared with noise."""

MAX_CHANGE = 2.0
"""Root mean square of the difference of a patch that noise explains, in standard deviations of the noise."""


def changed_pixels(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return where the patch around a pixel differs between two pictures by more than noise."""
    limit = MAX_CHANGE * difference_noise(first, second)
    squares = cv2.absdiff(first, second).astype(np.float32) ** 2
    return np.asarray(cv2.blur(squares, (PATCH, PATCH), borderType=cv2.BORDER_REFLECT)) > limit * limit
