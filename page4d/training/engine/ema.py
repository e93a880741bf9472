"""A moving average of a network's weights, which is better than the weights of any one step."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class WeightAverage(Generic[Network]):
    """Follows a network; young averages forget faster, so that they are not held back by the first weights.

    Source: the warm-up min(decay, (1 + n) / (10 + n)) of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.network: Network = copy.deepcopy(network).requires_grad_(False).eval()
        self._decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Move towards the weights after a step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        mine: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(mine, list(network.parameters()), 1 - decay)
        for kept, current in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(current)
