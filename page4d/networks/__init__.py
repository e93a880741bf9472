"""Networks from images to cameras, depth, points and motion."""

from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.config import NetworkConfig
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.networks.presets import PRESETS

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
