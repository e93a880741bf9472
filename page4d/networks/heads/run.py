"""Prediction heads, built from their configurations and run on the output of the trunk."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import Cameras
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import (
    AnyCameraHeadConfig,
    CameraHeadConfig,
    CameraMLPConfig,
    CameraTransformerConfig,
    DPTHeadConfig,
)
from page4d.networks.encoders.base import PatchTokens
from page4d.networks.heads.camera import CameraHead, CameraMLP, CameraTransformer
from page4d.networks.heads.dense import DenseActivation, DenseMaps, DPTHead
from page4d.networks.layers.execution import ForwardLimits, each_part
from page4d.networks.output import NetworkOutput
from page4d.networks.trunk import TrunkOutput

AnyCameraHead = CameraHead | CameraMLP | CameraTransformer


def build_camera_head(config: AnyCameraHeadConfig, dim: int) -> AnyCameraHead:
    """Build the camera head of a configuration on tokens of `dim` channels."""
    match config:
        case CameraHeadConfig():
            return CameraHead(config, dim)
        case CameraMLPConfig():
            return CameraMLP(dim)
        case CameraTransformerConfig():
            return CameraTransformer(config, dim)


def build_depth_head(config: NetworkConfig) -> DPTHead | None:
    """Build the dense head of depth of a network, if it has one."""
    head, width = config.depth_head, config.head_width
    return None if head is None else DPTHead(head, width, config.patch_size, 1, DenseActivation.EXPONENTIAL)


def build_point_head(config: NetworkConfig) -> DPTHead | None:
    """Build the dense head of points of a network, if it has one."""
    head, width = config.point_head, config.head_width
    return None if head is None else DPTHead(head, width, config.patch_size, 3, DenseActivation.INVERSE_LOG)


def run_camera_head(
    head: AnyCameraHead, special_tokens: Float[Tensor, "B T V N C"]
) -> tuple[Float[Tensor, "B T V 9"], ...]:
    """Return the pose encodings of every iteration, from all images together."""
    tokens = special_tokens.flatten(1, 2).to(dtype_of(head))
    return tuple(torch.unflatten(pose, 1, special_tokens.shape[1:3]) for pose in head(tokens))


def run_dense_head(
    head: DPTHead | None,
    config: DPTHeadConfig | None,
    trunk: TrunkOutput,
    encoded: PatchTokens,
    num_special: int,
    limits: ForwardLimits,
    *,
    rays: bool,
) -> dict[str, Tensor]:
    """Return the maps of a dense head that exist, by name; `num_special` special tokens precede the patches."""
    if head is None or config is None:
        return {}
    levels = [trunk.levels[layer].flatten(0, 2) for layer in config.layers]
    dtype = dtype_of(head)

    def of_images(chosen: slice) -> DenseMaps:
        fine = None if encoded.fine is None else encoded.fine[chosen]
        patches = [level[chosen, num_special:].to(dtype) for level in levels]
        maps: DenseMaps = head(patches, encoded.grid, fine, rays=rays)
        return maps

    parts = each_part(of_images, len(levels[0]), limits.max_images)
    leading = trunk.special_tokens.shape[:3]
    return {
        name: torch.unflatten(torch.cat([getattr(part, name) for part in parts]), 0, leading)
        for name, first in vars(parts[0]).items()
        if first is not None
    }


def output_of_heads(
    cameras: Cameras | None, iterations: tuple[Tensor, ...], depth: Mapping[str, Tensor], points: Mapping[str, Tensor]
) -> NetworkOutput:
    """Assemble the output of views of one size from cameras, pose encodings and the maps of dense heads."""
    return NetworkOutput(
        world_to_camera=None if cameras is None else cameras.world_to_camera,
        intrinsics=None if cameras is None else cameras.intrinsics,
        pose_encoding=iterations[-1] if iterations else None,
        pose_encoding_iterations=iterations,
        depth=None if "values" not in depth else depth["values"][..., 0],
        depth_confidence=depth.get("confidence"),
        points=points.get("values"),
        points_confidence=points.get("confidence"),
        sky=depth.get("sky"),
        ray_map=depth.get("rays"),
        ray_confidence=depth.get("ray_confidence"),
    )


def upsampled_probability(logit: Float[Tensor, "B T V rows columns"], patch_size: int) -> Float[Tensor, "B T V H W"]:
    """Return the probability of log-odds per patch, interpolated to pixels."""
    probability = logit.sigmoid().flatten(0, 2)[:, None]
    upsampled = functional.interpolate(
        probability, scale_factor=float(patch_size), mode="bilinear", align_corners=False
    )
    return torch.unflatten(upsampled[:, 0], 0, logit.shape[:3])


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the data type of a module's parameters."""
    return next(module.parameters()).dtype
