"""Evidence held out from an adjustment: patches that it does not use, to compare its result with its start."""

from collections.abc import Sequence
from dataclasses import replace
from math import pi
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.refinement.guided_matching import RADIUS, match_guided
from page4d.refinement.normal_equations import Correspondences, NormalEquations, Priors
from page4d.refinement.state import Evidence, predicted_depth
from page4d.refinement.view_prediction import ViewPrediction, neighbour_views

_PERIOD, _STEP = 5, 2
"""Patches with (row + 2 column) divisible by 5 are held out: a fifth, no two of them adjacent."""

_NEAR_PX = 1.5
"""Distance in px between the place that cameras and depth predict and the peak of correlation, if they are right."""

_CHANCE = pi * _NEAR_PX**2 / (2 * RADIUS - 1) ** 2
"""Share of the peaks that are as near where cameras are wrong: peaks are spread evenly over the search window. With
wrong cameras on real rigs it is 0.04 to 0.09."""

MIN_SIGNIFICANCE = 2.5
"""Standard deviations above chance that support adjusted poses. Wrong cameras of real rigs reach 1.8, poses that
adjustment improves on synthetic rigs mostly 3 and more."""

MIN_FOCAL_SIGNIFICANCE = 3.0
"""Standard deviations above chance that support adjusted focal lengths, which drift where evidence is weak: those of
real rigs reach 0.9 there, those of synthetic rigs with covisible views 4 and more."""

_INDEPENDENT_INSTANTS = 2
"""Number of instants that count: a static scene repeats the same wrong peaks at every instant."""

_INLIER_SHARE = 0.04
"""Largest error of a network match that agrees with the cameras, in units of the image's long side."""

_SHARE_PER_DEVIATION = 0.06
"""Where images are not compared: the weight of the network's matches that agree, as a share of all, counts as a
standard deviation per 0.06. Wrong cameras of real rigs do not reach the 0.15 that poses need."""


class Agreement(NamedTuple):
    """Support of cameras and depth by held-out patches, of each scene.

    `significance` is in standard deviations above chance; `support` compares two results on the same patches.
    """

    support: Float[Tensor, " B"]
    significance: Float[Tensor, " B"]

    def is_better(self, start: "Agreement", significance: float) -> Bool[Tensor, " B"]:
        """Return whether these cameras are supported, and better than those at the start."""
        return (self.significance >= significance) & (self.support > start.support)


def held_out_patches(views: Sequence[ViewPrediction], num_times: int) -> Bool[Tensor, "N P"]:
    """Return the mask of the patches that an adjustment does not use; on the CPU, as sizes are."""
    masks, most = [], max(view.grid[0] * view.grid[1] for view in views)
    for view in views:
        rows, columns = (torch.arange(number) for number in view.grid)
        held = (rows[:, None] + _STEP * columns) % _PERIOD == 0
        masks.append(torch.nn.functional.pad(held.flatten(), (0, most - held.numel())))
    return torch.stack(masks).repeat(num_times, 1)


def without_patches(correspondences: Correspondences, held: Bool[Tensor, "N P"]) -> Correspondences:
    """Return the correspondences with weight 0 for some patches."""
    return replace(correspondences, weight=correspondences.weight * ~held.to(correspondences.weight.device)[:, None])


def measure_agreement(
    evidence: Evidence, held: Bool[Tensor, "N P"], cameras: Cameras, patch_depth: Float[Tensor, "B N P"]
) -> Agreement:
    """Return the agreement of held-out patches under cameras [B, N] and depth.

    It is that of the images of a rig; without images, and for a single view, that of the network's matches.
    """
    if evidence.comparable_images is None:
        return _agreement_of_matches(evidence, held, cameras, patch_depth)
    return _agreement_of_images(evidence, held, cameras, patch_depth)


def _agreement_of_images(
    evidence: Evidence, held: Bool[Tensor, "N P"], cameras: Cameras, patch_depth: Float[Tensor, "B N P"]
) -> Agreement:
    """Count peaks of correlation at the predicted places, among all peaks of the search around them."""
    assert evidence.comparable_images is not None
    images, num_times = evidence.comparable_images, evidence.num_times
    by_time, depth = cameras.by_time(num_times), predicted_depth(evidence, patch_depth)
    near = patch_depth.new_zeros(len(patch_depth), dtype=torch.float64)
    found = torch.zeros_like(near)
    for place, view in enumerate(evidence.views):
        chosen = held[place].nonzero()[:, 0]
        for other in neighbour_views(evidence.views, place):
            pair = by_time[:, :, place], by_time[:, :, other]
            peaks = match_guided(images[place], images[other], *pair, depth[place], view.patch_size, chosen=chosen)
            exists = peaks.score > 0
            found += exists.sum(dim=(1, 2))
            near += (exists & (peaks.shift.norm(dim=-1) < _NEAR_PX)).sum(dim=(1, 2))
    counted = min(num_times, _INDEPENDENT_INSTANTS) / num_times
    support = (near - _CHANCE * found) * counted
    deviation = (_CHANCE * (1 - _CHANCE) * found * counted).clamp(min=1).sqrt()
    return Agreement(support, support / deviation)


def _agreement_of_matches(
    evidence: Evidence, held: Bool[Tensor, "N P"], cameras: Cameras, patch_depth: Float[Tensor, "B N P"]
) -> Agreement:
    """Sum the weights of held-out matches with other images, lowered by their reprojection errors."""
    matches = evidence.matches
    problem = NormalEquations(cameras, patch_depth, matches, Priors())
    limit = _INLIER_SHARE * max(cameras.image_size)
    is_own = matches.targets == torch.arange(len(matches.targets))[:, None]
    counted = (held[:, None] & ~is_own[..., None]).to(matches.weight.device)
    weight = matches.weight * counted
    support = weight.new_zeros(len(patch_depth))
    for part in problem.parts:
        projected = problem.project(problem.start, part)
        error = projected.residual.norm(dim=-2) / limit
        support += (weight[..., part] * projected.in_front / (1 + error.square())).sum(dim=(1, 2, 3))
    total = weight.sum(dim=(1, 2, 3)).clamp(min=torch.finfo(torch.float64).tiny)
    return Agreement(support, support / total / _SHARE_PER_DEVIATION)
