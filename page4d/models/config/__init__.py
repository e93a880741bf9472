"""Network configurations."""

from page4d.choices import FullAttention, TimeEncoding
from page4d.models.config.heads import CameraHeadConfig, DPTHeadConfig, FrameHeadConfig, MotionHeadConfig
from page4d.models.config.inputs import EpipolarConfig, MatchConfig, MatchTarget
from page4d.models.config.mask import BiasRows, MaskConfig, MaskFusion, MaskHeadKind, MaskRule, Streams
from page4d.models.config.network import NetworkConfig
from page4d.models.config.presets import PRESETS
from page4d.models.config.sparse import SparseConfig, SparseStrategy

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
