"""Prediction heads built from their configurations."""

from page4d.errors import UsageError
from page4d.models.config import AnyCameraHeadConfig, CameraHeadConfig, CameraMLPConfig
from page4d.models.heads.camera import CameraHead
from page4d.models.heads.camera_mlp import CameraMLP


def build_camera_head(config: AnyCameraHeadConfig, dim: int) -> CameraHead | CameraMLP:
    """Build the camera head of a configuration on tokens of `dim` channels."""
    match config:
        case CameraHeadConfig():
            return CameraHead(config, dim)
        case CameraMLPConfig():
            return CameraMLP(dim)
    raise UsageError(f"no camera head of kind {config.kind}", "")
