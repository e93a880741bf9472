"""Weights files: one self-describing safetensors file per network, and conversion of published checkpoints.

The public names are imported on first use, so that the catalogue of checkpoints is read without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from page4d.weights.loading import LoadedNetwork, load
    from page4d.weights.store import WeightsInfo, describe_weights, save_network

__all__ = ["LoadedNetwork", "WeightsInfo", "describe_weights", "load", "save_network"]

_STORE = ("WeightsInfo", "describe_weights", "save_network")


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in __all__:
        raise AttributeError(f"module 'page4d.weights' has no attribute '{name}'")
    return getattr(import_module(f"page4d.weights.{'store' if name in _STORE else 'loading'}"), name)
