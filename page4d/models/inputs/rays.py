"""Ray embedding: known cameras as an input, as Plücker coordinates of the ray of every patch."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.geometry.camera import normalize_pixels
from page4d.geometry.transforms import camera_centers, invert_rigid

_MIN_BASELINE = 1e-6


class RayEmbedding(nn.Module):
    """Embed the patches' ray directions, given intrinsics, and their ray lines, given poses as well.

    Poses are relative to the first view at the first instant and scaled by the mean distance of the cameras from it:
    the embedding is independent of the user's world and unit. Both layers start at zero.

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
        """Return the embedding to add to patch tokens; `relative` are poses from `relative_cameras` of the whole rig.

        Without poses only directions in the camera frame are embedded.
        """
        weight = self.direction.weight
        directions = patch_directions(intrinsics, grid, patch_size)
        embedded: Tensor = self.direction(directions.to(weight))
        if relative is None:
            return embedded
        lines: Tensor = self.line(plucker_lines(directions, relative).to(weight))
        return embedded + lines


def patch_directions(
    intrinsics: Float[Tensor, "*batch 3 3"], grid: tuple[int, int], patch_size: int
) -> Float[Tensor, "*batch P 3"]:
    """Return the unit direction of the ray through every patch center, in the camera frame."""
    y, x = (torch.arange(count, device=intrinsics.device, dtype=intrinsics.dtype) + 0.5 for count in grid)
    centers = patch_size * torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).flatten(0, 1)
    plane = normalize_pixels(centers.expand(*intrinsics.shape[:-2], -1, 2), intrinsics)
    rays = torch.cat([plane, torch.ones_like(plane[..., :1])], dim=-1)
    return functional.normalize(rays, dim=-1)


def plucker_lines(
    directions: Float[Tensor, "B T V P 3"], relative: Float[Tensor, "B T V 4 4"]
) -> Float[Tensor, "B T V P 6"]:
    """Return direction and moment (camera center x direction) of every ray in the frame of `relative`."""
    rotated = directions @ relative[..., :3, :3]
    centers = camera_centers(relative)[..., None, :].expand_as(rotated)
    return torch.cat([rotated, torch.linalg.cross(centers, rotated)], dim=-1)


def relative_cameras(world_to_camera: Float[Tensor, "B T V 4 4"]) -> Float[Tensor, "B T V 4 4"]:
    """Return the poses relative to the first view at the first instant, scaled to a mean distance of 1 from it."""
    relative = world_to_camera @ invert_rigid(world_to_camera[:, :1, :1])
    distance = camera_centers(relative).norm(dim=-1)
    unit = distance.sum(dim=(1, 2)) / max(1, distance[0].numel() - 1)
    unit = torch.where(unit > _MIN_BASELINE, unit, 1)[:, None, None, None, None]
    return torch.cat(
        [torch.cat([relative[..., :3, :3], relative[..., :3, 3:] / unit], dim=-1), relative[..., 3:, :]], dim=-2
    )
