"""Refinement of predicted cameras and depth by bundle adjustment and multi-view stereo."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.geometry.alignment import (
    MAX_DISAGREEMENT_DEG,
    agreeing_scale,
    baseline_ratio,
    confident,
    disagreement_deg,
)
from page4d.geometry.camera import Cameras
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.layers.execution import on_threads
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.stereo.bundle_adjustment import BundleAdjustment, Correspondences, Priors, adjust_bundle
from page4d.stereo.consensus import fuse_depth
from page4d.stereo.correspondences import guided_correspondences, network_correspondences
from page4d.stereo.descriptors import LONG_SIDE_PX, MOVING_SIDE_PX, DenseDescriptors
from page4d.stereo.edges import filter_edges
from page4d.stereo.state import (
    MIN_FOCAL_SIGNIFICANCE,
    MIN_SIGNIFICANCE,
    EvidenceLevel,
    HeldOutFit,
    Kept,
    RefinementState,
    StaticDepth,
    held_out_patches,
    measure_held_out,
    predicted_depth,
    upsample_patches,
    without_patches,
)
from page4d.stereo.sweep import sweep_features, sweep_planes
from page4d.stereo.views import ViewPrediction, stack_views, view_predictions

_SIGMA_CELLS = 0.8
"""Standard deviation of a match of confidence 1, in cells; inflated, as errors of neighbouring patches correlate."""

_PRIORS = Priors(
    rotation_rad=0.2,
    position=0.2,
    log_focal=0.15,
    log_scale=0.1,
    log_depth=0.8,
    correlation_length=0.1,
    same_camera_correlation=0.98,
    focal_correlation=0.65,
)
"""Prior on a network's predictions: about the errors of the bundled network, that of depth at confidence 1."""

_LOG_FOCAL_SINGLE_VIEW = 0.05
"""Prior sigma of the focal length of a single view: matches in time constrain it little, and with a bias."""

_LOG_SCALE_SINGLE_VIEW, _SCALE_CORRELATION = 1.0, 0.9998
"""Prior sigma of the scale of depth of a single view under known cameras, and its correlation between instants: the
network's matches shorten paths of 1 to 3 % of the depth by up to 40 %, with the same error at all instants."""

_SWEPT_DEPTH = 0.5
"""Factor on the prior sigma of log depth after the feature sweep."""

_GUIDED_REDUCTIONS = (2, 2, 1)
"""Reduction of the images in the rounds of guided matching and adjustment: cameras that are far off need the wider
reach of small images, their last correction the sharpness of whole ones. Known cameras need no first round."""

_SINGLE_VIEW_REDUCTIONS = (1, 1, 1)
"""The same of a single view under known cameras, which may move by few pixels in a chunk."""

_CONFIDENCE_POWER = 1.25
"""The prior sigma of log depth is divided by this power of the confidence."""


_MAX_LOG_SCALE_ERROR = 0.22
"""Largest difference of the log scales of cameras and of depth at which that of cameras is kept: noise of depth
changes its scale by as much."""


class Refinement(NamedTuple):
    """A refined output, and what the run records of it.

    `kept` is None without a comparison with held-out evidence. `rig_scale` is the unit of the output in that of known
    cameras, if depth was fitted to them.
    """

    output: RigOutput
    kept: Kept | None = None
    rig_scale: Float[Tensor, " B"] | None = None


Images = Float[Tensor, "B T V 3 H W"] | Sequence[Float[Tensor, "B T 3 _ _"]]
"""Of views of one size, or one tensor per view."""


def refinement_of(
    network: ViewTimeNetwork,
    output: RigOutput,
    images: Images,
    conditioning: Conditioning = NO_CONDITIONING,
    descriptors: DenseDescriptors | None = None,
    static: Sequence[StaticDepth] | None = None,
) -> Refinement:
    """Refine the output of a network, with the record of what was kept; unchanged if the network has no matching.

    Under known cameras, depth is also refined by `descriptors`, and of `static` views only where it is open.
    """
    config = network.config
    if config.matches is None:
        return Refinement(output)
    return run_refinement(
        output, config.patch_size, config.matches.finer, conditioning, images, descriptors=descriptors, static=static
    )


@on_threads(1)
@torch.no_grad()
def run_refinement(
    output: RigOutput,
    patch_size: int,
    finer: int,
    conditioning: Conditioning = NO_CONDITIONING,
    images: Images | None = None,
    sigma_cells: float = _SIGMA_CELLS,
    descriptors: DenseDescriptors | None = None,
    static: Sequence[StaticDepth] | None = None,
) -> Refinement:
    """Refine cameras and depth; unchanged without matches.

    Steps that compare pixels need `images`. Everything runs on the device of the output, which must support float64:
    cameras, depth of patches and bundle adjustment are in float64, pixels in float32. Known poses do not replace the
    adjusted ones, so that both can be compared; but depth, in the unit of the adjusted cameras, is the one that fits
    known cameras.
    """
    views = view_predictions(output, patch_size)
    pose, intrinsics = output.world_to_camera, output.intrinsics
    if not views or pose is None or intrinsics is None:
        return Refinement(output)
    priors = _priors_of(views)
    if conditioning.intrinsics is not None:
        priors, intrinsics = replace(priors, log_focal=0.0), conditioning.intrinsics
    known = conditioning.world_to_camera
    evidence = EvidenceLevel(
        views=tuple(views),
        images=None if images is None else _of_views(images, views),
        prior_cameras=_cameras(pose, intrinsics, views),
        prior_depth=stack_views([view.patch_depth for view in views]),
        known_cameras=None if known is None else _cameras(known, intrinsics, views),
        matches=network_correspondences(views, pose.shape[1], sigma_cells * patch_size / finer),
        priors=priors,
        descriptors=descriptors,
        static=None if static is None else tuple(static),
    )
    state = RefinementState(
        evidence=evidence,
        cameras=evidence.prior_cameras,
        patch_depth=evidence.prior_depth,
        log_correction=upsample_patches(evidence, evidence.prior_depth),
        rig=evidence.prior_cameras,
        scale=torch.ones_like(evidence.prior_depth[:, :1, :1]),
    )
    for step in STEPS:
        state = step(state)
    return Refinement(_apply(state, output), state.kept, state.scale[:, 0, 0] if state.rig_is_known else None)


def adjust_cameras(state: RefinementState) -> RefinementState:
    """Bundle-adjust cameras and patch depth to the network's matches, then in rounds to guided matches.

    Then held-out patches decide, scene by scene, whether the result is kept, and its focal lengths: the last round is
    repeated without them. With known poses, which replace the adjusted ones, nothing is held out, and the guided
    rounds are left to `fit_known_cameras`.
    """
    evidence = state.evidence
    cameras, depth, priors = evidence.prior_cameras, evidence.prior_depth, evidence.priors
    matches = evidence.matches
    found = adjust_bundle(cameras, depth, matches, priors)
    if evidence.known_cameras is not None:
        return state.adjusted(found)
    rounds = _rounds(evidence)
    for reduction in rounds:
        matches = _guided_correspondences(evidence, found.cameras, found.depth, reduction)
        found = adjust_bundle(cameras, depth, matches, priors, initial=found)
    held = held_out_patches(evidence.views, evidence.num_times)
    start = measure_held_out(evidence, held, cameras, depth)

    def agreement(start_of: BundleAdjustment, priors: Priors) -> HeldOutFit:
        # Continuing narrows the robust kernel to guided matches, for which the network's own are not accurate enough.
        shown, initial = without_patches(matches, held), start_of if rounds else None
        repeated = adjust_bundle(cameras, depth, shown, priors, initial=initial)
        return measure_held_out(evidence, held, repeated.cameras, repeated.depth)

    free = agreement(found, priors)
    # The prior of a single view holds its focal length.
    focal = free.is_better(start, MIN_FOCAL_SIGNIFICANCE if len(evidence.views) > 1 else MIN_SIGNIFICANCE)
    poses = focal | free.is_better(start, MIN_SIGNIFICANCE)
    adjusted = state.adjusted(found)
    if not torch.equal(poses, focal):
        fixed, initial = replace(priors, log_focal=0.0), found.with_focal_of_prior()
        poses = focal | (poses & agreement(initial, fixed).is_better(start, MIN_SIGNIFICANCE))
        found = adjust_bundle(cameras, depth, matches, fixed, initial=initial if rounds else None)
        adjusted = adjusted.chosen(focal, state.adjusted(found))
    return replace(adjusted.chosen(poses, state), kept=Kept(poses, focal))


def fit_known_cameras(state: RefinementState) -> RefinementState:
    """Fit patch depth to known cameras by a feature sweep and guided matches; skipped without poses or baseline.

    Static pixels take their known depth.
    """
    evidence, known = state.evidence, state.evidence.known_cameras
    scale = None if known is None else _scale_between(state.cameras, known)
    if known is None or scale is None:
        return state
    scale, depth = _without_wrong_cameras(state, known, scale)
    fixed, patches = replace(evidence.priors, rotation_rad=0.0, position=0.0), evidence.open_patches
    if len(evidence.views) == 1:
        fixed = replace(fixed, log_scale=_LOG_SCALE_SINGLE_VIEW, same_camera_correlation=_SCALE_CORRELATION)
    depth = depth * scale
    if patches is None or patches.shape[1]:
        depth = _fitted(known, depth, evidence.matches.of_pixels(patches), fixed, patches)
        depth = sweep_features(evidence.views, known, depth)
        tighter = replace(fixed, log_depth=_SWEPT_DEPTH * fixed.log_depth)
        for reduction in _rounds(evidence):
            guided = _guided_correspondences(evidence, known, depth, reduction, patches)
            depth = _fitted(known, depth, guided, tighter, patches)
    correction = upsample_patches(evidence, depth / scale)
    if evidence.static is not None:
        triples = zip(evidence.views, evidence.static, correction, strict=True)
        correction = tuple(
            torch.where(static.depth > 0, (static.depth / scale[..., None] / view.depth[:, :, 0]).log().to(own), own)
            for view, static, own in triples
        )
    return replace(state, log_correction=correction, rig=known, scale=scale, rig_is_known=True)


def _fitted(
    cameras: Cameras,
    depth: Float[Tensor, "B N P"],
    correspondences: Correspondences,
    priors: Priors,
    patches: Int[Tensor, "N Q"] | None,
) -> Float[Tensor, "B N P"]:
    """Return the depth of patches, that of some of them, or of all, adjusted to their correspondences."""
    if patches is None:
        return adjust_bundle(cameras, depth, correspondences, priors).depth
    index = patches.expand(len(depth), -1, -1)
    priors = replace(
        priors, log_depth=torch.as_tensor(priors.log_depth).to(depth).expand(depth.shape).gather(2, index)
    )
    found = adjust_bundle(cameras, depth.gather(2, index), correspondences, priors)
    return depth.scatter(2, index, found.depth)


def sweep_pixels(state: RefinementState) -> RefinementState:
    """Refine the depth of pixels by a plane sweep over neighbouring images, where evidence supports the cameras."""
    evidence = state.evidence
    images = evidence.comparable_images
    if images is None or not state.has_cameras:
        return state
    regions = [static.regions for static in evidence.static] if evidence.static and state.rig_is_known else None
    if regions is not None and not any(regions):
        return state
    descriptors = None
    if evidence.descriptors and state.rig_is_known:
        descriptors = evidence.descriptors.of(images, LONG_SIDE_PX if regions is None else MOVING_SIDE_PX)
    swept = sweep_planes(
        evidence.views, images, state.rig_by_time, state.rig_depth, state.rig_is_known, descriptors, regions
    )
    return state.corrected(swept).chosen(state.cameras_hold, state)


def fuse_views(state: RefinementState) -> RefinementState:
    """Make the depth maps of neighbouring views consistent, where evidence supports the cameras."""
    if len(state.evidence.views) == 1 or not state.has_cameras:
        return state
    fused = fuse_depth(state.evidence.views, state.rig_by_time, state.rig_depth)
    return state.corrected(fused).chosen(state.cameras_hold, state)


def align_edges(state: RefinementState) -> RefinementState:
    """Align depth edges with color edges."""
    evidence = state.evidence
    if evidence.images is None:
        return state
    changes = []
    for view, image, depth in zip(evidence.views, evidence.images, state.depth, strict=True):
        log_depth = depth.log().flatten(0, 1)
        filtered = filter_edges(log_depth, view.confidence.float().flatten(0, 1), image.flatten(0, 1))
        changes.append((filtered - log_depth).view_as(depth))
    return state.corrected(changes)


STEPS: tuple[Callable[[RefinementState], RefinementState], ...] = (
    adjust_cameras,
    fit_known_cameras,
    sweep_pixels,
    fuse_views,
    align_edges,
)
"""The refinement, in order."""


def _rounds(evidence: EvidenceLevel) -> tuple[int, ...]:
    """Return the reduction of the images in every round of guided matching; none without images to compare."""
    if len(evidence.views) == 1:
        return () if evidence.images is None or evidence.known_cameras is None else _SINGLE_VIEW_REDUCTIONS
    first = 0 if evidence.known_cameras is None else 1
    return _GUIDED_REDUCTIONS[first:] if evidence.comparable_images is not None else ()


def _guided_correspondences(
    evidence: EvidenceLevel,
    cameras: Cameras,
    patch_depth: Float[Tensor, "B N P"],
    reduction: int,
    patches: Int[Tensor, "N Q"] | None = None,
) -> Correspondences:
    """Return guided matches near the projections by these cameras and depths."""
    assert evidence.images is not None
    by_time, depth = cameras.by_time(evidence.num_times), predicted_depth(evidence, patch_depth)
    matches = evidence.matches.of_pixels(patches)
    return guided_correspondences(matches, evidence.views, evidence.images, by_time, depth, reduction, patches)


def _scale_between(cameras: Cameras, known: Cameras) -> Float[Tensor, "B one one"] | None:
    """Return the unit of cameras in that of known ones; None if either has no baseline."""
    scales = [baseline_ratio(*centers) for centers in zip(cameras.centers, known.centers, strict=True)]
    found = [scale for scale in scales if scale is not None]
    return torch.stack(found)[:, None, None] if len(found) == len(scales) else None


def _without_wrong_cameras(
    state: RefinementState, known: Cameras, scale: Float[Tensor, "B one one"]
) -> tuple[Float[Tensor, "B one one"], Float[Tensor, "B N P"]]:
    """Return scale and depth of patches in known cameras: where adjusted ones are wrong, of the predicted depth.

    Static pixels of known depth give the scale of the predicted one.
    """
    evidence, scale, depth = state.evidence, scale.clone(), state.patch_depth.clone()
    if evidence.static is not None:
        pairs = zip(evidence.static, evidence.views, strict=True)
        ratios = torch.cat([(static.depth / view.depth[:, :, 0]).flatten(1) for static, view in pairs], dim=1)
        of_static = ratios.where(ratios > 0, torch.nan).nanmedian(dim=1).values[:, None, None].to(scale)
        if bool(of_static.isfinite().all()):
            return of_static, evidence.prior_depth
    found, rig = state.cameras.by_time(evidence.num_times), known.by_time(evidence.num_times)
    for scene in range(len(depth)):
        poses = (cameras[scene].world_to_camera for cameras in (found, rig))
        if disagreement_deg(*poses) > MAX_DISAGREEMENT_DEG:
            maps = [view.depth[scene, :, 0] for view in evidence.views]
            masks = [confident(view.confidence[scene]) for view in evidence.views]
            agreeing = agreeing_scale(rig[scene], maps, masks)
            if agreeing is not None and abs(log(float(agreeing / scale[scene]))) > _MAX_LOG_SCALE_ERROR:
                scale[scene], depth[scene] = agreeing, evidence.prior_depth[scene]
    return scale, depth


def _cameras(pose: Tensor, intrinsics: Tensor, views: Sequence[ViewPrediction]) -> Cameras:
    """Return the cameras [B, T*V] of all images in float64, on the device of depth; the size covers every view."""
    height, width = (max(view.size[axis] for view in views) for axis in (0, 1))
    pose, intrinsics = (part.flatten(1, 2).to(views[0].depth.device, torch.float64) for part in (pose, intrinsics))
    return Cameras(world_to_camera=pose, intrinsics=intrinsics, image_size=(height, width))


def _of_views(images: Images, views: Sequence[ViewPrediction]) -> tuple[Float[Tensor, "B T 3 _ _"], ...]:
    """Return the images view by view, in float32, on the device of depth."""
    of_views = images.unbind(2) if isinstance(images, Tensor) else images
    return tuple(image.to(view.depth.device).float() for view, image in zip(views, of_views, strict=True))


def _priors_of(views: Sequence[ViewPrediction]) -> Priors:
    """Scale the depth prior by predicted confidence; assign images to cameras; tighten the focal of a single view."""
    uncertainty = stack_views([view.patch_confidence for view in views]) ** -_CONFIDENCE_POWER
    return replace(
        _PRIORS,
        log_depth=_PRIORS.log_depth * uncertainty,
        log_focal=_PRIORS.log_focal if len(views) > 1 else _LOG_FOCAL_SINGLE_VIEW,
        camera_index=torch.arange(uncertainty.shape[1]) % len(views),
    )


def _apply(state: RefinementState, output: RigOutput) -> RigOutput:
    """Return the output with refined cameras, depth and points."""
    assert output.world_to_camera is not None
    groups = output.groups
    cameras = state.cameras.by_time(state.evidence.num_times)
    poses, intrinsics = (groups.chosen(part) for part in (cameras.world_to_camera, cameras.intrinsics))
    corrections = groups.by_group(state.log_correction)
    parts = zip(output.outputs, poses, intrinsics, corrections, strict=True)
    return replace(output, outputs=tuple(_corrected(*group) for group in parts))


def _corrected(
    output: NetworkOutput,
    pose: Float[Tensor, "B T W 4 4"],
    intrinsics: Float[Tensor, "B T W 3 3"],
    log_correction: Float[Tensor, "B T W H W"],
) -> NetworkOutput:
    """Replace cameras and multiply depth; points follow their depth and camera."""
    assert output.depth is not None
    assert output.world_to_camera is not None
    factor, points = log_correction.exp(), output.points
    if points is not None:
        local = transform_points(output.world_to_camera.to(points.dtype), points) * factor[..., None]
        points = transform_points(invert_rigid(pose).to(points.dtype), local)
    return replace(output, world_to_camera=pose, intrinsics=intrinsics, depth=output.depth * factor, points=points)
