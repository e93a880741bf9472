"""Training targets: ground truth in the frame of the first camera and in the unit of the scene."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.camera import Cameras, unproject
from page4d.geometry.pose_encoding import encode_pose
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.ground_truth import GroundTruth

_MIN_UNIT = 1e-6


class SceneUnit(StrEnum):
    """Normalization of the scale of a scene, which images do not determine."""

    MEAN_DISTANCE = "mean-distance"
    """Mean distance of all known points from the first camera, as in VGGT."""

    TYPICAL_DEPTH = "typical-depth"
    """Geometric mean of all known depths, robust to distant ground: it removes the scale from log-depth errors."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Ground truth in the frame of the first camera and in the unit of training."""

    cameras: Cameras
    pose_encoding: Float[Tensor, "B T V 9"]
    depth: Float[Tensor, "B T V H W"]
    points: Float[Tensor, "B T V H W 3"]
    known: Bool[Tensor, "B T V H W"]
    """Pixels with known depth."""
    dynamic: Bool[Tensor, "B T V H W"] | None
    unit: Float[Tensor, " B"]
    """Length of one unit of training."""


def targets_of(truth: GroundTruth, scene_unit: SceneUnit = SceneUnit.MEAN_DISTANCE) -> Targets:
    """Transform ground truth to the frame and unit of training, in float32.

    A scene without known depth keeps its unit.

    Source: Wang et al. (2025), VGGT, section 3.3, "ground truth coordinate normalisation".
    """
    known = truth.valid & (truth.depth > 0)
    world_to_camera = truth.cameras.world_to_camera.to(torch.float64)
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    intrinsics = truth.cameras.intrinsics.to(torch.float64)
    lifted = unproject(truth.depth, intrinsics.to(truth.depth.dtype))
    points = transform_points(invert_rigid(relative).to(lifted.dtype), lifted)
    if scene_unit is SceneUnit.MEAN_DISTANCE:
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


def _mean(values: Float[Tensor, "B T V H W"], known: Bool[Tensor, "B T V H W"]) -> Float[Tensor, " B"]:
    return (values * known).sum(dim=(1, 2, 3, 4)) / known.sum(dim=(1, 2, 3, 4)).clamp(min=1)
