"""Metric depth of single images, and its transfer to predictions of arbitrary scale."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import UsageError
from page4d.models.output import NetworkOutput
from page4d.models.sky import farthest_depth, is_sky, quantile

_MIN_METRIC = 1e-2
_MIN_DEPTH = 1e-3
_MAX_SKY = 200.0


def metric_depth(
    depth: Float[Tensor, "*batch H W"], intrinsics: Float[Tensor, "*batch 3 3"], metric_focal: float
) -> Float[Tensor, "*batch H W"]:
    """Return depth in metres from that for a focal length of `metric_focal` px, to which it is proportional.

    Source: Yin et al. (2023), Metric3D, section 3.1; the constant 300 px of the public Depth Anything 3 code
    (reference facts).
    """
    focal = (intrinsics[..., 0, 0] + intrinsics[..., 1, 1]) / 2
    return depth * (focal / metric_focal).to(depth)[..., None, None]


def depth_in_metres(
    output: NetworkOutput, intrinsics: Float[Tensor, "B T V 3 3"], metric_focal: float
) -> NetworkOutput:
    """Convert the depth of an output, if there is one, to metres for known intrinsics."""
    depth = output.depth
    return output if depth is None else replace(output, depth=metric_depth(depth, intrinsics, metric_focal))


class MetricAlignment(NamedTuple):
    """Predictions in metres, and the factor to them of each scene."""

    depth: Float[Tensor, "B T V H W"]
    confidence: Float[Tensor, "B T V H W"]
    scale: Float[Tensor, " B"]


def align_to_metric(
    depth: Float[Tensor, "B T V H W"],
    confidence: Float[Tensor, "B T V H W"],
    metric: Float[Tensor, "B T V H W"],
    sky: Float[Tensor, "B T V H W"],
) -> MetricAlignment:
    """Scale depth of arbitrary unit to metric depth of the same images by least squares over all of a scene.

    Used are pixels outside the sky whose confidence is at least the median there, with a metric depth above 0.01 m
    and a depth above 0.001. The sky gets the 0.99 quantile of the depth outside it, at most 200 m, and confidence 1.
    A scene without such pixels keeps its unit.

    Source: the nested network of the public Depth Anything 3 code (reference facts).
    """
    groups = [_align_scene(*scene) for scene in zip(depth, confidence, metric, is_sky(sky), strict=True)]
    return MetricAlignment(*(torch.stack(parts) for parts in zip(*groups, strict=True)))


def _align_scene(depth: Tensor, confidence: Tensor, metric: Tensor, in_sky: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    solid = ~in_sky
    used = solid & (metric > _MIN_METRIC) & (depth > _MIN_DEPTH)
    if solid.any():
        used &= confidence >= quantile(confidence[solid], 0.5)
    known = depth[used].double()
    scale = (
        (metric[used].double() @ known) / (known @ known) if len(known) else depth.new_ones((), dtype=torch.float64)
    )
    scaled = depth * scale.to(depth)
    farthest = farthest_depth(scaled, in_sky)
    if farthest is not None:
        scaled = torch.where(in_sky, farthest.clamp(max=_MAX_SKY), scaled)
        confidence = torch.where(in_sky, 1.0, confidence)
    return scaled, confidence, scale.to(depth)


def scale_to_metric(output: NetworkOutput, single: NetworkOutput, metric_focal: float) -> NetworkOutput:
    """Return predictions in metres, by the depth and sky that a metric network predicts for the same images.

    `single` is its output without known intrinsics; those of `output` give it its unit. Depth, points, cameras and
    the origins of the ray map are scaled by the factor of `align_to_metric`. Pose encodings are left out.

    Raises:
        UsageError: if `output` has no cameras or no depth with confidence, or `single` no depth and sky.

    Source: the nested network of the public Depth Anything 3 code (reference facts).
    """
    depth, confidence = output.depth, output.depth_confidence
    poses, intrinsics = output.world_to_camera, output.intrinsics
    if depth is None or confidence is None or poses is None or intrinsics is None:
        raise UsageError("the network predicts no cameras, or no depth with confidence", "use an any-view network")
    if single.depth is None or single.sky is None:
        raise UsageError("the metric network predicts no depth or no sky", "use da3-metric")
    metric = metric_depth(single.depth, intrinsics, metric_focal)
    aligned = align_to_metric(depth, confidence, metric, single.sky)
    factor = aligned.scale[:, None, None, None]
    placed = poses.clone()
    placed[..., :3, 3] *= factor.to(poses)
    rays = output.ray_map
    if rays is not None:
        rays = torch.cat([rays[..., :3], rays[..., 3:] * factor[..., None, None].to(rays)], dim=-1)
    return replace(
        output,
        points=None if output.points is None else output.points * factor[..., None, None, None].to(output.points),
        depth=aligned.depth,
        depth_confidence=aligned.confidence,
        world_to_camera=placed,
        pose_encoding=None,
        pose_encoding_iterations=(),
        ray_map=rays,
        sky=single.sky,
    )
