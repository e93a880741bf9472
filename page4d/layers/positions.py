"""Learned tables of positions, moved from the grid they were learned on to another one."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def resample_positions(
    table: Float[Tensor, "one P C"], learned: tuple[int, int], grid: tuple[int, int], num_special: int = 0
) -> Float[Tensor, "one P1 C"]:
    """Resample a table that covers the grid `learned` to another one; entries of special tokens, in front, stay.

    Bicubic with antialiasing, whose kernel differs from the plain one also when enlarging, in at least float32.

    Source: Dosovitskiy et al. (2021), ViT, section 3.2; the kernel of the public DINOv2 and timm code (reference
    facts).
    """
    if grid == learned:
        return table
    exact = table.to(torch.promote_types(table.dtype, torch.float32))
    maps = torch.unflatten(exact[:, num_special:], 1, learned).permute(0, 3, 1, 2)
    resampled = functional.interpolate(maps, size=grid, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat([exact[:, :num_special], resampled.flatten(2).transpose(1, 2)], dim=1)
