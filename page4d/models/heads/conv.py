"""Convolutional head: patch features upsampled to maps of image size."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.models.config import ConvHeadConfig

_NUM_RESIDUALS = 2
_EXPANSION = 2
_GROUP_WIDTH = 32
"""Channels per group of the second norm of a residual unit."""


def image_plane(size: tuple[int, int], like: Tensor) -> Float[Tensor, "2 rows columns"]:
    """Return (u, v) of the cell centers of a map, in units of half the diagonal of the image."""
    diagonal = (size[0] ** 2 + size[1] ** 2) ** 0.5
    u, v = (
        torch.linspace(-edge, edge, count, dtype=torch.float64)
        for count, edge in ((size[1], (size[1] - 1) / diagonal), (size[0], (size[0] - 1) / diagonal))
    )
    return torch.stack(torch.meshgrid(u, v, indexing="xy")).to(like)


def _with_plane(
    features: Float[Tensor, "F C rows columns"],
) -> Float[Tensor, "F C2 rows columns"]:
    """Append the image coordinates as two channels."""
    plane = image_plane((features.shape[-2], features.shape[-1]), features)
    return torch.cat([features, plane.expand(len(features), -1, -1, -1)], dim=1)


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, padding_mode="replicate")


class NormedResidualUnit(nn.Module):
    """Two convolutions, each after a group norm and a rectifier, added to their input."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        hidden = _EXPANSION * channels
        self.layers = nn.Sequential(
            nn.GroupNorm(1, channels, eps=eps),
            nn.ReLU(),
            _convolution(channels, hidden),
            nn.GroupNorm(hidden // _GROUP_WIDTH, hidden, eps=eps),
            nn.ReLU(),
            _convolution(hidden, channels),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Refine a feature map."""
        refined: Tensor = features + self.layers(features)
        return refined


class ConvHead(nn.Module):
    """Upsample patch features in three stages of factor 2, then to image size; coordinates enter every stage.

    `groups` are the numbers of output channels of separate last convolutions.

    Source: the head of Wang et al. (2024), "MoGe", as in the public Pi3X code (reference facts).
    """

    def __init__(self, config: ConvHeadConfig, dim: int, patch_size: int, groups: tuple[int, ...]) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(in_channels + 2, channels, kernel_size=2, stride=2),
                _convolution(channels, channels),
                *(NormedResidualUnit(channels, config.norm_eps) for _ in range(_NUM_RESIDUALS)),
            )
            for in_channels, channels in pairwise((dim, *config.widths))
        )
        self.outputs = nn.ModuleList(
            nn.Sequential(
                _convolution(config.widths[-1] + 2, config.hidden),
                nn.ReLU(),
                nn.Conv2d(config.hidden, channels, kernel_size=1),
            )
            for channels in groups
        )

    def forward(self, features: Float[Tensor, "F P C"], grid: tuple[int, int]) -> Float[Tensor, "F D H W"]:
        """Return the output channels of all groups."""
        maps = torch.unflatten(features.transpose(1, 2), 2, grid)
        for stage in self.stages:
            maps = stage(_with_plane(maps))
        size = (grid[0] * self.patch_size, grid[1] * self.patch_size)
        maps = _with_plane(functional.interpolate(maps, size=size, mode="bilinear", align_corners=False))
        return torch.cat([output(maps) for output in self.outputs], dim=1)
