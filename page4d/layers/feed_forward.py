"""The small networks that are applied to every token by itself: two layers, plain or gated."""

from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

_SWIGLU_MULTIPLE = 8


class FeedForwardKind(StrEnum):
    """What stands between two linear layers."""

    MLP = "mlp"
    """An exact GELU."""

    SWIGLU = "swiglu"
    """A product with a second projection of the tokens, passed through SiLU."""


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim if out_dim is None else out_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        hidden: Tensor = self.fc1(tokens)
        # The widest tensor of a transformer: in place where nothing is to be learned, so that there is one of it.
        hidden = functional.gelu(hidden) if hidden.requires_grad else torch.ops.aten.gelu_(hidden)
        transformed: Tensor = self.fc2(hidden)
        return transformed


class SwiGLU(nn.Module):
    """A linear layer of the product SiLU(gate) * value, both projected at once.

    `hidden_dim` is that of a plain network of the same size: three matrices of two thirds of it, rounded up to a
    multiple of 8, take the place of two.

    Source: Shazeer (2020), "GLU variants improve transformer"; names and rounding of the public DINOv2 code, whose
    giant model has it.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        narrower = -(-(hidden_dim * 2 // 3) // _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE
        self.w12 = nn.Linear(dim, 2 * narrower)
        self.w3 = nn.Linear(narrower, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        gate, value = self.w12(tokens).chunk(2, dim=-1)
        transformed: Tensor = self.w3(functional.silu(gate) * value)
        return transformed


FEED_FORWARDS: dict[FeedForwardKind, type[FeedForward | SwiGLU]] = {
    FeedForwardKind.MLP: FeedForward,
    FeedForwardKind.SWIGLU: SwiGLU,
}
