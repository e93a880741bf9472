"""Special tokens (camera and registers) and the positions of all tokens of an image."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from page4d.layers.block import INIT_STD
from page4d.layers.positions import RotaryTables, after_special, centered_positions, rotary_tables
from page4d.models.config import PatchPositions


class SpecialTokens(nn.Module):
    """Learned tokens that precede the patches of every image: an optional camera token and registers.

    With two slots, the first is used for the reference image, which defines the world, the second for all others.
    With one slot all images share it.
    """

    def __init__(self, dim: int, num_registers: int, slots: int, *, camera: bool = True) -> None:
        super().__init__()
        self.camera_token = nn.Parameter(torch.empty(1, slots, 1, dim)) if camera else None
        self.register_token = nn.Parameter(torch.empty(1, slots, num_registers, dim)) if num_registers else None
        for token in self.parameters():
            nn.init.trunc_normal_(token, std=INIT_STD)

    @property
    def count(self) -> int:
        """Number of special tokens per image."""
        return sum(token.shape[2] for token in (self.camera_token, self.register_token) if token is not None)

    def forward(
        self,
        batch: int,
        num_times: int,
        num_views: int,
        reference: Int[Tensor, " B"] | None = None,
        camera_tokens: Float[Tensor, "B T V C"] | None = None,
    ) -> Float[Tensor, "B T V S C"]:
        """Return the special tokens of every image, camera token first.

        `reference` is the index of the reference image, in the order of instants, then views; the first image by
        default. `camera_tokens`, of known cameras, replace the learned camera token.
        """
        kinds: list[Tensor] = [token for token in (self.camera_token, self.register_token) if token is not None]
        tokens = torch.cat(kinds, dim=2)[0]
        if reference is None:
            reference = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
        slot = torch.full((batch, num_times * num_views), tokens.shape[0] - 1, device=tokens.device)
        slot.scatter_(1, reference[:, None], 0)
        chosen = torch.unflatten(tokens[slot], 1, (num_times, num_views))
        if camera_tokens is None or self.camera_token is None:
            return chosen
        return torch.cat([camera_tokens[..., None, :].to(chosen.dtype), chosen[..., 1:, :]], dim=-2)


def token_positions(
    grid: tuple[int, int], num_special: int, device: torch.device | str = "cpu"
) -> Int[Tensor, "N 2"]:
    """Return (row, column) of every token of an image: special tokens at (0, 0), patches counted from 1."""
    rows = torch.arange(1, grid[0] + 1, device=device)
    columns = torch.arange(1, grid[1] + 1, device=device)
    patches = torch.cartesian_prod(rows, columns).reshape(-1, 2)
    return after_special(patches, num_special)


def patch_rotary_tables(
    rule: PatchPositions,
    grid: tuple[int, int],
    num_special: int,
    head_dim: int,
    base: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> RotaryTables | None:
    """Return the rotary tables of all tokens of an image under a rule of positions."""
    if rule is PatchPositions.NONE:
        return None
    positions: Tensor = token_positions(grid, num_special, device)
    if rule is PatchPositions.SHARED:
        positions = positions.clamp(max=1)
    elif rule is PatchPositions.CENTERED:
        positions = after_special(centered_positions(grid, device), num_special)
    return rotary_tables(positions, head_dim, base, dtype)
