"""Confidence-weighted depth-map fusion between neighbouring views."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ray_warp, sample
from page4d.refinement.view_prediction import ViewPrediction, neighbour_views

_SIGMA = 0.12
"""Standard deviation of the difference in log depth of one surface between two views; larger differences are other
surfaces."""

_SELF_WEIGHT = 1.5
"""Weight of a view's own depth, in units of that of another view."""

_MIN_SLOPE, _MAX_SLOPE = 0.5, 2.0
"""Derivative of the log depth in the other view by that in the own one: 1 for parallel views at equal distance."""

_MIN_DEPTH = 1e-3
"""In units of the pixel's own depth: points closer to the other camera plane, or behind it, are not visible."""


@torch.no_grad()
def fuse_depth(
    views: Sequence[ViewPrediction], cameras: Cameras, depth: Sequence[Float[Tensor, "B T _ _"]]
) -> list[Float[Tensor, "B T _ _"]]:
    """Return the logarithms of the factors that make depth maps consistent at every instant.

    `cameras` are [B, T, V], in the unit of depth. Every pixel is warped to neighbouring views; its log depth moves to
    the mean of those of nearby surfaces, weighted by confidence and by a Gaussian of the difference.

    Source: Merrell et al. (2007), "Real-Time Visibility-Based Fusion of Depth Maps", confidence-weighted means of
    supporting depths; here all views are fused simultaneously, and surfaces that one view alone sees are kept.
    """
    corrections = [torch.empty_like(one) for one in depth]
    for time in range(depth[0].shape[1]):  # one by one: all instants together would take as much memory again
        initial = [one[:, time].log() for one in depth]
        confidence = [view.confidence[:, time].to(own) for view, own in zip(views, initial, strict=True)]
        fused = [
            _fuse_view(initial, confidence, cameras[:, time], place, neighbour_views(views, place))
            for place in range(len(views))
        ]
        for correction, after, before in zip(corrections, fused, initial, strict=True):
            correction[:, time] = after - before
    return corrections


def _fuse_view(
    log_depth: Sequence[Float[Tensor, "B _ _"]],
    confidence: Sequence[Float[Tensor, "B _ _"]],
    cameras: Cameras,
    place: int,
    neighbours: Sequence[int],
) -> Float[Tensor, "B H W"]:
    """Return the log depth of one view, fused with its neighbours. Cameras are [B, V]."""
    camera, own = cameras[:, place], log_depth[place]
    depth = own.exp()
    rays = camera_rays(camera.intrinsics, (own.shape[-2], own.shape[-1]))
    total, pull = _SELF_WEIGHT * confidence[place], torch.zeros_like(own)
    for other in neighbours:
        target_depth, min_depth = log_depth[other], _MIN_DEPTH * depth
        warp = ray_warp(rays, camera, cameras[:, other]).to(own)
        warped = warp.at(depth, min_depth)
        distance = torch.maximum(warped.depth, min_depth)
        found_depth, found_confidence = sample(
            torch.stack([target_depth, confidence[other]], 1), warped.pixels
        ).unbind(1)
        difference = found_depth - distance.log()
        visible = warped.visible(target_depth.shape[-2:], min_depth)
        weight = visible * found_confidence * torch.exp(-(difference / _SIGMA).square() / 2)
        slope = (warp.directions[..., 2] * depth / distance).clamp(_MIN_SLOPE, _MAX_SLOPE)
        pull += weight * difference / slope
        total = total + weight
    return own + pull / total
