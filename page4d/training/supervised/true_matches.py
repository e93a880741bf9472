"""Ground-truth correspondences of patch centres in other images of a capture."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, project
from page4d.geometry.rigid import transform_points
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import target_images
from page4d.training.supervised.targets import Targets

_DEPTH_TOLERANCE = 0.03
"""Relative difference of depth up to which two pixels show the same surface."""

_OCCLUSION_MARGIN = 0.1
"""Relative difference of depth from which a point is occluded."""


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


def bilinear_weights(position: Float[Tensor, "*points 2"], grid: tuple[int, int]) -> Float[Tensor, "*points P"]:
    """Return bilinear weights of the up to four patch centres around each position (units of patches)."""
    rows, columns = grid
    x = position[..., 0:1] - 0.5 - torch.arange(columns, device=position.device)
    y = position[..., 1:2] - 0.5 - torch.arange(rows, device=position.device)
    weight_x, weight_y = functional.relu(1 - x.abs()), functional.relu(1 - y.abs())
    weights = (weight_y[..., :, None] * weight_x[..., None, :]).flatten(-2)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-6)
