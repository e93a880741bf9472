"""The two-layer perceptron applied to every token by itself."""

from torch import Tensor, nn
from torch.nn import functional


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim if out_dim is None else out_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        transformed: Tensor = self.fc2(functional.gelu(self.fc1(tokens)))
        return transformed
