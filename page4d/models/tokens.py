"""Special tokens (camera and registers) and the positions of all tokens of an image."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.layers.block import INIT_STD


class SpecialTokens(nn.Module):
    """Learned tokens that precede the patches of every image: an optional camera token and registers.

    With two slots, the first is used for the image that defines the world (first view, first instant), the second for
    all others. With one slot all images share it.
    """

    def __init__(self, dim: int, num_registers: int, slots: int, *, camera: bool = True) -> None:
        super().__init__()
        self.camera_token = nn.Parameter(torch.empty(1, slots, 1, dim)) if camera else None
        self.register_token = nn.Parameter(torch.empty(1, slots, num_registers, dim))
        for token in self.parameters():
            nn.init.trunc_normal_(token, std=INIT_STD)

    @property
    def count(self) -> int:
        """Number of special tokens per image."""
        return int(self.camera_token is not None) + self.register_token.shape[2]

    def forward(self, batch: int, num_times: int, num_views: int) -> Float[Tensor, "B T V S C"]:
        """Return the special tokens of every image, camera token first."""
        kinds: list[Tensor] = [token for token in (self.camera_token, self.register_token) if token is not None]
        tokens = torch.cat(kinds, dim=2)[0]
        slot = torch.full((num_times, num_views), tokens.shape[0] - 1, device=tokens.device)
        slot[0, 0] = 0
        return tokens[slot].expand(batch, -1, -1, -1, -1)


def token_positions(
    grid: tuple[int, int], num_special: int, device: torch.device | str = "cpu"
) -> Int[Tensor, "N 2"]:
    """Return (row, column) of every token of an image: special tokens at (0, 0), patches counted from 1."""
    rows = torch.arange(1, grid[0] + 1, device=device)
    columns = torch.arange(1, grid[1] + 1, device=device)
    patches = torch.cartesian_prod(rows, columns).reshape(-1, 2)
    return torch.cat([patches.new_zeros(num_special, 2), patches])
