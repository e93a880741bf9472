"""The state of a refinement: constant evidence, and the cameras and depth that its steps replace.

A part of the patches is held out from the adjustment, to compare its result with its start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import pi
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras
from page4d.stereo.bundle_adjustment import BundleAdjustment, Correspondences, NormalEquations, Priors, choose_scenes
from page4d.stereo.correspondences import RADIUS, first_chosen, match_guided
from page4d.stereo.descriptors import DenseDescriptors
from page4d.stereo.regions import Region, covering_regions, resized_region
from page4d.stereo.views import ViewPrediction, neighbour_views


class StaticDepth(NamedTuple):
    """Depth of the static pixels of a view in the unit of known cameras, 0 elsewhere, and the pixels to refine."""

    depth: Float[Tensor, "B T H W"]
    is_open: Bool[Tensor, "B T H W"]

    @property
    def regions(self) -> list[Region]:
        """Regions of the image that contain all pixels to refine, of all instants, with a margin."""
        mask = self.is_open.flatten(0, 1).any(dim=0)
        size = (mask.shape[0], mask.shape[1])
        return [resized_region(region, size, size) for region in covering_regions(mask)]


@dataclass(frozen=True, kw_only=True)
class EvidenceLevel:
    """What does not change while steps run. N = T * V images.

    `images` are the views' images in [0, 1] if they may be compared, also by `descriptors`. `prior_cameras` [B, N]
    and `prior_depth` of patches are the network's, with known intrinsics if they are given. `known_cameras` [B, N]
    are those of a calibration with poses. Under these, only the open pixels of `static` are refined.
    """

    views: tuple[ViewPrediction, ...]
    images: tuple[Float[Tensor, "B T 3 _ _"], ...] | None
    prior_cameras: Cameras
    prior_depth: Float[Tensor, "B N P"]
    known_cameras: Cameras | None
    matches: Correspondences
    priors: Priors
    descriptors: DenseDescriptors | None = None
    static: tuple[StaticDepth, ...] | None = None

    @property
    def open_patches(self) -> Int[Tensor, "N Q"] | None:
        """Patches with pixels to refine, and others after them, as many of each image; None: all."""
        if self.static is None:
            return None
        masks = []
        for view, static in zip(self.views, self.static, strict=True):
            is_open = static.is_open.flatten(0, 1).any(dim=0).to(torch.float32)
            masks.append(functional.max_pool2d(is_open[None], view.patch_size).flatten() > 0)
        most = self.prior_depth.shape[-1]
        padded = torch.stack([functional.pad(mask, (0, most - len(mask))) for mask in masks])
        return first_chosen(padded).repeat(self.num_times, 1)

    @property
    def num_times(self) -> int:
        """T of the N = T * V images."""
        return self.prior_depth.shape[1] // len(self.views)

    @property
    def comparable_images(self) -> tuple[Float[Tensor, "B T 3 _ _"], ...] | None:
        """The images of a rig; None for a single view, which has no other view to compare with."""
        return self.images if len(self.views) > 1 else None

    def corrected_depth(self, log_correction: Sequence[Float[Tensor, "B T _ _"]]) -> list[Float[Tensor, "B T _ _"]]:
        """Return the depth of every view in float32, multiplied by factors given as logarithms."""
        pairs = zip(self.views, log_correction, strict=True)
        return [view.depth[:, :, 0].float() * correction.float().exp() for view, correction in pairs]


class Kept(NamedTuple):
    """Whether held-out evidence supports the adjusted poses, and the adjusted focal lengths, of each scene."""

    poses: Bool[Tensor, " B"]
    focal: Bool[Tensor, " B"]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts that are kept in all scenes."""
        return tuple(name for name, kept in self._asdict().items() if bool(kept.all()))


@dataclass(frozen=True, kw_only=True)
class RefinementState:
    """Cameras [B, N] and depth after some of the steps.

    `patch_depth` is that of patch centers after bundle adjustment; `log_correction` holds, view by view, the
    logarithm of refined over predicted depth. Depth fits `rig`: the cameras themselves, or known ones; `scale` is the
    unit of `cameras` in that of `rig`. `kept` is None without a comparison with held-out evidence.
    """

    evidence: EvidenceLevel
    cameras: Cameras
    patch_depth: Float[Tensor, "B N P"]
    log_correction: tuple[Float[Tensor, "B T _ _"], ...]
    rig: Cameras
    scale: Float[Tensor, "B one one"]
    rig_is_known: bool = False
    kept: Kept | None = None

    @property
    def cameras_hold(self) -> Bool[Tensor, " B"]:
        """Whether depth may be refined under the cameras: those that evidence does not support are left out."""
        if self.rig_is_known or self.kept is None:
            return self.patch_depth.new_ones(len(self.patch_depth), dtype=torch.bool)
        return self.kept.poses

    @property
    def has_cameras(self) -> bool:
        """Whether depth may be refined in any scene."""
        return bool(self.cameras_hold.any())

    @property
    def depth(self) -> list[Float[Tensor, "B T _ _"]]:
        """Refined depth of every view in float32, in the unit of `cameras`."""
        return self.evidence.corrected_depth(self.log_correction)

    @property
    def rig_depth(self) -> list[Float[Tensor, "B T _ _"]]:
        """Refined depth of every view in float32, in the unit of `rig`."""
        return [depth * self.scale[..., None].to(depth) for depth in self.depth]

    @property
    def rig_by_time(self) -> Cameras:
        """The cameras [B, T, V] that depth fits."""
        return self.rig.by_time(self.evidence.num_times)

    def corrected(self, log_factors: Sequence[Float[Tensor, "B T _ _"]]) -> "RefinementState":
        """Multiply the depth of every view by factors given as logarithms; known static depth stays."""
        if self.evidence.static is not None and self.rig_is_known:
            fixed = (static.depth > 0 for static in self.evidence.static)
            log_factors = [more.masked_fill(one, 0.0) for more, one in zip(log_factors, fixed, strict=True)]
        pairs = zip(self.log_correction, log_factors, strict=True)
        return replace(self, log_correction=tuple(one + more.to(one) for one, more in pairs))

    def adjusted(self, found: BundleAdjustment) -> "RefinementState":
        """Replace cameras and depth by the result of an adjustment."""
        correction = upsample_patches(self.evidence, found.depth)
        cameras = found.cameras
        return replace(self, cameras=cameras, patch_depth=found.depth, log_correction=correction, rig=cameras)

    def chosen(self, which: Bool[Tensor, " B"], other: "RefinementState") -> "RefinementState":
        """Return this state for some scenes, and another one for the rest."""
        if bool(which.all()):
            return self
        choose = partial(choose_scenes, which)

        def choose_cameras(own: Cameras, others: Cameras) -> Cameras:
            pose = choose(own.world_to_camera, others.world_to_camera)
            return replace(own, world_to_camera=pose, intrinsics=choose(own.intrinsics, others.intrinsics))

        pairs = zip(self.log_correction, other.log_correction, strict=True)
        return replace(
            self,
            cameras=choose_cameras(self.cameras, other.cameras),
            patch_depth=choose(self.patch_depth, other.patch_depth),
            log_correction=tuple(choose(*pair) for pair in pairs),
            rig=choose_cameras(self.rig, other.rig),
        )


def upsample_patches(evidence: EvidenceLevel, depth: Float[Tensor, "B N P"]) -> tuple[Float[Tensor, "B T _ _"], ...]:
    """Return the log corrections of all pixels from the depth of patch centers, interpolated bilinearly."""
    of_views = torch.unflatten(depth / evidence.prior_depth, 1, (-1, len(evidence.views)))
    return tuple(_upsample(view, of_views[:, :, place]) for place, view in enumerate(evidence.views))


def predicted_depth(evidence: EvidenceLevel, patch_depth: Float[Tensor, "B N P"]) -> list[Float[Tensor, "B T _ _"]]:
    """Return the depth of every pixel in float32: the network's, corrected to the depth of patch centers."""
    return evidence.corrected_depth(upsample_patches(evidence, patch_depth))


def _upsample(view: ViewPrediction, ratio: Float[Tensor, "B T P"]) -> Float[Tensor, "B T H W"]:
    rows, columns = view.grid
    of_patches = ratio[..., : rows * columns].log().reshape(-1, 1, rows, columns).to(view.depth)
    correction = functional.interpolate(of_patches, size=view.size, mode="bilinear", align_corners=False)
    return torch.unflatten(correction[:, 0], 0, ratio.shape[:2])


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


class HeldOutFit(NamedTuple):
    """Support of cameras and depth by held-out patches, of each scene.

    `significance` is in standard deviations above chance; `support` compares two results on the same patches.
    """

    support: Float[Tensor, " B"]
    significance: Float[Tensor, " B"]

    def is_better(self, start: "HeldOutFit", significance: float) -> Bool[Tensor, " B"]:
        """Return whether these cameras are supported, and better than those at the start."""
        return (self.significance >= significance) & (self.support > start.support)


def held_out_patches(views: Sequence[ViewPrediction], num_times: int) -> Bool[Tensor, "N P"]:
    """Return the mask of the patches that an adjustment does not use; on the CPU, as sizes are."""
    masks, most = [], max(view.grid[0] * view.grid[1] for view in views)
    for view in views:
        rows, columns = (torch.arange(number) for number in view.grid)
        held = (rows[:, None] + _STEP * columns) % _PERIOD == 0
        masks.append(functional.pad(held.flatten(), (0, most - held.numel())))
    return torch.stack(masks).repeat(num_times, 1)


def without_patches(correspondences: Correspondences, held: Bool[Tensor, "N P"]) -> Correspondences:
    """Return the correspondences with weight 0 for some patches."""
    return replace(correspondences, weight=correspondences.weight * ~held.to(correspondences.weight.device)[:, None])


def measure_held_out(
    evidence: EvidenceLevel, held: Bool[Tensor, "N P"], cameras: Cameras, patch_depth: Float[Tensor, "B N P"]
) -> HeldOutFit:
    """Return the agreement of held-out patches under cameras [B, N] and depth.

    Of the images of a rig, peaks of correlation at the predicted places count, among all peaks of the search around
    them. Without images, and for a single view, it is the agreement of the network's matches.
    """
    images, num_times = evidence.comparable_images, evidence.num_times
    if images is None:
        return _agreement_of_matches(evidence, held, cameras, patch_depth)
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
    return HeldOutFit(support, support / deviation)


def _agreement_of_matches(
    evidence: EvidenceLevel, held: Bool[Tensor, "N P"], cameras: Cameras, patch_depth: Float[Tensor, "B N P"]
) -> HeldOutFit:
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
    return HeldOutFit(support, support / total / _SHARE_PER_DEVIATION)
