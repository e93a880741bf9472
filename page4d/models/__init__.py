"""Networks from images to cameras, depth, points and what moves."""

from page4d.models.config import PRESETS, NetworkConfig
from page4d.models.hints import NO_HINTS, Hints
from page4d.models.limits import NO_LIMITS, ForwardLimits
from page4d.models.network import NetworkOutput, ViewTimeNetwork, build_network

__all__ = [
    "NO_HINTS",
    "NO_LIMITS",
    "PRESETS",
    "ForwardLimits",
    "Hints",
    "NetworkConfig",
    "NetworkOutput",
    "ViewTimeNetwork",
    "build_network",
]
