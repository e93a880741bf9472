"""Weights files: one self-describing safetensors file a network, and names of other sources."""

from page4d.weights.store import LoadedNetwork, WeightsInfo, describe_weights, load_network, save_network

__all__ = ["LoadedNetwork", "WeightsInfo", "describe_weights", "load_network", "save_network"]
