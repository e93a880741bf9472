"""Prediction heads, built from their configurations and run on the output of the trunk."""

import torch
from torch import Tensor, nn

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


def build_dense_head(
    config: NetworkConfig, head: DPTHeadConfig | None, value_dim: int, activation: DenseActivation
) -> DPTHead | None:
    """Build a dense head of a network, if it has this one."""
    return None if head is None else DPTHead(head, config.head_width, config.patch_size, value_dim, activation)


def run_dense_head(
    head: DPTHead | None,
    trunk: TrunkOutput,
    encoded: PatchTokens,
    num_special: int,
    limits: ForwardLimits,
    *,
    rays: bool,
) -> dict[str, Tensor]:
    """Return the maps of a dense head that exist, by name; `num_special` special tokens precede the patches."""
    if head is None:
        return {}
    levels = [trunk.levels[layer].flatten(0, 2) for layer in head.layers]
    dtype = dtype_of(head)

    def of_images(chosen: slice) -> DenseMaps:
        fine = None if encoded.fine is None else encoded.fine[chosen]
        patches = [level[chosen, num_special:].to(dtype) for level in levels]
        return head(patches, encoded.grid, fine, rays=rays)

    parts = each_part(of_images, len(levels[0]), limits.max_images)
    leading = trunk.special_tokens.shape[:3]
    return {
        name: torch.unflatten(torch.cat([getattr(part, name) for part in parts]), 0, leading)
        for name, first in vars(parts[0]).items()
        if first is not None
    }


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the data type of a module's parameters."""
    return next(module.parameters()).dtype
