"""Least-squares intrinsics of predicted points."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import PIXEL_CENTER

_MIN_DEPTH = 1e-6


def fit_intrinsics(
    local_points: Float[Tensor, "*batch H W 3"],
    weights: Float[Tensor, "*batch H W"] | None = None,
    *,
    centered: bool = True,
) -> Float[Tensor, "*batch 3 3"]:
    """Fit focal lengths, and the principal point unless `centered`, by weighted least squares of reprojection errors.

    Points are in the camera frame, one per pixel. A focal length that is not positive, as of an untrained network,
    falls back to the longer image side.
    """
    height, width = local_points.shape[-3:-1]
    depth = local_points[..., 2].clamp(min=_MIN_DEPTH)
    weights = torch.ones_like(depth) if weights is None else weights
    columns = (torch.arange(width, dtype=depth.dtype, device=depth.device) + PIXEL_CENTER).expand(height, width)
    rows = (torch.arange(height, dtype=depth.dtype, device=depth.device) + PIXEL_CENTER)[:, None].expand(
        height, width
    )
    intrinsics = depth.new_zeros(*depth.shape[:-2], 3, 3)
    intrinsics[..., 2, 2] = 1
    for axis, pixels, size in ((0, columns, width), (1, rows, height)):
        plane = local_points[..., axis] / depth
        middle = plane.new_full(plane.shape[:-2], size / 2)
        slope, offset = _fit_line(plane, pixels, weights, middle if centered else None)
        fits = (slope > 0) & slope.isfinite()
        intrinsics[..., axis, axis] = torch.where(fits, slope, max(height, width))
        intrinsics[..., axis, 2] = torch.where(fits, offset, middle)
    return intrinsics


def _fit_line(
    plane: Float[Tensor, "*batch H W"],
    pixels: Float[Tensor, "H W"],
    weights: Float[Tensor, "*batch H W"],
    offset: Float[Tensor, "*batch"] | None,
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Fit pixels = slope * plane + offset, with a given or a free offset."""

    def mean(values: Tensor) -> Tensor:
        return (weights * values).sum((-2, -1)) / weights.sum((-2, -1))

    if offset is not None:
        slope = mean(plane * (pixels - offset[..., None, None])) / mean(plane.square())
        return slope, offset
    center, pixel_center = mean(plane), mean(pixels.expand_as(plane))
    deviation = plane - center[..., None, None]
    slope = mean(deviation * (pixels - pixel_center[..., None, None])) / mean(deviation.square())
    return slope, pixel_center - slope * center
