"""Prediction heads built from their configurations."""

from page4d.models.config import AnyCameraHeadConfig, CameraHeadConfig, CameraMLPConfig, CameraTransformerConfig
from page4d.models.heads.camera import CameraHead
from page4d.models.heads.camera_mlp import CameraMLP
from page4d.models.heads.camera_transformer import CameraTransformer


def build_camera_head(config: AnyCameraHeadConfig, dim: int) -> CameraHead | CameraMLP | CameraTransformer:
    """Build the camera head of a configuration on tokens of `dim` channels."""
    match config:
        case CameraHeadConfig():
            return CameraHead(config, dim)
        case CameraMLPConfig():
            return CameraMLP(dim)
        case CameraTransformerConfig():
            return CameraTransformer(config, dim)
