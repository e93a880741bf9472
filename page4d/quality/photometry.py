"""Photo-consistency: whether the depth of a view maps its picture onto that of another."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import world_points
from page4d.geometry.warp import ncc, sample
from page4d.quality.pairs import DepthView, PairComparison, warp_into

_WINDOW = 7
"""Side of the correlated windows in pixels of the maps."""

_MIN_VARIANCE = 1e-4
"""Variance of intensities in [0, 1] that is added to that of windows, so that noise correlates with nothing."""

_MIN_TEXTURE = 4e-4
"""Smallest variance of a window that counts: a standard deviation of 2 % of the range."""

MAX_ANGLE_DEG = 60.0
"""Largest angle between the rays of two views at a point: beyond, surfaces look different from both."""

CONTROL_FACTOR = 1.2
"""Factor of the wrong depths, in both directions, that the photo-consistency is compared with."""


@dataclass(frozen=True, kw_only=True)
class PhotoConsistency:
    """NCC of textured windows of one view with those of another, warped by depth: at the depth, and at wrong ones.

    `control` is the larger one of the NCC at both wrong depths. Both are 0 where `counted` is False.
    """

    counted: Bool[Tensor, "H W"]
    correlation: Float[Tensor, "H W"]
    control: Float[Tensor, "H W"]


def photo_consistency(
    view: DepthView,
    other: DepthView,
    pictures: tuple[Float[Tensor, "3 H W"], Float[Tensor, "3 h w"]],
    comparison: PairComparison,
) -> PhotoConsistency:
    """Correlate the picture of `view` with that of `other`; intensities are in [0, 1].

    Pixels count where the window has texture, the point is visible and not behind the other view's surface, and the
    rays of both views meet there at no more than `MAX_ANGLE_DEG`.

    Source: Szeliski (2010), "Computer Vision: Algorithms and Applications", eq. 8.11 (NCC).
    """
    own, target = pictures
    mean = _window_means(own)
    variance = _window_means(own.square()).sum(dim=0) - mean.square().sum(dim=0)
    counted = (comparison.confirmed | comparison.contradicted) & (variance > _MIN_TEXTURE)
    counted &= _angles(view, other) <= MAX_ANGLE_DEG
    found = []
    for factor in (1.0, CONTROL_FACTOR, 1.0 / CONTROL_FACTOR):
        warped = warp_into(view, other, factor)
        inside = warped.visible(other.size, 1e-6)
        image = sample(target[None], warped.pixels[None])[0]
        image_mean = _window_means(image)
        image_variance = _window_means(image.square()).sum(dim=0) - image_mean.square().sum(dim=0)
        covariance = _window_means(own * image).sum(dim=0) - (mean * image_mean).sum(dim=0)
        found.append(ncc(covariance, variance, image_variance, _MIN_VARIANCE) * (inside & counted))
    return PhotoConsistency(counted=counted, correlation=found[0], control=found[1].maximum(found[2]))


def _angles(view: DepthView, other: DepthView) -> Float[Tensor, "H W"]:
    """Return the angle in degrees between the rays of both views at the point of each pixel."""
    points = world_points(view.depth.to(view.camera.world_to_camera), view.camera)
    rays = [functional.normalize(points - camera.centers, dim=-1) for camera in (view.camera, other.camera)]
    return torch.rad2deg((rays[0] * rays[1]).sum(dim=-1).clamp(-1, 1).acos())


def _window_means(maps: Float[Tensor, "C H W"]) -> Float[Tensor, "C H W"]:
    """Return the means over windows around pixels, cut off at the image border."""
    half = _WINDOW // 2
    return functional.avg_pool2d(maps[None], _WINDOW, stride=1, padding=half, count_include_pad=False)[0]
