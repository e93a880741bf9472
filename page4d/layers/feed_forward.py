"""Feed-forward networks of transformer blocks: two-layer MLP and SwiGLU."""

from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional

_SWIGLU_MULTIPLE = 8


class FeedForwardKind(StrEnum):
    """Nonlinearity of a feed-forward network."""

    MLP = "mlp"
    """Exact GELU."""

    SWIGLU = "swiglu"
    """SiLU of one projection of the tokens times a second projection."""


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim if out_dim is None else out_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        hidden: Tensor = self.fc1(tokens)
        # The widest tensor of a transformer: in place without gradient, so that it exists once.
        hidden = functional.gelu(hidden) if hidden.requires_grad else torch.ops.aten.gelu_(hidden)
        transformed: Tensor = self.fc2(hidden)
        return transformed


class SwiGLU(nn.Module):
    """SwiGLU: a linear layer of SiLU(gate) * value, with one projection for both factors.

    `hidden_dim` is the width of an MLP with as many parameters; the actual width is 2/3 of it, rounded up to a
    multiple of 8.

    Source: Shazeer (2020), "GLU variants improve transformer"; names and rounding of the public DINOv2 code, which
    uses it in its giant model.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        inner_dim = -(-(hidden_dim * 2 // 3) // _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE
        self.w12 = nn.Linear(dim, 2 * inner_dim)
        self.w3 = nn.Linear(inner_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        gate, value = self.w12(tokens).chunk(2, dim=-1)
        transformed: Tensor = self.w3(functional.silu(gate) * value)
        return transformed


FEED_FORWARDS: dict[FeedForwardKind, type[FeedForward | SwiGLU]] = {
    FeedForwardKind.MLP: FeedForward,
    FeedForwardKind.SWIGLU: SwiGLU,
}
