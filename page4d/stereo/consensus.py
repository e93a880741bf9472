"""Consensus of depth between views: confidence-weighted fusion, recalibrated confidence, and cleaning.

Every pixel moves along its ray to where other views have a surface. Cleaning gives static parts the depth of the
background first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.camera import MIN_DEPTH, Cameras, camera_rays
from page4d.geometry.statistics import robust_std
from page4d.geometry.warp import (
    Agreement,
    Surfaces,
    compared_views,
    measure_agreement,
    pixel_indices,
    ray_warp,
    sample,
    surfaces_of,
)
from page4d.networks.layers.execution import on_threads
from page4d.records import Predictions
from page4d.stereo import kernels
from page4d.stereo.background import Background, agrees_with_background, shows_background
from page4d.stereo.bodies import BodyMaps, body_maps
from page4d.stereo.planes import move_onto_planes
from page4d.stereo.regions import bounding_box
from page4d.stereo.sweep import aggregate_scores, aggregate_together
from page4d.stereo.views import ViewPrediction, neighbour_views

_MIN_LOG_FACTOR, _MAX_LOG_FACTOR = -0.5, 1.2
"""Depth of a network in front of free space is too small by up to a factor of three; it is rarely too large."""

_NUM_HYPOTHESES = 69

_MAX_SIGMA = 0.06
"""Largest prior sigma of log depth at confidence 1; it is divided by the confidence."""

_MIN_CONFIDENCE = 0.05
_SUPPORT, _VIOLATION = 4.0, 2.0
"""Log likelihood of a surface of another view at the hypothesis, and of a hypothesis that it sees through, for a view
of confidence 1; both are multiplied by the square of its confidence."""

_WIDE_SEARCH, _FINE_SEARCH = (1.0, 81, 1), (0.05, 21, 2)
"""Largest log factor, number of hypotheses, and hypotheses on each side of the best one that are averaged: first over
all distances, then finely around what was found. Few are averaged: a surface is next to hypotheses outside the visual
hull."""

_REPEATED = 0.01
"""Share of moving pixels beyond the fine search from which all distances are searched again: wrong views mislead the
others at first."""

_MOVING_SUPPORT, _MOVING_VIOLATION = 2.0, 1.0
"""The same for the moving surface of another view; multiplied by its confidence, which is lower where things move."""

_MIN_MOVING_CONFIDENCE = 0.1
_MAX_MOVING_SPREAD = 0.05
_SILHOUETTE = 4.0
"""Log likelihood of a moving point in front of the background of another view, which does not see it there."""

_BACKGROUND_SPREAD = 0.05
"""Standard deviation of the log depth of the background; feet on the floor are not in front of it."""

_MAX_MOVING_PENALTY = 1.0

_MIN_SPREAD, _MAX_SPREAD = 0.01, 0.1
"""Bounds on the standard deviation of the difference in log depth of one surface between two views."""

_SAME_SURFACE = 0.25
"""Largest difference in log depth from which that deviation is measured; larger ones are other surfaces."""

_MIN_DIFFERENCES = 100
"""Pixels that such a measurement needs."""

_FACING = 0.3
"""Cosine of the angle between the normal of a surface and the direction to a camera that sees it well."""

_FREE_SPACE = 2.0
"""Standard deviations in front of another view's surface from which a hypothesis is in its free space."""

_BEHIND = math.exp(-(_FREE_SPACE**2) / 2)
"""Share of the gain on a surface that is left as many deviations behind it."""

_MAX_PENALTY, _MAX_STEP = 2.0, 0.3
"""Log factors of neighbouring pixels are penalized linearly up to this difference."""

_NO_BODY, _WITHIN = 12.0, 1.0
"""Log odds of a point on the body that a pixel shows to one on something else; standard deviations of its surface
within which points are equally likely, as the network may be more exact."""

_OUTLIER = 1.0
"""Log of the prior odds that the depth of a moving pixel is as accurate as views agree rather than an outlier."""

_ITERATIONS = 2
_REACH = 3
"""Hypotheses on each side of the best one that are averaged: over all of them, pixels without evidence would move to
the middle of the range."""

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
    spreads = torch.full_like(log_depth, spread)
    initial, current = log_depth, log_depth
    for _ in range(_ITERATIONS):
        moved = []
        for view in range(len(initial)):
            sigma = min(spread, _MAX_SIGMA) / confidence[view].clamp(min=_MIN_CONFIDENCE)
            score = -(hypotheses[:, None] / sigma[:, None]).square() / 2
            rays = camera_rays(cameras.intrinsics[view], (initial.shape[-2], initial.shape[-1]))
            for other in compared_views(cameras, view):
                weight = confidence[other].square() * known[other]
                surface = _Surface(current[other], spreads[other], _SUPPORT * weight, _VIOLATION * weight)
                found = _evidence(initial[view], rays, hypotheses, cameras[view], cameras[other], surface)
                score += found.transpose(0, 1)
            score = aggregate_scores(score[None], penalty, _MAX_PENALTY)[0]
            moved.append(initial[view] + _mean_around_best(score, hypotheses, _REACH))
        current = torch.where(known, torch.stack(moved), initial)
    return current


@torch.no_grad()
def reach_moving_consensus(
    depth: Float[Tensor, "V H W"],
    confidence: Float[Tensor, "V H W"],
    moving: Bool[Tensor, "V H W"],
    background: Background,
    cameras: Cameras,
    bodies: BodyMaps | None = None,
) -> Float[Tensor, "V H W"]:
    """Return the depth of one instant, with that of moving pixels given silhouettes and depth of the other views.

    A hypothesis loses where another view shows its background behind it: a moving point would hide it. That bounds
    the point to the visual hull. It gains where the other view has a moving surface that faces this view, and loses
    as much behind that surface, which would hide it here; and it loses with the distance from `bodies`. All other
    pixels keep their depth, which must be positive. Confidences are in [0, 1].

    Source: Laurentini (1994), "The Visual Hull Concept for Silhouette-Based Image Understanding", as a likelihood;
    `reach_consensus` for the rest.
    """
    near_moving = functional.max_pool2d(moving[:, None].to(depth), 3, stride=1, padding=1)[:, 0] > 0
    behind = background.known & ~near_moving
    weight = confidence.clamp(min=_MIN_MOVING_CONFIDENCE) * moving
    support, violation = _MOVING_SUPPORT * weight, _MOVING_VIOLATION * weight + _SILHOUETTE * behind
    own = depth.log()
    initial = torch.where(behind, background.log_depth, own)
    surfaces = surfaces_of(initial.exp(), cameras.intrinsics)
    measured = measured_spread(initial, moving, cameras, surfaces)
    parts = [(view, part) for view in range(len(initial)) if (part := bounding_box(moving[view])) is not None]

    def searched(current: Tensor, base: Tensor, reach: float, number: int, averaged: int) -> Tensor:
        hypotheses = torch.linspace(-reach, reach, number).to(depth)
        step = float(hypotheses[1] - hypotheses[0])
        spread = max(measured, step)
        spreads = torch.where(behind, _BACKGROUND_SPREAD, min(spread, _MAX_MOVING_SPREAD))
        scores = []
        for view, part in parts:
            chosen = moving[view][part]
            start = base[view][part][chosen]
            trust = confidence[view][part][chosen].clamp(min=_MIN_CONFIDENCE)
            likelihood = _prior(start - own[view][part][chosen] + hypotheses[:, None], spread, trust)  # K N
            if bodies is not None:
                body, sigma = (maps[view][part][chosen] for maps in bodies[:2])
                off = ((start - body + hypotheses[:, None]).abs() / sigma.clamp(min=step) - _WITHIN).clamp(min=0)
                likelihood -= (off.square() / 2).clamp(max=_NO_BODY)
            rays = camera_rays(cameras.intrinsics[view], (initial.shape[-2], initial.shape[-1]))[part][chosen]
            for other in compared_views(cameras, view):
                place = (other, moving[other])
                shown = (surfaces.facing(place, cameras[other], cameras[view]) / _FACING).clamp(0, 1)
                seen = torch.zeros_like(own[other]).masked_scatter(moving[other], shown)
                surface = _Surface(current[other], spreads[other], support[other] * seen, violation[other])
                likelihood += _hidden(_evidence(start, rays, hypotheses, cameras[view], cameras[other], surface))
            score = likelihood.new_zeros(len(chosen), len(hypotheses), chosen.shape[1])
            score.transpose(0, 1)[:, chosen] = likelihood
            scores.append(score)
        penalty = _MAX_MOVING_PENALTY * step / _MAX_STEP
        moved = current.clone()
        for (view, part), score in zip(parts, aggregate_together(scores, penalty, _MAX_MOVING_PENALTY), strict=True):
            mean = _mean_around_best(score, hypotheses, averaged)
            moved[view][part] = torch.where(moving[view][part], base[view][part] + mean, moved[view][part])
        return moved

    found = searched(initial, own, *_WIDE_SEARCH)
    far = (found - own)[moving].abs() > _FINE_SEARCH[0]
    if float(far.double().mean()) >= _REPEATED:
        found = searched(found, own, *_WIDE_SEARCH)
    found = searched(found, torch.where(moving, found, own), *_FINE_SEARCH)
    return torch.where(moving, found.exp(), depth)


def _hidden(likelihood: Float[Tensor, "K N"]) -> Float[Tensor, "K N"]:
    """Return the log likelihood of hypotheses, the nearest first, less the gain on the surface in front; in place."""
    gain = likelihood.new_zeros(likelihood.shape[1])
    for one in likelihood:  # a running maximum of all at once would take four times their memory
        torch.maximum(gain, one, out=gain)
        one -= gain * (one < _BEHIND * gain)
    return likelihood


def _prior(log_factor: Float[Tensor, "K N"], spread: float, confidence: Float[Tensor, " N"]) -> Float[Tensor, "K N"]:
    """Return the log likelihood of log factors on a view's own depth, given the deviation between views.

    Either the depth is as accurate as views agree, or, less likely, it is an outlier.
    """
    inlier, outlier = (
        -(log_factor * confidence / sigma).square_() / 2 for sigma in (min(spread, _MAX_SIGMA), _MAX_SIGMA)
    )
    return torch.logaddexp(inlier, outlier - _OUTLIER)


@torch.no_grad()
def measured_spread(
    log_depth: Float[Tensor, "V H W"],
    known: Bool[Tensor, "V H W"],
    cameras: Cameras,
    surfaces: Surfaces | None = None,
) -> float:
    """Return the robust standard deviation of the log depth of one surface between two views, within its bounds.

    With `surfaces`, only those that face both cameras count: others are compared with other sides of their object.
    """
    size = (log_depth.shape[-2], log_depth.shape[-1])
    depth = log_depth.exp()
    found = []
    for view in range(len(log_depth)):
        rays = camera_rays(cameras.intrinsics[view], size)
        for other in compared_views(cameras, view):
            warped = ray_warp(rays, cameras[view], cameras[other]).to(log_depth).at(depth[view])
            column, row = pixel_indices(warped.pixels, size)
            beyond = (warped.depth.clamp(min=MIN_DEPTH).log() - log_depth[other, row, column]).abs()
            counts = warped.visible(size) & known[view] & known[other, row, column] & (beyond < _SAME_SURFACE)
            differences = beyond[counts]
            if surfaces is not None:
                own = surfaces.facing((view, counts), cameras[view], cameras[other])
                seen = surfaces.facing((other, row[counts], column[counts]), cameras[other], cameras[view])
                differences = differences[own.minimum(seen) > _FACING]
            found.append(differences)
    differences = torch.cat(found) if found else log_depth.new_zeros(0)
    if len(differences) < _MIN_DIFFERENCES:
        return _MAX_SPREAD
    return min(max(robust_std(differences), _MIN_SPREAD), _MAX_SPREAD)


def _mean_around_best(
    score: Float[Tensor, "H K W"], hypotheses: Float[Tensor, " K"], reach: int
) -> Float[Tensor, "H W"]:
    """Return the posterior mean of the best hypothesis and `reach` ones on each side."""
    best = score.argmax(dim=1, keepdim=True).clamp(reach, len(hypotheses) - 1 - reach)
    near = best + torch.arange(-reach, reach + 1, device=score.device)[:, None]
    mean: Tensor = (score.gather(1, near).softmax(dim=1) * hypotheses[near]).sum(dim=1)
    return mean


class _Surface(NamedTuple):
    """The depth map of another view, the standard deviation of its log depth, and the log likelihoods that it gives.

    `support` is that of a hypothesis on the surface, `violation` minus that of one in front of it.
    """

    log_depth: Float[Tensor, "H W"]
    spread: Float[Tensor, "H W"]
    support: Float[Tensor, "H W"]
    violation: Float[Tensor, "H W"]


def _evidence(
    log_depth: Float[Tensor, "*batch"],
    rays: Float[Tensor, "*batch 3"],
    hypotheses: Float[Tensor, " K"],
    camera: Cameras,
    other_camera: Cameras,
    other: _Surface,
) -> Float[Tensor, "K ..."]:
    """Return the log likelihood of every hypothesis given the surface that one other view sees."""
    height, width = other.log_depth.shape
    warp = ray_warp(rays.reshape(1, 1, -1, 3), camera, other_camera).to(log_depth)
    points, origin = warp.directions[0, 0] * log_depth.reshape(-1, 1).exp(), warp.origin.flatten()
    if kernels.apply_to(points, *other):
        surface = torch.stack(other, dim=-1)
        found = kernels.compare_surface(points, origin, hypotheses.exp(), surface, MIN_DEPTH, _FREE_SPACE)
        return found.view(len(hypotheses), *log_depth.shape)
    across, down, ahead = points.unbind(-1)
    likelihood = log_depth.new_empty(len(hypotheses), log_depth.numel())
    at_once = max(1, _MAX_SAMPLES // max(1, log_depth.numel()))
    for start in range(0, len(hypotheses), at_once):
        part = slice(start, start + at_once)
        factor = hypotheses[part, None].exp()
        distance = torch.addcmul(origin[2], ahead, factor)
        scale = distance.clamp(min=MIN_DEPTH).reciprocal()
        column = torch.addcmul(origin[0], across, factor).mul_(scale)
        row = torch.addcmul(origin[1], down, factor).mul_(scale)
        visible = (distance > MIN_DEPTH) & (column > 0) & (column < width) & (row > 0) & (row < height)
        index = row.nan_to_num_().clamp_(0, height - 1).long().mul_(width)
        index += column.nan_to_num_().clamp_(0, width - 1).long()
        # A third of the time of indexing.
        here = _Surface(*(one.flatten().index_select(0, index.flatten()).view(index.shape) for one in other))
        beyond = distance.clamp_(min=MIN_DEPTH).log_().sub_(here.log_depth).div_(here.spread)
        support = beyond.square().mul_(-0.5).exp_().mul_(here.support)
        support -= here.violation * (beyond < -_FREE_SPACE)
        likelihood[part] = torch.where(visible & ~support.isnan(), support, 0.0)
    return likelihood.view(len(hypotheses), *log_depth.shape)


_SIGMA = 0.12
"""Standard deviation of the difference in log depth of one surface between two views; larger differences are other
surfaces."""

_SELF_WEIGHT = 1.5
"""Weight of a view's own depth, in units of that of another view."""

_MIN_SLOPE, _MAX_SLOPE = 0.5, 2.0
"""Derivative of the log depth in the other view by that in the own one: 1 for parallel views at equal distance."""

_MIN_VISIBLE_DEPTH = 1e-3
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
        target_depth, min_depth = log_depth[other], _MIN_VISIBLE_DEPTH * depth
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


CONFIRMED, OPEN, CONTRADICTED = 1.0, 0.3, 0.1
"""Factors on the confidence of pixels that more views confirm than contradict, as many or none, and fewer: about the
share of such depths within 5 cm of the truth on real and synthetic rigs, relative to confirmed ones."""


def recalibrated(confidence: Float[Tensor, "*batch"], agreement: Agreement) -> Float[Tensor, "*batch"]:
    """Return the confidence in [0, 1] given the number of views that confirm and contradict each depth."""
    balance = agreement.confirmed.int() - agreement.contradicted.int()
    factor = torch.full_like(confidence, OPEN)
    factor[balance > 0] = CONFIRMED
    factor[balance < 0] = CONTRADICTED
    return confidence * factor


@dataclass(frozen=True, kw_only=True)
class FusedBackground:
    """A background whose depth maps agree as far as they can, with the agreement that is left.

    `predicted` is its log depth before, which that of instants is compared with; None where masks of motion alone
    determine what shows it.
    """

    background: Background
    agreement: Agreement
    predicted: Float[Tensor, "V H W"] | None


def fuse_background(background: Background, cameras: Cameras, *, trusts_masks: bool) -> FusedBackground:
    """Bring the depth maps of a background, seen by cameras [V], to a consensus, and its planes to the pictures.

    With `trusts_masks`, all that does not move by a mask of motion shows it.
    """
    known, confidence = background.known, background.confidence
    depth = reach_consensus(background.log_depth, known, confidence, cameras)
    sigma = measured_spread(background.log_depth, known, cameras) / confidence.clamp(min=_MIN_CONFIDENCE)
    depth = move_onto_planes(depth, known, sigma, background.color, cameras)
    fused = replace(background, log_depth=depth)
    agreement = measure_agreement(depth.exp(), known, cameras, background.spread)
    predicted = None if trusts_masks else background.log_depth
    return FusedBackground(background=fused, agreement=agreement, predicted=predicted)


@on_threads(1)
@torch.no_grad()
def clean(
    predictions: Predictions,
    fused: FusedBackground | None = None,
    people: Sequence[Float[Tensor, "P J 3"]] = (),
    completes: Bool[Tensor, " V"] | None = None,
) -> Predictions:
    """Return predictions [1, T, V, H, W] in the world of the background, with their agreement between views.

    Pixels that do not move by a mask of motion, and agree with the background where masks are not trusted, take its
    depth and confidence, and their agreement is that of the background, so that static parts of clouds do not change
    over time. Without a background, depth is unchanged. The depth of `people`, joints of every instant in the world,
    is brought to their bodies, which complete the masks of views that `completes` names, None for all. The confidence
    is recalibrated by the agreement.
    """
    known = predictions.known
    if fused is None:
        agreement = measure_agreement(predictions.depth, known, predictions.cameras)
        confidence = recalibrated(predictions.depth_confidence.nan_to_num(), agreement)
        return replace(predictions, depth_confidence=confidence, agreement=agreement)
    background = fused.background
    dynamic, own = predictions.dynamic, predictions.depth
    is_static = background.known & predictions.valid
    if fused.predicted is not None:
        is_static &= agrees_with_background(predictions, replace(background, log_depth=fused.predicted))
    size = (known.shape[-2], known.shape[-1])
    bodies = [body_maps(joints, predictions.cameras[0, time], size) for time, joints in enumerate(people)]
    if dynamic is not None:
        sharpened, shown = shows_background(dynamic[0], predictions.images[0], background)
        if bodies:
            moving = sharpened > DYNAMIC_THRESHOLD
            seen = [
                maps.covers(background.log_depth, background.known, one)
                for maps, one in zip(bodies, moving, strict=True)
            ]
            covered = torch.stack(seen) & (True if completes is None else completes[:, None, None])
            missed = covered & ~moving  # as background, whose depth was predicted, too
            own = torch.where(missed, torch.stack([maps.log_depth for maps in bodies]).exp(), own)
            sharpened, shown = sharpened.masked_fill(covered, 1.0), shown & ~covered
        dynamic, is_static = sharpened[None], is_static & shown
    depth = torch.where(is_static, background.log_depth.exp(), own)
    confidence = torch.where(is_static, background.confidence, predictions.depth_confidence.nan_to_num())
    if dynamic is not None:
        is_moving = known & ~is_static & (dynamic > DYNAMIC_THRESHOLD)
        instants = zip(depth[0], confidence[0], is_moving[0], strict=True)
        moved = [
            reach_moving_consensus(*maps, background, predictions.cameras[0, time], bodies[time] if bodies else None)
            for time, maps in enumerate(instants)
        ]
        depth = torch.stack(moved)[None]
    found = measure_agreement(depth, known | is_static, predictions.cameras, compared=~is_static)
    agreement = fused.agreement.where(is_static, found)
    return replace(
        predictions,
        depth=depth,
        dynamic=dynamic,
        static=is_static,
        depth_confidence=recalibrated(confidence, agreement),
        agreement=agreement,
    )


def static_instant(predictions: Predictions, fused: FusedBackground) -> Predictions:
    """Return the background as one instant [1, 1, V, H, W], with the cameras and the time of the first instant."""
    background = fused.background
    return replace(
        predictions.at_times(0, 1),
        images=background.color[None, None],
        valid=background.known[None, None],
        depth=background.log_depth.exp()[None, None],
        depth_confidence=recalibrated(background.confidence, fused.agreement)[None, None],
        dynamic=None,
        static=None,
        agreement=fused.agreement.map(lambda counts: counts[None, None]),
    )


def confirmed_share(predictions: Predictions) -> float:
    """Return the share of pixels with depth that another view confirms; 0 without any."""
    if predictions.agreement is None:
        return 0.0
    known = predictions.known
    return float((predictions.agreement.confirmed[known] > 0).float().mean()) if bool(known.any()) else 0.0


def scale_between(background: Background, predictions: Predictions) -> float:
    """Return the factor from the unit of a background to that of predictions: the median ratio of static depths."""
    known = background.known & predictions.known
    if predictions.dynamic is not None:
        known = known & (predictions.dynamic <= DYNAMIC_THRESHOLD)
    if not bool(known.any()):
        return 1.0
    ratio: Float[Tensor, " N"] = (predictions.depth.clamp(min=1e-12).log() - background.log_depth)[known]
    return float(ratio.double().median().exp())
