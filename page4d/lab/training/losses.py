"""Targets and losses of supervised training, in float32.

Every loss is a mean over pixels or patches with known ground truth, in the frame of the reference camera and the unit
of the scene.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, decode_pose, encode_pose, normalize_pixels, project, unproject
from page4d.geometry.transforms import invert_rigid, scale_translations, transform_points
from page4d.io.json_records import config_record
from page4d.lab.training.schedule import Fraction
from page4d.networks.config_parts import MatchTarget
from page4d.networks.inputs.known_cameras import patch_directions
from page4d.networks.inputs.matching import Matches, target_images
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth

_MIN_UNIT = 1e-6

_DEPTH_TOLERANCE = 0.03
"""Relative difference of depth up to which two pixels show the same surface."""

_OCCLUSION_MARGIN = 0.1
"""Relative difference of depth from which a point is occluded."""


class SceneUnit(StrEnum):
    """Normalization of the scale of a scene, which images do not determine."""

    MEAN_DISTANCE = "mean-distance"
    """Mean distance of all known points from the first camera, as in VGGT."""

    TYPICAL_DEPTH = "typical-depth"
    """Geometric mean of all known depths, robust to distant ground: it removes the scale from log-depth errors."""

    TRUTH = "truth"
    """The unit of the ground truth, for networks that predict metres."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Ground truth in the frame of the reference camera and in the unit of training."""

    cameras: Cameras
    pose_encoding: Float[Tensor, "B T V 9"]
    depth: Float[Tensor, "B T V H W"]
    points: Float[Tensor, "B T V H W 3"]
    known: Bool[Tensor, "B T V H W"]
    """Pixels with known depth."""
    dynamic: Bool[Tensor, "B T V H W"] | None
    unit: Float[Tensor, " B"]
    """Length of one unit of training."""


def targets_of(
    truth: GroundTruth, scene_unit: SceneUnit = SceneUnit.MEAN_DISTANCE, reference: Int[Tensor, " B"] | None = None
) -> Targets:
    """Transform ground truth to the frame and unit of training, in float32.

    The frame is that of the camera of the `reference` image, counted by instants, then views; the first by default. A
    scene without known depth keeps its unit.

    Source: Wang et al. (2025), VGGT, section 3.3, "ground truth coordinate normalisation".
    """
    known = truth.valid & (truth.depth > 0)
    world_to_camera = truth.cameras.world_to_camera.to(torch.float64)
    chosen = torch.zeros(len(known), dtype=torch.int64, device=known.device) if reference is None else reference
    origin = world_to_camera.flatten(1, 2)[torch.arange(len(chosen), device=known.device), chosen]
    relative = world_to_camera @ invert_rigid(origin)[:, None, None]
    intrinsics = truth.cameras.intrinsics.to(torch.float64)
    lifted = unproject(truth.depth, intrinsics.to(truth.depth.dtype))
    points = transform_points(invert_rigid(relative).to(lifted.dtype), lifted)
    if scene_unit is SceneUnit.TRUTH:
        unit = torch.ones_like(truth.depth[:, 0, 0, 0, 0])
    elif scene_unit is SceneUnit.MEAN_DISTANCE:
        unit = _mean(points.norm(dim=-1), known)
    else:
        unit = _mean(torch.where(known, truth.depth, 1).log(), known).exp()
    unit = torch.where(unit > _MIN_UNIT, unit, 1)
    scaled = relative.clone()
    scaled[..., :3, 3] = relative[..., :3, 3] / unit.to(relative.dtype)[:, None, None, None]
    cameras = Cameras(world_to_camera=scaled, intrinsics=intrinsics, image_size=truth.cameras.image_size)
    return Targets(
        cameras=cameras,
        pose_encoding=encode_pose(cameras).float(),
        depth=truth.depth / unit[:, None, None, None, None],
        points=points / unit[:, None, None, None, None, None],
        known=known,
        dynamic=truth.dynamic,
        unit=unit,
    )


@dataclass(frozen=True, kw_only=True)
class TrueCorrespondences:
    """Positions in units of patches, from the top-left corner of the target image, and their visibility.

    Between instants only static points correspond. `hidden` points lie outside the image or are occluded; points that
    are neither seen nor hidden are ignored.
    """

    position: Float[Tensor, "B T V G P 2"]
    seen: Bool[Tensor, "B T V G P"]
    hidden: Bool[Tensor, "B T V G P"]


def true_correspondences(targets: Targets, patch_size: int, kinds: tuple[MatchTarget, ...]) -> TrueCorrespondences:
    """Project the centre pixels of patches into the target images by true depth and cameras."""
    middle = patch_size // 2
    inner = slice(middle, None, patch_size)
    points = targets.points[:, :, :, inner, inner].flatten(3, 4)
    known = targets.known[:, :, :, inner, inner].flatten(3)
    static = None if targets.dynamic is None else ~targets.dynamic[:, :, :, inner, inner].flatten(3)
    positions, seen, hidden = [], [], []
    for kind in kinds:
        times, views = target_images(kind, points.shape[1], points.shape[2], points.device)
        position, visible, occluded = _project_into(points, targets, targets.cameras[:, times, views], times, views)
        usable, unseen = known & visible, known & occluded
        if static is not None and not kind.at_same_instant and points.shape[1] > 1:
            usable, unseen = usable & static, unseen & static
        # With an even patch size the projected pixel is half a pixel off the patch centre.
        positions.append((position - 0.5 * (1 - patch_size % 2)) / patch_size)
        seen.append(usable)
        hidden.append(unseen)
    return TrueCorrespondences(
        position=torch.stack(positions, dim=3), seen=torch.stack(seen, dim=3), hidden=torch.stack(hidden, dim=3)
    )


def bilinear_weights(position: Float[Tensor, "*points 2"], grid: tuple[int, int]) -> Float[Tensor, "*points P"]:
    """Return bilinear weights of the up to four patch centres around each position (units of patches)."""
    rows, columns = grid
    x = position[..., 0:1] - 0.5 - torch.arange(columns, device=position.device)
    y = position[..., 1:2] - 0.5 - torch.arange(rows, device=position.device)
    weight_x, weight_y = functional.relu(1 - x.abs()), functional.relu(1 - y.abs())
    weights = (weight_y[..., :, None] * weight_x[..., None, :]).flatten(-2)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-6)


def _mean(values: Float[Tensor, "B T V H W"], known: Bool[Tensor, "B T V H W"]) -> Float[Tensor, " B"]:
    return (values * known).sum(dim=(1, 2, 3, 4)) / known.sum(dim=(1, 2, 3, 4)).clamp(min=1)


def _project_into(
    points: Float[Tensor, "B T V P 3"], targets: Targets, cameras: Cameras, times: Tensor, views: Tensor
) -> tuple[Float[Tensor, "B T V P 2"], Bool[Tensor, "B T V P"], Bool[Tensor, "B T V P"]]:
    """Project points into one image each; return pixels, and whether the points are visible or hidden there."""
    height, width = targets.depth.shape[-2:]
    local = transform_points(cameras.world_to_camera.to(points.dtype), points)
    pixels, depth = project(local, cameras.intrinsics.to(points.dtype))
    inside = (depth > 0) & (pixels >= 0).all(dim=-1) & (pixels[..., 0] < width) & (pixels[..., 1] < height)
    pixels = torch.where(inside[..., None], pixels, 0)
    column, row = pixels[..., 0].long(), pixels[..., 1].long()
    surface = targets.depth[:, times, views].flatten(3).gather(3, row * width + column)
    seen = inside & ((surface - depth).abs() < _DEPTH_TOLERANCE * depth)
    return pixels, seen, ~inside | ((surface > 0) & (depth > (1 + _OCCLUSION_MARGIN) * surface))


_MIN_PROJECTED_DEPTH = 0.05
_MAX_DISTANCE = 1.0
"""Reprojection errors are clamped to this, in half long sides, and have no gradient beyond it."""


def match_probability_loss(matches: Matches, true: TrueCorrespondences, grid: tuple[int, int]) -> Tensor:
    """Return the cross-entropy of match probabilities with bilinear targets; hidden patches should have no match.

    Hidden and seen patches have equal weight.

    Source: van den Oord et al. (2018), InfoNCE, eq. 4, with all cells of the other image as candidates.
    """
    assert matches.likelihoods is not None
    cell, unseen = matches.likelihoods.cell.float(), matches.likelihoods.unseen.float()
    finer = round((cell.shape[-1] / (grid[0] * grid[1])) ** 0.5)
    weights = bilinear_weights(true.position * finer, (grid[0] * finer, grid[1] * finer))
    entropy = torch.where(true.seen, -(weights * cell).sum(dim=-1), torch.where(true.hidden, -unseen, 0))
    return entropy.sum() / (true.seen | true.hidden).sum().clamp(min=1)


def match_position_loss(matches: Matches, true: TrueCorrespondences, grid: tuple[int, int]) -> Tensor:
    """Return the mean error of expected positions, clamped to one patch: larger errors are wrong matches."""
    error = (matches.expected.float() - centered(true.position, grid)) * (max(grid) / 2)
    return mean_over(_smooth_norm(error, 0.1).clamp(max=1.0), true.seen)


def reprojection_loss(
    depth: Float[Tensor, "B T V H W"],
    pose_encoding: Float[Tensor, "B T V 9"],
    matches: Matches,
    true: TrueCorrespondences,
    grid: tuple[int, int],
) -> Tensor:
    """Return the reprojection error of patches by predicted depth and cameras, in half long sides, clamped.

    It couples depth, poses and focal lengths; ground truth enters by the target positions only.

    Source: Triggs et al. (1999), "Bundle Adjustment", section 2: the reprojection error.
    """
    size = (depth.shape[-2], depth.shape[-1])
    patch = size[0] // grid[0]
    middle = patch // 2
    encoding = pose_encoding.float()
    encoding = torch.cat([encoding[..., :7], encoding[..., 7:].clamp(0.2, 2.6)], dim=-1)  # fields of view in rad
    cameras = decode_pose(encoding, size)
    inner = slice(middle, None, patch)
    sampled = depth.float()[:, :, :, inner, inner].flatten(3)
    y, x = (torch.arange(count, device=depth.device) * patch + middle + 0.5 for count in grid)
    pixels = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    plane = normalize_pixels(pixels.expand(*sampled.shape, 2), cameras.intrinsics)
    points = functional.pad(plane, (0, 1), value=1.0) * sampled[..., None]
    world = transform_points(invert_rigid(cameras.world_to_camera), points)
    errors = []
    for index, target in enumerate(matches.targets):
        times, views = target_images(target, sampled.shape[1], sampled.shape[2], depth.device)
        other = cameras[:, times, views]
        local = transform_points(other.world_to_camera, world)
        local = torch.cat([local[..., :2], local[..., 2:].clamp(min=_MIN_PROJECTED_DEPTH)], dim=-1)
        position = (project(local, other.intrinsics)[0] - 0.5 * (1 - patch % 2)) / patch
        errors.append(centered(position, grid) - centered(true.position[..., index, :, :], grid))
    distance = _smooth_norm(torch.stack(errors, dim=3), 0.05)
    return mean_over(distance.clamp(max=_MAX_DISTANCE), true.seen)


def centered(position: Float[Tensor, "*points 2"], grid: tuple[int, int]) -> Float[Tensor, "*points 2"]:
    """Convert positions in patches from the corner to the coordinates of `Matches`."""
    rows, columns = grid
    return (position - position.new_tensor([columns / 2, rows / 2])) / (max(grid) / 2)


def _smooth_norm(offset: Float[Tensor, "*points 2"], radius: float) -> Float[Tensor, "*points"]:
    """Return the norm, smoothed at 0 within a radius."""
    return (offset.square().sum(dim=-1) + radius**2).sqrt() - radius


_MIN_DEPTH = 1e-4
_GRADIENT_STEPS = (1, 2, 4)
"""Distances in pixels of the depth gradient loss."""


_Weight = Annotated[float, Field(ge=0, le=1e6)]


@config_record("losses")
class LossConfig:
    """Weights of the parts; parts without a prediction or ground truth are left out.

    `confidence` is the reward of log-confidence, `refinement` the factor between the weights of consecutive
    iterations of the camera head, `moving_weight` the weight of moving pixels, which are few.
    """

    rotation: _Weight = 2.0
    translation: _Weight = 1.0
    focal: _Weight = 1.0
    refinement: Fraction = 0.6
    depth: _Weight = 1.0
    gradient: _Weight = 0.5
    points: _Weight = 1.0
    confidence: _Weight = 0.2
    rays: _Weight = 1.0
    match_probability: _Weight = 0.3
    match_position: _Weight = 0.2
    reprojection: _Weight = 0.3
    mask: _Weight = 1.0
    motion: _Weight = 1.0
    moving_weight: _Weight = 3.0
    unit: SceneUnit = SceneUnit.MEAN_DISTANCE
    """Unit of depth and translations."""


def losses(output: NetworkOutput, truth: GroundTruth, config: LossConfig) -> dict[str, Tensor]:
    """Return the unweighted parts by name, and their weighted sum as "total".

    Predictions are in the frame of the reference camera and in the unit of the scene: see `targets_of`. Those of a
    frame head are in any frame, and in any unit unless the unit is that of the ground truth.
    """
    targets = targets_of(truth, config.unit, output.reference)
    if output.camera_to_world is not None:
        output = in_first_frame(output, targets, with_scale=config.unit is not SceneUnit.TRUTH)
    parts: dict[str, Tensor] = {}
    if output.pose_encoding_iterations:
        parts |= camera_losses(output.pose_encoding_iterations, targets.pose_encoding, config.refinement)
    if output.depth is not None:
        log_depth, target = (depth.clamp(min=_MIN_DEPTH).log() for depth in (output.depth.float(), targets.depth))
        error = (log_depth - target) * targets.known
        confidence = torch.ones_like(error) if output.depth_confidence is None else output.depth_confidence
        parts["depth"] = confidence_weighted(error.abs(), confidence, targets.known, config.confidence)
        parts["gradient"] = gradient_loss(error, targets.known)
    if output.points is not None and output.points_confidence is not None:
        distance = (output.points.float() - targets.points).norm(dim=-1) / targets.depth.clamp(min=_MIN_DEPTH)
        parts["points"] = confidence_weighted(
            distance * targets.known, output.points_confidence, targets.known, config.confidence
        )
    if output.rays is not None:
        parts["rays"] = ray_loss(output.rays, targets)
    if output.matches is not None:
        grid = _grid(output, targets)
        true = true_correspondences(targets, targets.depth.shape[-2] // grid[0], output.matches.targets)
        parts |= _match_losses(output, true, grid)
    if output.dynamic_logit is not None and targets.dynamic is not None and targets.dynamic.shape[1] > 1:
        parts["mask"] = mask_loss(output.dynamic_logit, targets.dynamic, truth.valid, config.moving_weight)
        if output.motion_logit is not None:
            parts["motion"] = motion_loss(output.motion_logit, targets.dynamic & truth.valid, truth.valid)
    parts["total"] = torch.stack([getattr(config, name) * value for name, value in parts.items()]).sum()
    return parts


def motion_losses(output: NetworkOutput, truth: GroundTruth) -> dict[str, Tensor]:
    """Return the loss of a motion head alone, as "motion" and "total"; 0 without ground truth of motion."""
    assert output.motion_logit is not None
    loss = output.motion_logit.sum() * 0
    if truth.dynamic is not None:
        loss = motion_loss(output.motion_logit, truth.dynamic & truth.valid, truth.valid)
    return {"motion": loss, "total": loss}


def in_first_frame(output: NetworkOutput, targets: Targets, *, with_scale: bool) -> NetworkOutput:
    """Bring the output of a frame head to the frame of the first camera, with its pose encoding.

    With scale, the unit is the one in which the geometric mean of depth is the true one. Focal lengths are fitted to
    points, which have a loss: those of the encoding are the true ones.
    """
    assert output.world_to_camera is not None
    assert output.depth is not None
    assert output.points is not None
    scale = torch.ones_like(targets.unit)
    if with_scale:
        logs = [depth.detach().float().clamp(min=_MIN_DEPTH).log() for depth in (targets.depth, output.depth)]
        known = targets.known.flatten(1)
        scale = (((logs[0] - logs[1]).flatten(1) * known).sum(1) / known.sum(1).clamp(min=1)).exp()
    first = output.world_to_camera[:, :1, :1]
    relative = scale_translations(output.world_to_camera @ invert_rigid(first), scale[:, None, None])
    encoding = encode_pose(replace(targets.cameras, world_to_camera=relative))
    points = transform_points(first.to(output.points.dtype), output.points)
    return replace(
        output,
        pose_encoding=encoding,
        pose_encoding_iterations=(encoding,),
        depth=output.depth * scale[:, None, None, None, None],
        points=points * scale[:, None, None, None, None, None],
    )


def camera_losses(
    iterations: tuple[Float[Tensor, "B T V 9"], ...], true: Float[Tensor, "B T V 9"], refinement: float
) -> dict[str, Tensor]:
    """Return Huber losses of quaternion and translation and the L1 loss of log focal length, over all iterations.

    Source: Wang et al. (2025), VGGT, eq. 2, with the weights of iterations of Teed & Deng (2020), RAFT, eq. 7.
    """
    parts: dict[str, Tensor] = {}
    weights = [refinement**later for later in reversed(range(len(iterations)))]
    for weight, predicted in zip(weights, iterations, strict=True):
        pose = predicted.float()
        sign = torch.where((pose[..., 3:7] * true[..., 3:7]).sum(dim=-1, keepdim=True) < 0, -1.0, 1.0)
        found = {
            "rotation": _huber(pose[..., 3:7] - sign * true[..., 3:7]).sum(dim=-1).mean(),
            "translation": _huber(pose[..., :3] - true[..., :3]).sum(dim=-1).mean(),
            "focal": (_log_tangent(pose[..., 7:]) - _log_tangent(true[..., 7:])).abs().mean(),
        }
        for name, value in found.items():
            parts[name] = parts.get(name, 0) + weight / sum(weights) * value
    return parts


def confidence_weighted(
    error: Float[Tensor, "*pixels"],
    confidence: Float[Tensor, "*pixels"],
    known: Bool[Tensor, "*pixels"],
    reward: float,
) -> Tensor:
    """Return the mean of error * confidence - reward * log(confidence): best at confidence reward / error.

    Source: Kendall & Gal (2017), eq. 8, in the form of Wang et al. (2024), DUSt3R, eq. 4.
    """
    return mean_over(error * confidence.float() - reward * confidence.float().log(), known)


def gradient_loss(error: Float[Tensor, "*images H W"], known: Bool[Tensor, "*images H W"]) -> Tensor:
    """Return the gradient loss: the mean difference of the log-depth error between pixels at several distances.

    Source: Li & Snavely (2018), MegaDepth, eq. 3.
    """
    parts = []
    for step in _GRADIENT_STEPS:
        for axis in (-1, -2):
            length = error.shape[axis] - step
            if length > 0:
                near, far = error.narrow(axis, 0, length), error.narrow(axis, step, length)
                both = known.narrow(axis, 0, length) & known.narrow(axis, step, length)
                parts.append(mean_over((far - near).abs(), both))
    return torch.stack(parts).mean() if parts else error.sum() * 0


def ray_loss(rays: Float[Tensor, "B T V rows columns 3"], targets: Targets) -> Tensor:
    """Return the mean distance between predicted and true unit directions."""
    grid = (rays.shape[3], rays.shape[4])
    true = patch_directions(targets.cameras.intrinsics, grid, targets.depth.shape[-2] // grid[0])
    return (rays.flatten(3, 4).float() - true.float()).norm(dim=-1).mean()


def mask_loss(
    logit: Float[Tensor, "B T V rows columns"],
    dynamic: Bool[Tensor, "B T V H W"],
    valid: Bool[Tensor, "B T V H W"],
    moving_weight: float,
) -> Tensor:
    """Return the weighted cross-entropy plus one minus the Dice coefficient.

    Source: Milletari et al. (2016), V-Net, section 3, for the Dice coefficient.
    """
    rows, columns = logit.shape[-2:]
    sides = (dynamic.shape[-2] // rows, dynamic.shape[-1] // columns)

    def pooled(mask: Tensor) -> Tensor:
        return functional.avg_pool2d(mask.float().flatten(0, 2)[:, None], sides)[:, 0].reshape(logit.shape)

    share, weight = pooled(dynamic & valid), pooled(valid)
    entropy = functional.binary_cross_entropy_with_logits(
        logit.float(), share, weight=weight, pos_weight=logit.new_tensor(moving_weight, dtype=torch.float32)
    )
    probability = logit.float().sigmoid() * weight
    overlap = 2 * (probability * share).sum() / (probability.square().sum() + share.square().sum()).clamp(min=1e-3)
    return entropy + torch.where(share.sum() > 0, 1 - overlap, 0.0)


def motion_loss(
    logit: Float[Tensor, "B T V H W"], moving: Bool[Tensor, "B T V H W"], valid: Bool[Tensor, "B T V H W"]
) -> Tensor:
    """Return the cross-entropy plus one minus the soft IoU of moving pixels, over scenes with motion.

    Source: Rahman & Wang (2016), "Optimizing Intersection-Over-Union in Deep Neural Networks", eq. 2 to 4.
    """
    true, known = moving.float(), valid.float()
    entropy = functional.binary_cross_entropy_with_logits(logit.float(), true, weight=known)
    probability = logit.float().sigmoid() * known
    both = (probability * true).flatten(1).sum(dim=1)
    either = (probability + true).flatten(1).sum(dim=1) - both
    iou_loss = 1 - both / either.clamp(min=1.0)
    return entropy + torch.where(true.flatten(1).any(dim=1), iou_loss, 0).mean()


def mean_over(values: Tensor, known: Tensor) -> Tensor:
    """Return the mean over known values; 0, with gradients of 0, if there are none."""
    return torch.where(known, values, 0).sum() / known.sum().clamp(min=1)


def _match_losses(output: NetworkOutput, true: TrueCorrespondences, grid: tuple[int, int]) -> dict[str, Tensor]:
    assert output.matches is not None
    parts = {
        "match_probability": match_probability_loss(output.matches, true, grid),
        "match_position": match_position_loss(output.matches, true, grid),
    }
    if output.depth is not None and output.pose_encoding is not None:
        parts["reprojection"] = reprojection_loss(output.depth, output.pose_encoding, output.matches, true, grid)
    return parts


def _grid(output: NetworkOutput, targets: Targets) -> tuple[int, int]:
    """Return rows and columns of patches, from their number and the aspect ratio of the images."""
    assert output.matches is not None
    height, width = targets.depth.shape[-2:]
    rows = round((output.matches.expected.shape[-2] * height / width) ** 0.5)
    return rows, output.matches.expected.shape[-2] // rows


def _huber(difference: Tensor) -> Tensor:
    """Return the Huber loss with threshold 0.05."""
    return functional.smooth_l1_loss(difference, torch.zeros_like(difference), beta=0.05, reduction="none")


def _log_tangent(field_of_view: Tensor) -> Tensor:
    """Return log tan of half the field of view: the log of half the image over the focal length."""
    return (field_of_view.clamp(0.1, 2.9) / 2).tan().log()
