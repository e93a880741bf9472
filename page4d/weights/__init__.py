"""Weights files: one self-describing safetensors file per network, and conversion of published checkpoints."""

from page4d.weights.loading import LoadedNetwork, load, load_network
from page4d.weights.store import WeightsInfo, describe_weights, save_network

__all__ = ["LoadedNetwork", "WeightsInfo", "describe_weights", "load", "load_network", "save_network"]
