"""Photo-consistency: whether the depth of a view maps its picture onto that of another."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.warp import ncc, sample, viewing_angles, window_means
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
    mean = window_means(own, _WINDOW)
    variance = window_means(own.square(), _WINDOW).sum(dim=0) - mean.square().sum(dim=0)
    counted = (comparison.confirmed | comparison.contradicted) & (variance > _MIN_TEXTURE)
    counted &= viewing_angles(view.depth, view.camera, other.camera) <= MAX_ANGLE_DEG
    found = []
    for factor in (1.0, CONTROL_FACTOR, 1.0 / CONTROL_FACTOR):
        warped = warp_into(view, other, factor)
        inside = warped.visible(other.size, 1e-6)
        image = sample(target[None], warped.pixels[None])[0]
        image_mean = window_means(image, _WINDOW)
        image_variance = window_means(image.square(), _WINDOW).sum(dim=0) - image_mean.square().sum(dim=0)
        covariance = window_means(own * image, _WINDOW).sum(dim=0) - (mean * image_mean).sum(dim=0)
        found.append(ncc(covariance, variance, image_variance, _MIN_VARIANCE) * (inside & counted))
    return PhotoConsistency(counted=counted, correlation=found[0], control=found[1].maximum(found[2]))
