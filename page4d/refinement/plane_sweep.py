"""Depth of every pixel looked for along its ray: windows of images that look alike where it would show them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, camera_rays
from page4d.refinement.matched_view import MatchedView, asked_views
from page4d.refinement.semi_global import aggregate

_SIGMA = 0.5
"""Standard deviation of the logarithm of the depths that are given, where a network is least sure of them."""

_CONFIDENCE_POWER = 1.0
"""With which it becomes smaller: the confidence is 1 at least."""

_FURTHEST = 0.4
"""Logarithm of the largest factor that is tried."""

_NUM_TRIED = 33
_WINDOW = 5
"""Side in px of the squares that are compared."""

_LEAST_VARIANCE = 1e-4
"""Of colours from 0 to 1, summed over channels: what varies less is flat, and flat things all look alike."""

_LEAST_CORRELATION = 0.4
_WEIGHT, _WEIGHT_FOUND = 6.0, 3.0
"""Windows that correlate less tell nothing; log-likelihood of what they do more, along rays that are known, and along
those that were found: where these are wrong, other windows look alike."""

_STEP_PENALTY = 3.0
_LARGEST_STEP = 0.3
"""Neighbours that are wrong by different factors are this much less likely, in proportion up to this difference."""

_LEAST_DISTANCE = 1e-4
_AT_ONCE = 1 << 19
"""Pixels of images that are compared together: some 40 MB."""


@torch.no_grad()
def look_closer(
    views: Sequence[MatchedView],
    images: Sequence[Float[Tensor, "B T 3 _ _"]],
    cameras: Cameras,
    depth: Sequence[Float[Tensor, "B T _ _"]],
    cameras_are_known: bool = True,
) -> list[Float[Tensor, "B T _ _"]]:
    """Return the logarithm of the factor by which the depth of every pixel is wrong, if these cameras are right.

    `cameras` are [B, T, V], with the unit of depth; images are from 0 to 1. Each is compared with those of its
    instant that its patches were looked for in. Windows are compared by their colours' correlation, so that
    exposure and contrast may differ, as if surfaces were as slanted as the given depth. Neighbours are preferably
    wrong by the same factor, so that flat things follow those around them.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", and Hirschmüller (2008),
    "Stereo Processing by Semiglobal Matching", with correlation for mutual information.
    """
    tried = torch.linspace(-_FURTHEST, _FURTHEST, _NUM_TRIED, device=depth[0].device)
    weight = _WEIGHT if cameras_are_known else _WEIGHT_FOUND
    step = _STEP_PENALTY * float(tried[1] - tried[0]) / _LARGEST_STEP
    corrections = []
    for place, own in enumerate(depth):
        others, sigma = asked_views(views, place), _SIGMA * views[place].confidence_of_pixels ** -_CONFIDENCE_POWER
        correction = torch.empty_like(own)
        for time in range(own.shape[1]):  # one by one: what is told of a single image may be hundreds of MB
            score = -(tried / sigma[:, time, ..., None].to(tried)).square() / 2
            for other in others:
                pair = cameras[:, time, place], cameras[:, time, other]
                there = _alike(images[place][:, time], images[other][:, time], *pair, own[:, time], tried)
                score.add_(there.sub_(_LEAST_CORRELATION).clamp_(min=0), alpha=weight)
            correction[:, time] = (aggregate(score, step, _STEP_PENALTY).softmax(dim=-1) * tried).sum(dim=-1)
        corrections.append(correction)
    return corrections


def _alike(
    mine: Float[Tensor, "B 3 H W"],
    theirs: Float[Tensor, "B 3 h w"],
    own: Cameras,
    other: Cameras,
    depth: Float[Tensor, "B H W"],
    tried: Float[Tensor, " K"],
) -> Float[Tensor, "B H W K"]:
    """Return how windows correlate for every factor that depth may be wrong by; 0 where that is out of sight."""
    frames, height, width = len(mine), mine.shape[-2], mine.shape[-1]
    # Seen from the other camera, and before the division, a pixel is at base * factor + shift.
    rays = camera_rays(own.intrinsics, (height, width))
    between = other.world_to_camera @ own.camera_to_world
    base = torch.einsum("bij,bhwj->bhwi", other.intrinsics @ between[:, :3, :3], rays).to(depth) * depth[..., None]
    shift = (other.intrinsics @ between[:, :3, 3:])[..., 0].to(depth)
    size = depth.new_tensor([theirs.shape[-1], theirs.shape[-2]])
    mean = _means(mine)
    variance = _means(mine.square().sum(dim=1)) - mean.square().sum(dim=1)
    alike = depth.new_zeros(frames, height, width, len(tried))
    at_once = max(1, _AT_ONCE // (frames * height * width))
    for start in range(0, len(tried), at_once):
        part = tried[start : start + at_once]
        seen = base[:, None] * part.exp()[:, None, None, None] + shift[:, None, None, None]  # B K H W 3
        distance = seen[..., 2]
        places = seen[..., :2] / distance.clamp(min=_LEAST_DISTANCE)[..., None] / size * 2 - 1
        inside = (distance > _LEAST_DISTANCE) & (places.abs() < 1).all(dim=-1)
        there = functional.grid_sample(theirs, places.flatten(1, 2), padding_mode="border", align_corners=False)
        there = torch.unflatten(there, 2, (len(part), height)).transpose(1, 2)  # B K 3 H W
        their_mean = _means(there)
        their_variance = _means(there.square().sum(dim=2)) - their_mean.square().sum(dim=2)
        covariance = _means((mine[:, None] * there).sum(dim=2)) - (mean[:, None] * their_mean).sum(dim=2)
        spread = (variance.clamp(min=0)[:, None] + _LEAST_VARIANCE) * (their_variance.clamp(min=0) + _LEAST_VARIANCE)
        correlation = covariance / spread.sqrt()
        alike[..., start : start + at_once] = (correlation * inside).permute(0, 2, 3, 1)
    return alike


def _means(maps: Float[Tensor, "*maps H W"]) -> Float[Tensor, "*maps H W"]:
    """Return means over windows around pixels, of what of them is in the image."""
    half = _WINDOW // 2
    for dim, margins in ((-1, (half, half)), (-2, (0, 0, half, half))):
        length = maps.shape[dim]
        wide = functional.pad(maps, margins)
        maps = wide.narrow(dim, 0, length).clone()
        for start in range(1, _WINDOW):
            maps += wide.narrow(dim, start, length)
        place = torch.arange(length, device=maps.device)
        count = (place.clamp(max=half) + 1 + (length - 1 - place).clamp(max=half)).to(maps)
        maps = maps / (count if dim == -1 else count[:, None])
    return maps
