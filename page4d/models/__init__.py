"""Networks from images to cameras, depth, points and motion."""

from page4d.layers.execution import NO_LIMITS, ForwardLimits
from page4d.models.conditioning import NO_CONDITIONING, Conditioning
from page4d.models.config import PRESETS, NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import NetworkOutput, RigOutput

__all__ = [
    "NO_CONDITIONING",
    "NO_LIMITS",
    "PRESETS",
    "Conditioning",
    "ForwardLimits",
    "NetworkConfig",
    "NetworkOutput",
    "RigOutput",
    "ViewTimeNetwork",
    "build_network",
]
