"""Prediction heads built from their configurations."""

from page4d.models.config import (
    AnyCameraHeadConfig,
    CameraHeadConfig,
    CameraMLPConfig,
    CameraTransformerConfig,
    NetworkConfig,
)
from page4d.models.heads.camera import CameraHead
from page4d.models.heads.camera_mlp import CameraMLP
from page4d.models.heads.camera_transformer import CameraTransformer
from page4d.models.heads.dpt import DenseActivation, DPTHead

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
