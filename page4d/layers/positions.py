"""Grid positions of patches, and learned position tables resampled to other grids."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional


def grid_positions(grid: tuple[int, int], device: torch.device | str = "cpu") -> Int[Tensor, "P 2"]:
    """Return the (row, column) of every cell of a grid of (rows, columns), row by row."""
    rows, columns = (torch.arange(count, device=device) for count in grid)
    return torch.cartesian_prod(rows, columns).reshape(-1, 2)


def resample_positions(
    table: Float[Tensor, "one P C"], learned: tuple[int, int], grid: tuple[int, int], num_special: int = 0
) -> Float[Tensor, "one P1 C"]:
    """Resample a position table from the grid `learned` to another one; the leading special entries are kept.

    Bicubic with antialiasing, whose kernel differs from the plain one also for upsampling, in at least float32.

    Source: Dosovitskiy et al. (2021), ViT, section 3.2; the kernel of the public DINOv2 and timm code (reference
    facts).
    """
    if grid == learned:
        return table
    exact = table.to(torch.promote_types(table.dtype, torch.float32))
    maps = torch.unflatten(exact[:, num_special:], 1, learned).permute(0, 3, 1, 2)
    resampled = functional.interpolate(maps, size=grid, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([exact[:, :num_special], resampled.flatten(2).transpose(1, 2)], dim=1)
