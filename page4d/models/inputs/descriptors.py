"""Learned descriptors of patches and of their cells, for matching between images."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.layers.block import initialise_linears
from page4d.models.config import MatchConfig

FINE_STRIDE = 2
"""Stride in pixels of the encoder's fine feature map."""


class Descriptors(NamedTuple):
    """Unit vectors of the patches of an image and of the cells that patches consist of, in row-major order."""

    patches: Float[Tensor, "*images P D"]
    cells: Float[Tensor, "*images Q D"]


class PatchDescriptors(nn.Module):
    """Unfold every patch token into cells, add the fine feature map and mix neighbours by a convolution.

    The descriptor of a patch is a projection of all its cells; it stands for the patch center, where they meet.
    """

    def __init__(self, config: MatchConfig, dim: int, patch_size: int) -> None:
        super().__init__()
        self.finer, self.dim = config.finer, config.dim
        self.unfold = nn.Linear(dim, config.finer**2 * config.dim)
        self.detail: nn.Conv2d | None = None
        if config.fine_dim:
            stride = patch_size // (FINE_STRIDE * config.finer)
            self.detail = nn.Conv2d(config.fine_dim, config.dim, kernel_size=3, stride=stride, padding=1)
        self.mix = nn.Conv2d(config.dim, config.dim, kernel_size=3, padding=1)
        self.join = nn.Linear(config.finer**2 * config.dim, config.dim)
        initialise_linears(self)

    def forward(
        self,
        tokens: Float[Tensor, "*images P C"],
        grid: tuple[int, int],
        fine: Float[Tensor, "*images F h w"] | None = None,
    ) -> Descriptors:
        """Compute the descriptors of images of one size."""
        leading, rows, columns, finer = tokens.shape[:-2], *grid, self.finer
        unfolded = self.unfold(tokens).reshape(-1, rows, columns, finer, finer, self.dim)
        cells = unfolded.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.dim, rows * finer, columns * finer)
        if self.detail is not None and fine is not None:
            cells = cells + self.detail(fine.flatten(0, -4))
        cells = self.mix(functional.gelu(cells))
        folded = cells.reshape(-1, self.dim, rows, finer, columns, finer).permute(0, 2, 4, 3, 5, 1)
        patches = self.join(folded.reshape(*leading, rows * columns, -1))
        cells = cells.flatten(2).transpose(1, 2).unflatten(0, leading)
        return Descriptors(functional.normalize(patches, dim=-1), functional.normalize(cells, dim=-1))
