"""Exponential moving average (EMA) of network weights."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class EMA(Generic[Network]):
    """An averaged copy of a network, with decay warm-up.

    Source: the warm-up min(decay, (1 + n) / (10 + n)) of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.network: Network = copy.deepcopy(network).requires_grad_(False).eval()
        self._decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Average in the weights after a step; buffers are copied."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(averages, list(network.parameters()), 1 - decay)
        for kept, current in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(current)
