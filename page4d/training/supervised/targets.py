"""Training targets: ground truth in the frame of the reference camera and the unit of the scene, and its matches."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, project, unproject
from page4d.geometry.pose_encoding import encode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.ground_truth import GroundTruth
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import target_images

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
    truth: GroundTruth,
    scene_unit: SceneUnit = SceneUnit.MEAN_DISTANCE,
    reference: Int[Tensor, " B"] | None = None,
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
