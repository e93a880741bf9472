"""Networks from images to cameras, depth, points and what moves."""

from page4d.models.conditioning import NO_HINTS, Hints
from page4d.models.config.network import PRESETS, NetworkConfig
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import MixedOutput, NetworkOutput

__all__ = [
    "NO_HINTS",
    "NO_LIMITS",
    "PRESETS",
    "ForwardLimits",
    "Hints",
    "MixedOutput",
    "NetworkConfig",
    "NetworkOutput",
    "ViewTimeNetwork",
    "build_network",
]
