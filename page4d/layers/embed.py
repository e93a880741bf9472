"""Patches of images and their embedding as tokens."""

from jaxtyping import Float
from torch import Tensor, nn

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.errors import ImageSizeError


def patch_grid(height: int, width: int, patch_size: int, patch_width: int | None = None) -> tuple[int, int]:
    """Return the number of rows and columns of patches of an image; `patch_width` defaults to `patch_size`.

    Raises:
        ImageSizeError: if a side is not a positive multiple of the side of a patch.
    """
    across = patch_width or patch_size
    if height % patch_size or width % across or height < patch_size or width < across:
        square = across == patch_size
        raise ImageSizeError(
            f"images of {width} x {height} px do not divide into patches of "
            + (f"{patch_size} px" if square else f"{across} x {patch_size} px"),
            f"resize both sides to multiples of {patch_size}" if square else "resize both sides to multiples",
        )
    return height // patch_size, width // across


def cut_patches(
    maps: Float[Tensor, "F rows columns C"], patch: tuple[int, int]
) -> Float[Tensor, "F rows2 columns2 patch_dim"]:
    """Flatten every patch of (height, width) to one vector, row by row with the channels last."""
    frames, rows, columns, channels = maps.shape
    height, width = patch
    cut = maps.reshape(frames, rows // height, height, columns // width, width, channels)
    return cut.transpose(2, 3).reshape(frames, rows // height, columns // width, height * width * channels)


def join_patches(
    patches: Float[Tensor, "F rows columns patch_dim"], patch: tuple[int, int]
) -> Float[Tensor, "F rows2 columns2 C"]:
    """Invert `cut_patches`."""
    frames, rows, columns, _ = patches.shape
    height, width = patch
    cut = patches.reshape(frames, rows, columns, height, width, -1)
    return cut.transpose(2, 3).reshape(frames, rows * height, columns * width, -1)


def normalize_images(images: Float[Tensor, "*batch 3 H W"]) -> Float[Tensor, "*batch 3 H W"]:
    """Subtract `IMAGE_MEAN` from images in [0, 1] and divide by `IMAGE_DEVIATION`."""
    mean, deviation = (images.new_tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images - mean) / deviation


class NormedPatchEmbed(nn.Module):
    """A linear layer between two norms, on flattened patches; without `norm_bias` the norms have gains only.

    Source: Kumar et al. (2023), "Dual PatchNorm".
    """

    def __init__(self, patch_dim: int, dim: int, *, norm_bias: bool = True) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(patch_dim, bias=norm_bias)
        self.proj = nn.Linear(patch_dim, dim)
        self.norm = nn.LayerNorm(dim, bias=norm_bias)

    def forward(self, patches: Float[Tensor, "*batch patch_dim"]) -> Float[Tensor, "*batch C"]:
        """Embed each patch independently."""
        tokens: Tensor = self.norm(self.proj(self.patch_norm(patches)))
        return tokens


class PatchEmbed(nn.Module):
    """A convolution whose stride is its kernel size: one token per patch, row by row."""

    def __init__(self, dim: int, patch_size: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "F channels H W"]) -> Float[Tensor, "F P C"]:
        """Embed images whose sides are multiples of the patch size."""
        patch_grid(images.shape[-2], images.shape[-1], self.patch_size)
        tokens: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return tokens
