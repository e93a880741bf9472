"""Network configurations."""

from page4d.choices import FullAttention, TimeEncoding
from page4d.models.config.network import NetworkConfig
from page4d.models.config.parts import (
    BiasRows,
    CameraHeadConfig,
    DPTHeadConfig,
    EpipolarConfig,
    FrameHeadConfig,
    MaskConfig,
    MaskFusion,
    MaskHeadKind,
    MaskRule,
    MatchConfig,
    MatchTarget,
    MotionHeadConfig,
    SparseConfig,
    SparseStrategy,
    Streams,
)
from page4d.models.config.presets import PRESETS

__all__ = [
    "PRESETS",
    "BiasRows",
    "CameraHeadConfig",
    "DPTHeadConfig",
    "EpipolarConfig",
    "FrameHeadConfig",
    "FullAttention",
    "MaskConfig",
    "MaskFusion",
    "MaskHeadKind",
    "MaskRule",
    "MatchConfig",
    "MatchTarget",
    "MotionHeadConfig",
    "NetworkConfig",
    "SparseConfig",
    "SparseStrategy",
    "Streams",
    "TimeEncoding",
]
