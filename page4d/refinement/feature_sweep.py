"""Feature-metric plane sweep: patch depth from learned descriptors along the rays of known cameras."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, normalize_pixels
from page4d.geometry.warp import WarpedPixels, ray_warp, sample
from page4d.networks.conditioning import Grid
from page4d.networks.inputs.matching import Likelihoods, match_likelihoods
from page4d.networks.layers.execution import in_chunks
from page4d.refinement.semi_global import aggregate_scores
from page4d.refinement.view_prediction import ViewPrediction, target_indices

_SIGMA = 1.3
"""Prior sigma of log depth at confidence 1."""

_CONFIDENCE_POWER = 1.25
"""The prior sigma is divided by this power of the confidence."""

_MAX_LOG_FACTOR = 0.9
_NUM_HYPOTHESES = 61
_OCCLUSION = 0.02
_MIN_UNSEEN = 0.1
"""Likelihood of a similar descriptor at a place where the patch is occluded: the first number times (the probability
that the patch is not visible, plus the second)."""

_MAX_PENALTY = 1.0
_MAX_STEP = 0.3
"""Log depth factors of neighbouring patches are penalized linearly up to this difference."""

_MIN_DEPTH = 1e-6
_MAX_PAIRS = 1 << 23
"""Pairs of patches and cells compared at once: 32 MB of numbers, a few times over."""


def sweep_features(
    views: Sequence[ViewPrediction], cameras: Cameras, depth: Float[Tensor, "B N P"]
) -> Float[Tensor, "B N P"]:
    """Refine the depth of patch centers under known cameras.

    `cameras` are [B, N], N = T * V, in the unit of depth. Every patch is compared with the cells at its projections
    for many depth hypotheses. Semi-global aggregation favours equal factors of neighbouring patches, which patches
    without a match take over. Depth is unchanged where nothing matches.

    Source: Collins (1996), "A Space-Sweep Approach to True Multi-Image Matching", section 2, per ray.
    """
    refined: Tensor = torch.unflatten(depth, 1, (-1, len(views))).clone()
    rig = cameras.by_time(refined.shape[1])
    for place, view in enumerate(views):
        own = refined[:, :, place, : view.grid[0] * view.grid[1]]
        sigma = _SIGMA * view.patch_confidence**-_CONFIDENCE_POWER
        own *= _expected_log_factor(_evidence(views, place, rig, own), sigma, view.grid).exp()
    return refined.flatten(1, 2)


def _hypotheses(device: torch.device | str) -> Float[Tensor, " K"]:
    return torch.linspace(-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR, _NUM_HYPOTHESES, dtype=torch.float64, device=device)


def _evidence(
    views: Sequence[ViewPrediction], place: int, rig: Cameras, depth: Float[Tensor, "B T P"]
) -> Float[Tensor, "B T P K"]:
    """Return the log likelihood ratio of every depth hypothesis against occlusion in all targets."""
    view = views[place]
    evidence = depth.new_zeros(*depth.shape, _NUM_HYPOTHESES)
    targets = view.matches.targets
    indices = target_indices(targets, depth.shape[1], len(views))
    own = torch.arange(indices.shape[0]) * len(views) + place
    plane = normalize_pixels(view.patch_centers.expand(*depth.shape, 2), rig[:, :, place].intrinsics)
    rays = functional.pad(plane, (0, 1), value=1.0)[..., None, :]  # B T P 1 3
    depths = depth[..., None] * _hypotheses(depth.device).exp()  # B T P K
    for index, target in enumerate(targets):
        number = indices[:, place, index]
        is_new = (number != own) & ~(indices[:, place, :index] == number[:, None]).any(dim=1)
        times, other = (number // len(views)).to(depth.device), int(number[0]) % len(views)
        if is_new.any():
            warp = ray_warp(rays, rig[:, :, place], rig[:, times, other])
            ratio = _log_ratios(view, views[other], times, warp.at(depths, _MIN_DEPTH))
            evidence += ratio * (view.static_probability(target) * is_new.to(depth.device)[:, None])[..., None]
    return evidence


def _log_ratios(
    view: ViewPrediction, other: ViewPrediction, times: Int[Tensor, " T"], warped: WarpedPixels
) -> Float[Tensor, "B T P K"]:
    """Return the log likelihood ratios of depth hypotheses [B, T, P, K] from another view at these instants."""
    own, target = view.matches.features, other.matches.features
    if own is None or target is None:
        return torch.zeros_like(warped.depth)
    places, visible = warped.pixels.flatten(0, 1), warped.visible(other.size, _MIN_DEPTH).flatten(0, 1)
    grid = (other.grid[0] * target.finer, other.grid[1] * target.finer)
    patches, cells = own.patches[:, :, 0].flatten(0, 1), target.cells[:, times, 0].flatten(0, 1)
    unseen, cells_per_px = own.unseen, target.finer / other.patch_size

    def of_images(part: slice) -> Tensor:
        likelihoods = match_likelihoods(patches[part], cells[part], unseen)
        return _at_places(likelihoods, grid, places[part] * cells_per_px, visible[part])

    at_once = max(1, _MAX_PAIRS // (patches.shape[-2] * cells.shape[-2]))
    return torch.unflatten(in_chunks(of_images, len(patches), at_once, dim=0), 0, warped.depth.shape[:2])


def _at_places(
    likelihoods: Likelihoods, grid: Grid, places: Float[Tensor, "N P K 2"], visible: Bool[Tensor, "N P K"]
) -> Float[Tensor, "N P K"]:
    """Return log(1 + match likelihood / occlusion likelihood) at places in cells."""
    maps = likelihoods.cell.exp().reshape(-1, 1, *grid)
    found = sample(maps, places.flatten(0, 1), border="zeros").reshape(visible.shape)
    occluded = _OCCLUSION * (likelihoods.unseen.exp() + _MIN_UNSEEN)[..., None]
    return (found * visible / occluded).log1p()


def _expected_log_factor(
    evidence: Float[Tensor, "B T P K"], sigma: Float[Tensor, "B T P"], grid: Grid
) -> Float[Tensor, "B T P"]:
    """Return the posterior mean of the log factor of each patch's depth."""
    hypotheses = _hypotheses(evidence.device)
    score = evidence - (hypotheses / sigma[..., None]).square() / 2
    first, second = _hypotheses("cpu")[:2].tolist()
    penalty = _MAX_PENALTY * (second - first) / _MAX_STEP
    aggregated = aggregate_scores(score.reshape(-1, *grid, len(hypotheses)), penalty, _MAX_PENALTY)
    mean: Tensor = (aggregated.softmax(dim=-1) * hypotheses).sum(dim=-1)
    return mean.reshape(*evidence.shape[:2], -1)
