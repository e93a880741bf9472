"""Warping of pixels into another camera, bilinear sampling, and normalized cross-correlation (NCC)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import Cameras, world_points


class WarpedPixels(NamedTuple):
    """Positions in px in the target image, and z-depths in the target camera."""

    pixels: Float[Tensor, "*batch 2"]
    depth: Float[Tensor, "*batch"]

    def visible(self, size: Sequence[int], min_depth: float | Tensor) -> Bool[Tensor, "*batch"]:
        """Return the mask of positions inside a target image of (height, width), beyond a minimum depth."""
        visible = self.depth > min_depth
        for position, length in zip(self.pixels.unbind(dim=-1), (size[1], size[0]), strict=True):
            visible &= position > 0
            visible &= position < length
        return visible


class RayWarp(NamedTuple):
    """Positions of source pixels in a target image as functions of their depth.

    In homogeneous pixels, a point at depth d on a ray is at direction * d + origin; the third coordinate is z-depth.

    Source: Hartley & Zisserman (2004), eq. 9.7.
    """

    directions: Float[Tensor, "*rays 3"]
    origin: Float[Tensor, "*ones 3"]

    def to(self, like: Tensor) -> "RayWarp":
        """Return the warp in the precision and on the device of a tensor."""
        return RayWarp(self.directions.to(like), self.origin.to(like))

    def on_grid(self, size: Sequence[int]) -> "RayWarp":
        """Return the warp to positions as `sample_grid` counts: -1 and 1 at the borders of (height, width)."""

        def moved(homogeneous: Tensor) -> Tensor:
            across, down, ahead = homogeneous.unbind(-1)
            planes = [across * (2 / size[1]) - ahead, down * (2 / size[0]) - ahead, ahead]
            return torch.stack(planes).movedim(0, -1)

        return RayWarp(moved(self.directions), moved(self.origin))

    def at(self, depth: Float[Tensor, "*rays"], min_depth: float | Tensor) -> WarpedPixels:
        """Warp points on the rays; points nearer than `min_depth`, or behind the camera, are projected from there."""
        across, down, ahead = (
            torch.addcmul(origin, direction, depth)
            for origin, direction in zip(self.origin.unbind(-1), self.directions.unbind(-1), strict=True)
        )
        near = torch.maximum(ahead, torch.as_tensor(min_depth).to(ahead)).reciprocal_()
        return WarpedPixels(torch.stack([across.mul_(near), down.mul_(near)]).movedim(0, -1), ahead)


def ray_warp(rays: Float[Tensor, "*rays 3"], source: Cameras, target: Cameras) -> RayWarp:
    """Return the warp of rays of z = 1 in source cameras [*batch] into target cameras [*batch].

    Every coordinate is contiguous in memory: operations on one of them are several times faster.
    """
    relative = target.world_to_camera @ source.camera_to_world
    matrix = (target.intrinsics @ relative[..., :3, :3]).to(rays)
    ones = (1,) * (rays.ndim - matrix.ndim + 1)
    shift = (target.intrinsics @ relative[..., :3, 3:])[..., 0].to(rays)
    flat = rays.flatten(matrix.ndim - 2, -2)
    directions = (matrix @ flat.transpose(-1, -2)).transpose(-1, -2)
    directions = torch.unflatten(directions, -2, rays.shape[matrix.ndim - 2 : -1])
    return RayWarp(directions, shift.reshape(*shift.shape[:-1], *ones, 3))


def viewing_angles(depth: Float[Tensor, "H W"], camera: Cameras, other: Cameras) -> Float[Tensor, "H W"]:
    """Return the angle in degrees at which the rays of two cameras meet at the point of each pixel of the first."""
    points = world_points(depth.to(camera.world_to_camera), camera)
    rays = [functional.normalize(points - one.centers, dim=-1) for one in (camera, other)]
    return torch.rad2deg((rays[0] * rays[1]).sum(dim=-1).clamp(-1, 1).acos())


def sample(
    maps: Float[Tensor, "N C h w"], pixels: Float[Tensor, "N *points 2"], border: str = "border"
) -> Float[Tensor, "N C *points"]:
    """Sample maps bilinearly at positions in px; outside the image the border is repeated, or "zeros" follow."""
    return sample_grid(maps, (pixels / pixel_extent(maps)).mul_(2).sub_(1), border)


def sample_grid(
    maps: Float[Tensor, "N C h w"], grid: Float[Tensor, "N *points 2"], border: str = "border"
) -> Float[Tensor, "N C *points"]:
    """Sample as `sample`, at positions `pixels / pixel_extent(maps) * 2 - 1`."""
    found = functional.grid_sample(
        maps, grid.flatten(1, -2)[:, None].to(maps), padding_mode=border, align_corners=False
    )
    return found.reshape(*maps.shape[:2], *grid.shape[1:-1])


def pixel_extent(maps: Float[Tensor, "*batch h w"]) -> Float[Tensor, "2"]:
    """Return width and height of maps."""
    return maps.new_tensor([maps.shape[-1], maps.shape[-2]])


def ncc(
    covariance: Float[Tensor, "*batch"],
    first_variance: Float[Tensor, "*batch"],
    second_variance: Float[Tensor, "*batch"],
    min_variance: float,
) -> Float[Tensor, "*batch"]:
    """Return the NCC from moments; `min_variance` is added to variances, so that flat windows correlate with nothing.

    Source: Szeliski (2010), "Computer Vision: Algorithms and Applications", eq. 8.11.
    """
    spread = (first_variance.clamp(min=0) + min_variance) * (second_variance.clamp(min=0) + min_variance)
    return covariance / spread.sqrt()


def window_means(maps: Float[Tensor, "*maps H W"], window: int) -> Float[Tensor, "*maps H W"]:
    """Return the means over windows of odd side `window` around pixels, cut off at the image border."""
    half = window // 2
    counts = []
    for dim in (-1, -2):
        length = maps.shape[dim]
        total = maps.clone()
        for offset in range(1, min(half, length - 1) + 1):
            total.narrow(dim, offset, length - offset).add_(maps.narrow(dim, 0, length - offset))
            total.narrow(dim, 0, length - offset).add_(maps.narrow(dim, offset, length - offset))
        maps = total
        place = torch.arange(length, device=maps.device)
        counts.append((place.clamp(max=half) + 1 + (length - 1 - place).clamp(max=half)).to(maps))
    return maps.mul_((counts[0] * counts[1][:, None]).reciprocal())
