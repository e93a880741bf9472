"""Depth of every patch looked for along its ray: what resembles it where each depth would show it to others."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, normalize_pixels, project
from page4d.geometry.rigid import transform_points
from page4d.layers.chunks import in_chunks
from page4d.models.inputs.matching import Likelihoods, likelihoods_of
from page4d.models.size_groups import Grid
from page4d.refinement.matched_view import MatchedView, image_numbers
from page4d.refinement.semi_global import aggregate

_SIGMA = 1.3
"""Standard deviation of the logarithm of the depths that are given, where a network is least sure of them."""

_CONFIDENCE_POWER = 1.25
"""With which it becomes smaller: the confidence is 1 at least."""

_FURTHEST = 0.9
"""Logarithm of the largest factor that is tried."""

_NUM_TRIED = 61
_OCCLUDED = 0.02
_LEAST_OCCLUDED = 0.1
"""How likely something that looks like the patch is at a place although the patch is hidden there: the first number,
times how likely it is seen nowhere, and this much more."""

_STEP_PENALTY = 1.0
_LARGEST_STEP = 0.3
"""Neighbours that are wrong by different factors are this much less likely, in proportion up to this difference."""

_COMPARED_AT_ONCE = 1 << 23
"""Pairs of patches and cells: 32 MB of numbers, a few times over."""


def sweep(views: Sequence[MatchedView], cameras: Cameras, depth: Float[Tensor, "B N P"]) -> Float[Tensor, "B N P"]:
    """Return better depths of the middles of patches, seen by known cameras.

    `cameras` are [B, N], N = T * V, with the unit of depth. Every patch is compared with what is where its middle
    would be seen from each of many depths; neighbours are preferably wrong by the same factor, so that a patch that
    is found nowhere follows them. Depth stays as it is where nothing is found at all.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", section 2, one ray at a time.
    """
    better: Tensor = torch.unflatten(depth, 1, (-1, len(views))).clone()
    rig = cameras.by_time(better.shape[1])
    for place, view in enumerate(views):
        own = better[:, :, place, : view.grid[0] * view.grid[1]]
        sigma = _SIGMA * view.confidence**-_CONFIDENCE_POWER
        own *= _likeliest(_evidence(views, place, rig, own), sigma, view.grid).exp()
    return better.flatten(1, 2)


def _tried() -> Float[Tensor, " K"]:
    return torch.linspace(-_FURTHEST, _FURTHEST, _NUM_TRIED, dtype=torch.float64)


def _evidence(
    views: Sequence[MatchedView], place: int, rig: Cameras, depth: Float[Tensor, "B T P"]
) -> Float[Tensor, "B T P K"]:
    """Return by how much more likely what is seen is if a patch is at a depth than if it is hidden to all."""
    view = views[place]
    evidence = torch.zeros(*depth.shape, _NUM_TRIED, dtype=torch.float64)
    targets = view.matches.targets
    images = image_numbers(targets, depth.shape[1], len(views))
    own = torch.arange(images.shape[0]) * len(views) + place
    points = _along_rays(view, rig[:, :, place], depth)
    for index, target in enumerate(targets):
        number = images[:, place, index]
        is_new = (number != own) & ~(images[:, place, :index] == number[:, None]).any(dim=1)
        times, other = number // len(views), int(number[0]) % len(views)
        if is_new.any():
            told = _told_by(view, views[other], times, points, rig[:, times, other])
            evidence += told * (view.trust(target) * is_new[:, None])[..., None]
    return evidence


def _along_rays(view: MatchedView, cameras: Cameras, depth: Float[Tensor, "B T P"]) -> Float[Tensor, "B T P K 3"]:
    """Return points of the world at all depths that are tried."""
    plane = normalize_pixels(view.middles.expand(*depth.shape, 2), cameras.intrinsics)
    rays = functional.pad(plane, (0, 1), value=1.0)
    points = rays[..., None, :] * (depth[..., None] * _tried().exp())[..., None]
    return transform_points(cameras.camera_to_world, points)


def _told_by(
    view: MatchedView,
    other: MatchedView,
    times: Int[Tensor, " T"],
    points: Float[Tensor, "B T P K 3"],
    cameras: Cameras,
) -> Float[Tensor, "B T P K"]:
    """Return what the image of another view at these instants tells of points."""
    own, there = view.matches.appearance, other.matches.appearance
    if own is None or there is None:
        return torch.zeros_like(points[..., 0])
    pixels, distance = project(transform_points(cameras.world_to_camera, points), cameras.intrinsics)
    height, width = other.size
    places = (pixels / pixels.new_tensor([width, height]) * 2 - 1).flatten(0, 1)
    visible = (distance > 0).flatten(0, 1) & (places.abs() < 1).all(dim=-1)
    grid = (other.grid[0] * there.finer, other.grid[1] * there.finer)
    patches, cells = own.patches.flatten(0, 1).cpu(), there.cells[:, times].flatten(0, 1).cpu()
    unseen = own.unseen.cpu()

    def of_images(part: slice) -> Tensor:
        return _at_places(likelihoods_of(patches[part], cells[part], unseen), grid, places[part], visible[part])

    at_once = max(1, _COMPARED_AT_ONCE // (patches.shape[-2] * cells.shape[-2]))
    return torch.unflatten(in_chunks(of_images, len(patches), at_once, dim=0), 0, points.shape[:2])


def _at_places(
    likelihoods: Likelihoods, grid: Grid, places: Float[Tensor, "N P K 2"], visible: Bool[Tensor, "N P K"]
) -> Float[Tensor, "N P K"]:
    """Return log(1 + ratio), of how likely patches are found at places, from -1 to 1, and of being hidden there."""
    maps = likelihoods.cell.exp().reshape(-1, 1, *grid)
    inside = torch.where(visible[..., None], places, 2.0).to(maps).flatten(0, 1)[:, None]
    found = functional.grid_sample(maps, inside, padding_mode="zeros", align_corners=False).reshape(visible.shape)
    hidden = _OCCLUDED * (likelihoods.unseen.exp() + _LEAST_OCCLUDED)[..., None]
    return (found * visible / hidden).log1p()


def _likeliest(
    evidence: Float[Tensor, "B T P K"], sigma: Float[Tensor, "B T P"], grid: Grid
) -> Float[Tensor, "B T P"]:
    """Return the mean logarithm of the factor that each patch's depth is wrong by."""
    tried = _tried()
    score = evidence - (tried / sigma[..., None]).square() / 2
    step = _STEP_PENALTY * float(tried[1] - tried[0]) / _LARGEST_STEP
    together = aggregate(score.reshape(-1, *grid, len(tried)), step, _STEP_PENALTY)
    mean: Tensor = (together.softmax(dim=-1) * tried).sum(dim=-1)
    return mean.reshape(*evidence.shape[:2], -1)
