"""Consensus of depth between views: every pixel moves along its ray to where other views have a surface."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.fusion.background import MAD_TO_STD
from page4d.geometry.agreement import compared_views, pixel_indices
from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ray_warp
from page4d.refinement.semi_global import aggregate_scores

_MIN_LOG_FACTOR, _MAX_LOG_FACTOR = -0.5, 1.2
"""Depth of a network in front of free space is too small by up to a factor of three; it is rarely too large."""

_NUM_HYPOTHESES = 69

_MAX_SIGMA = 0.06
"""Largest prior sigma of log depth at confidence 1; it is divided by the confidence."""

_MIN_CONFIDENCE = 0.05
_SUPPORT, _VIOLATION = 4.0, 2.0
"""Log likelihood of a surface of another view at the hypothesis, and of a hypothesis that it sees through, for a view
of confidence 1; both are multiplied by the square of its confidence."""

_MIN_SPREAD, _MAX_SPREAD = 0.01, 0.1
"""Bounds on the standard deviation of the difference in log depth of one surface between two views."""

_SAME_SURFACE = 0.25
"""Largest difference in log depth from which that deviation is measured; larger ones are other surfaces."""

_FREE_SPACE = 2.0
"""Standard deviations in front of another view's surface from which a hypothesis is in its free space."""

_MAX_PENALTY, _MAX_STEP = 2.0, 0.3
"""Log factors of neighbouring pixels are penalized linearly up to this difference."""

_ITERATIONS = 2
_REACH = 3
"""Hypotheses on each side of the best one that are averaged: over all of them, pixels without evidence would move to
the middle of the range."""

_MIN_DEPTH = 1e-6
_MAX_SAMPLES = 1 << 21
"""Hypotheses of pixels that are warped at once: some 100 MB."""


@torch.no_grad()
def reach_consensus(
    log_depth: Float[Tensor, "V H W"],
    known: Bool[Tensor, "V H W"],
    confidence: Float[Tensor, "V H W"],
    cameras: Cameras,
) -> Float[Tensor, "V H W"]:
    """Return the log depth of every pixel given the depth maps of the other views, for cameras [V].

    A hypothesis gains where another view has a surface at the same point, and loses where it is in that view's free
    space; semi-global aggregation favours equal factors of neighbouring pixels. Views that agree well are changed
    little: the deviation between them is measured first. Confidences are in [0, 1].

    Source: Merrell et al. (2007), "Real-Time Visibility-Based Fusion of Depth Maps", for support and free-space
    violation; Hirschmüller (2008), "Stereo Processing by Semiglobal Matching", for the aggregation.
    """
    hypotheses = torch.linspace(_MIN_LOG_FACTOR, _MAX_LOG_FACTOR, _NUM_HYPOTHESES).to(log_depth)
    penalty = _MAX_PENALTY * float(hypotheses[1] - hypotheses[0]) / _MAX_STEP
    spread = measured_spread(log_depth, known, cameras)
    initial, current = log_depth, log_depth
    for _ in range(_ITERATIONS):
        moved = []
        for view in range(len(initial)):
            sigma = min(spread, _MAX_SIGMA) / confidence[view].clamp(min=_MIN_CONFIDENCE)
            score = -(hypotheses / sigma[..., None]).square() / 2
            for other in compared_views(cameras, view):
                surface = _Surface(current[other], known[other], confidence[other], spread)
                score += _evidence(initial[view], hypotheses, cameras[view], cameras[other], surface)
            score = aggregate_scores(score[None], penalty, _MAX_PENALTY)[0]
            moved.append(initial[view] + _mean_around_best(score, hypotheses))
        current = torch.where(known, torch.stack(moved), initial)
    return current


@torch.no_grad()
def measured_spread(log_depth: Float[Tensor, "V H W"], known: Bool[Tensor, "V H W"], cameras: Cameras) -> float:
    """Return the robust standard deviation of the log depth of one surface between two views, within its bounds."""
    size = (log_depth.shape[-2], log_depth.shape[-1])
    found = []
    for view in range(len(log_depth)):
        rays = camera_rays(cameras.intrinsics[view], size)
        for other in compared_views(cameras, view):
            warped = ray_warp(rays, cameras[view], cameras[other]).to(log_depth).at(log_depth[view].exp(), _MIN_DEPTH)
            column, row = pixel_indices(warped.pixels, size)
            beyond = (warped.depth.clamp(min=_MIN_DEPTH).log() - log_depth[other, row, column]).abs()
            counts = warped.visible(size, _MIN_DEPTH) & known[view] & known[other, row, column]
            found.append(beyond[counts & (beyond < _SAME_SURFACE)])
    differences = torch.cat(found) if found else log_depth.new_zeros(0)
    if not len(differences):
        return _MAX_SPREAD
    return min(max(MAD_TO_STD * float(differences.median()), _MIN_SPREAD), _MAX_SPREAD)


def _mean_around_best(score: Float[Tensor, "H W K"], hypotheses: Float[Tensor, " K"]) -> Float[Tensor, "H W"]:
    """Return the posterior mean of the hypotheses next to the best one."""
    best = score.argmax(dim=-1, keepdim=True).clamp(_REACH, len(hypotheses) - 1 - _REACH)
    near = best + torch.arange(-_REACH, _REACH + 1, device=score.device)
    mean: Tensor = (score.gather(-1, near).softmax(dim=-1) * hypotheses[near]).sum(dim=-1)
    return mean


class _Surface(NamedTuple):
    """The depth map of another view, and the standard deviation of its log depth."""

    log_depth: Float[Tensor, "H W"]
    known: Bool[Tensor, "H W"]
    confidence: Float[Tensor, "H W"]
    spread: float


def _evidence(
    log_depth: Float[Tensor, "H W"],
    hypotheses: Float[Tensor, " K"],
    camera: Cameras,
    other_camera: Cameras,
    other: _Surface,
) -> Float[Tensor, "H W K"]:
    """Return the log likelihood of every hypothesis given the surface that one other view sees."""
    size = (log_depth.shape[-2], log_depth.shape[-1])
    rays = camera_rays(camera.intrinsics, size)
    warp = ray_warp(rays[None], camera, other_camera).to(log_depth)
    weight = other.confidence.square() * other.known
    parts = []
    for part in torch.split(hypotheses, max(1, _MAX_SAMPLES // log_depth.numel())):
        warped = warp.at((log_depth + part[:, None, None]).exp(), _MIN_DEPTH)
        column, row = pixel_indices(warped.pixels, size)
        beyond = (warped.depth.clamp(min=_MIN_DEPTH).log() - other.log_depth[row, column]) / other.spread
        likelihood = _SUPPORT * torch.exp(-beyond.square() / 2) - _VIOLATION * (beyond < -_FREE_SPACE)
        parts.append(likelihood * weight[row, column] * warped.visible(size, _MIN_DEPTH))
    return torch.cat(parts).permute(1, 2, 0)
