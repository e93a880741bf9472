"""Known cameras as input: every patch is told the ray along which it looks."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels
from page4d.geometry.rigid import camera_centers, invert_rigid

_LEAST_BASELINE = 1e-6


class RayEmbedding(nn.Module):
    """Add to the patch tokens what intrinsics, and poses where they are known too, say of their rays.

    Poses are taken relative to the first view at the first instant, lengths relative to the mean distance of the
    cameras from it: neither the user's world nor the user's unit matters. Both parts start at zero.

    Source: rays in Pluecker coordinates as in Sitzmann et al. (2021), "Light Field Networks", section 3.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.direction = nn.Linear(3, dim)
        self.line = nn.Linear(6, dim)
        for part in (self.direction, self.line):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(
        self,
        intrinsics: Float[Tensor, "B T V 3 3"],
        relative: Float[Tensor, "B T V 4 4"] | None,
        grid: tuple[int, int],
        patch_size: int,
    ) -> Float[Tensor, "B T V P C"]:
        """Return what to add; `relative` are the poses as `relative_cameras` returns them for the whole rig.

        Without poses the patches are told their directions in the camera's frame only.
        """
        weight = self.direction.weight
        directions = patch_directions(intrinsics, grid, patch_size)
        told: Tensor = self.direction(directions.to(weight))
        if relative is None:
            return told
        told_of_lines: Tensor = self.line(plucker_lines(directions, relative).to(weight))
        return told + told_of_lines


def patch_directions(
    intrinsics: Float[Tensor, "*batch 3 3"], grid: tuple[int, int], patch_size: int
) -> Float[Tensor, "*batch P 3"]:
    """Return the unit direction of the ray through every patch's middle, in the camera's frame."""
    y, x = (torch.arange(count, device=intrinsics.device, dtype=intrinsics.dtype) + 0.5 for count in grid)
    middles = patch_size * torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    plane = normalize_pixels(middles.expand(*intrinsics.shape[:-2], -1, 2), intrinsics)
    rays = torch.cat([plane, torch.ones_like(plane[..., :1])], dim=-1)
    return functional.normalize(rays, dim=-1)


def plucker_lines(
    directions: Float[Tensor, "B T V P 3"], relative: Float[Tensor, "B T V 4 4"]
) -> Float[Tensor, "B T V P 6"]:
    """Return direction and moment (centre x direction) of every ray in the frame that the poses are relative to."""
    turned = directions @ relative[..., :3, :3]
    centers = camera_centers(relative)[..., None, :].expand_as(turned)
    return torch.cat([turned, torch.linalg.cross(centers, turned)], dim=-1)


def relative_cameras(world_to_camera: Float[Tensor, "B T V 4 4"]) -> Float[Tensor, "B T V 4 4"]:
    """Return the cameras in the frame of the first view at the first instant, at a mean distance of 1 from it."""
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    distance = camera_centers(relative).norm(dim=-1)
    unit = distance.sum(dim=(1, 2)) / max(1, distance[0].numel() - 1)
    unit = torch.where(unit > _LEAST_BASELINE, unit, 1)[:, None, None, None, None]
    return torch.cat(
        [torch.cat([relative[..., :3, :3], relative[..., :3, 3:] / unit], dim=-1), relative[..., 3:, :]], dim=-2
    )
