"""Network configurations."""

from page4d.choices import FullAttention, TimeEncoding
from page4d.models.config.frame_head import ConvHeadConfig, FrameHeadConfig, MetricHeadConfig
from page4d.models.config.known_geometry import KnownGeometryConfig
from page4d.models.config.network import NetworkConfig
from page4d.models.config.parts import (
    AnyCameraHeadConfig,
    BiasRows,
    CameraEncoderConfig,
    CameraHeadConfig,
    CameraMLPConfig,
    CameraTransformerConfig,
    DenseOutput,
    DPTHeadConfig,
    EpipolarConfig,
    MaskConfig,
    MaskFusion,
    MaskHeadKind,
    MaskRule,
    MatchConfig,
    MatchTarget,
    MotionHeadConfig,
    PatchPositions,
    ReferenceView,
    ResidualKind,
    SparseConfig,
    SparseStrategy,
    Streams,
)
from page4d.models.config.presets import PRESETS

__all__ = [
    "PRESETS",
    "AnyCameraHeadConfig",
    "BiasRows",
    "CameraEncoderConfig",
    "CameraHeadConfig",
    "CameraMLPConfig",
    "CameraTransformerConfig",
    "ConvHeadConfig",
    "DPTHeadConfig",
    "DenseOutput",
    "EpipolarConfig",
    "FrameHeadConfig",
    "FullAttention",
    "KnownGeometryConfig",
    "MaskConfig",
    "MaskFusion",
    "MaskHeadKind",
    "MaskRule",
    "MatchConfig",
    "MatchTarget",
    "MetricHeadConfig",
    "MotionHeadConfig",
    "NetworkConfig",
    "PatchPositions",
    "ReferenceView",
    "ResidualKind",
    "SparseConfig",
    "SparseStrategy",
    "Streams",
    "TimeEncoding",
]
