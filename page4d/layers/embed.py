"""Cut images into square patches and project each to a token."""

from jaxtyping import Float
from torch import Tensor, nn

from page4d.errors import ShapeError


def patch_grid(height: int, width: int, patch_size: int) -> tuple[int, int]:
    """Return the rows and columns of patches of an image.

    Raises:
        ShapeError: if a side is not a positive multiple of the patch size.
    """
    if height % patch_size or width % patch_size or height < patch_size or width < patch_size:
        raise ShapeError(
            f"images of {width} x {height} px do not divide into patches of {patch_size} px",
            f"resize both sides to multiples of {patch_size}",
        )
    return height // patch_size, width // patch_size


class PatchEmbed(nn.Module):
    """A convolution whose stride is its kernel: one token a patch, row by row."""

    def __init__(self, dim: int, patch_size: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "F channels H W"]) -> Float[Tensor, "F P C"]:
        """Embed images whose sides are multiples of the patch size."""
        patch_grid(images.shape[-2], images.shape[-1], self.patch_size)
        tokens: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return tokens
