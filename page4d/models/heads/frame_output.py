"""Network output of the frame head."""

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import fit_intrinsics
from page4d.geometry.transforms import invert_rigid, scale_translations, transform_points
from page4d.layers.execution import ForwardLimits, each_part
from page4d.models.heads.frame import FrameHead
from page4d.models.output import NetworkOutput
from page4d.models.size_groups import Grid


def run_frame_head(
    head: FrameHead,
    level: Float[Tensor, "B T V N C"],
    grid: Grid,
    limits: ForwardLimits,
    scale: Float[Tensor, " B"] | None,
) -> NetworkOutput:
    """Predict from all tokens of the last layer: depth is the z of local points, points are these in the world.

    `scale` multiplies all lengths.
    """
    leading = level.shape[:3]
    tokens = level.flatten(0, 2).to(head.pose.translation.weight.dtype)
    parts = each_part(lambda part: head(tokens[part], grid), len(tokens), limits.max_images)
    local_points = torch.unflatten(torch.cat([part.local_points for part in parts]), 0, leading)
    logit = torch.unflatten(torch.cat([part.confidence_logit for part in parts]), 0, leading)
    camera_to_world = torch.unflatten(torch.cat([part.camera_to_world for part in parts]), 0, leading)
    if scale is not None:
        local_points = local_points * scale[:, None, None, None, None, None]
        camera_to_world = scale_translations(camera_to_world, scale[:, None, None])
    confidence = 1 + logit.exp()
    return NetworkOutput(
        world_to_camera=invert_rigid(camera_to_world),
        intrinsics=fit_intrinsics(local_points.to(torch.float64), logit.sigmoid().to(torch.float64)),
        depth=local_points[..., 2],
        depth_confidence=confidence,
        points=transform_points(camera_to_world.to(local_points.dtype), local_points),
        points_confidence=confidence,
        local_points=local_points,
        confidence_logits=logit,
        camera_to_world=camera_to_world,
        metric_scale=scale,
    )
