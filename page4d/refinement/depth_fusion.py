"""Depth that views agree on: what others say of the same surfaces counts, too."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays
from page4d.refinement.matched_view import MatchedView, nearby_views

_SIGMA = 0.12
"""Standard deviation of how far apart, in logarithms of depth, two views say that a surface is; what is much further
apart is another one."""

_OWN = 2.0
"""How much more a view's own depth counts than what another one says."""

_TIMES = 3
_LEAST_SLOPE, _LARGEST_SLOPE = 0.5, 2.0
"""Of the logarithm of depth in another view by that in the own one: 1 if both look the same way from as far away."""

_LEAST_DISTANCE = 1e-3
"""Of a pixel's own depth: what comes nearer to another view's plane, or behind it, is not seen there."""


@torch.no_grad()
def agree(
    views: Sequence[MatchedView], cameras: Cameras, depth: Sequence[Float[Tensor, "B T _ _"]]
) -> list[Float[Tensor, "B T _ _"]]:
    """Return the logarithms of the factors that make depths of views nearly the same at every instant.

    `cameras` are [B, T, V], with the unit of depth. Every pixel is shown to nearby views; where they have a surface
    close to it, it moves towards theirs, the further the surer they are of it and the less sure its own view is.

    Source: Merrell et al. (2007), "Real-Time Visibility-Based Fusion of Depth Maps", confidence-weighted means of
    depths that support each other; here all views are fused at once, and none loses what it alone sees.
    """
    corrections = [torch.empty_like(one) for one in depth]
    for time in range(depth[0].shape[1]):  # one by one: all of a long capture would need as much memory again
        start = [one[:, time].log() for one in depth]
        sure = [view.confidence_of_pixels[:, time].to(own) for view, own in zip(views, start, strict=True)]
        agreed = start
        for _ in range(_TIMES):
            agreed = [
                _moved(agreed, sure, cameras[:, time], place, nearby_views(views, place))
                for place in range(len(views))
            ]
        for correction, after, before in zip(corrections, agreed, start, strict=True):
            correction[:, time] = after - before
    return corrections


def _moved(
    log_depth: Sequence[Float[Tensor, "B _ _"]],
    sure: Sequence[Float[Tensor, "B _ _"]],
    cameras: Cameras,
    place: int,
    others: Sequence[int],
) -> Float[Tensor, "B H W"]:
    """Return the logarithm of depth of one view, moved towards what others say. Cameras are [B, V]."""
    own, mine = cameras[:, place], log_depth[place]
    depth = mine.exp()
    points = camera_rays(own.intrinsics, (mine.shape[-2], mine.shape[-1])).to(mine) * depth[..., None]
    total, pull = _OWN * sure[place], torch.zeros_like(mine)
    for other in others:
        there, theirs = cameras[:, other], log_depth[other]
        between = (there.world_to_camera @ own.camera_to_world).to(mine)
        turned = torch.einsum("bij,bhwj->bhwi", between[:, :3, :3], points)
        seen = turned + between[:, None, None, :3, 3]
        distance = torch.maximum(seen[..., 2], _LEAST_DISTANCE * depth)
        shown = torch.einsum("bij,bhwj->bhwi", there.intrinsics.to(mine), seen)[..., :2] / distance[..., None]
        places = shown / mine.new_tensor([theirs.shape[-1], theirs.shape[-2]]) * 2 - 1  # as grid_sample counts
        inside = (seen[..., 2] >= distance) & (places.abs() < 1).all(dim=-1)
        said = torch.stack([theirs, sure[other]], dim=1)
        said = functional.grid_sample(said, places, padding_mode="border", align_corners=False)
        apart = said[:, 0] - distance.log()
        weight = inside * said[:, 1] * torch.exp(-(apart / _SIGMA).square() / 2)
        slope = (turned[..., 2] / distance).clamp(_LEAST_SLOPE, _LARGEST_SLOPE)
        pull += weight * apart / slope
        total = total + weight
    return mine + pull / total
