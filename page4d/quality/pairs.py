"""Comparison of the depth maps of two views of the same instant: agreement, contradiction, occlusion, residuals."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays, normalize_pixels, pixel_grid, project
from page4d.geometry.transforms import transform_points
from page4d.geometry.warp import TOLERANCE, WarpedPixels, pixel_indices, ray_warp

_MIN_DEPTH = 1e-6


@dataclass(frozen=True, kw_only=True)
class DepthView:
    """The depth map of a view, 0 where there is none, with its camera [] on the pixel grid of the map."""

    depth: Float[Tensor, "H W"]
    camera: Cameras

    @property
    def known(self) -> Bool[Tensor, "H W"]:
        """Where there is depth."""
        return self.depth > 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.depth.shape[-2], self.depth.shape[-1]


@dataclass(frozen=True, kw_only=True)
class PairComparison:
    """The points of the pixels of one view, compared with the depth map of another.

    `visible` points project into the other image, onto a pixel with depth. Of these, `confirmed` ones lie on its
    surface within `TOLERANCE` of log depth, `contradicted` ones in front of it (the other view sees through them),
    and the others behind it: occluded, or wrong. `difference` is the log depth of the point minus that of the
    surface; `residual_px` the distance between a pixel and the projection of the surface that the other view sees
    there, in pixels of the first map. Both are NaN where a point is not visible.
    """

    visible: Bool[Tensor, "H W"]
    confirmed: Bool[Tensor, "H W"]
    contradicted: Bool[Tensor, "H W"]
    difference: Float[Tensor, "H W"]
    residual_px: Float[Tensor, "H W"]


def warp_into(view: DepthView, other: DepthView, factor: float = 1.0) -> WarpedPixels:
    """Project the points of a view, with depth times `factor`, into another; meaningless without depth."""
    depth = torch.where(view.known, view.depth * factor, 1.0)
    rays = camera_rays(view.camera.intrinsics, view.size)
    return ray_warp(rays, view.camera, other.camera).to(depth).at(depth, _MIN_DEPTH)


def compare_pair(view: DepthView, other: DepthView) -> PairComparison:
    """Compare the points of `view` with the depth map of `other`.

    Of the 3x3 pixels around a projection the one with the most similar depth counts. The residual is the symmetric
    reprojection error of multi-view stereo: a pixel is projected into the other view with its own depth, and back
    with the depth found there.

    Source: Yao et al. (2018), "MVSNet: Depth Inference for Unstructured Multi-view Stereo", section 4.2 (geometric
    constraint).
    """
    warped = warp_into(view, other)
    column, row = pixel_indices(warped.pixels, other.size)
    inside = warped.visible(other.size, _MIN_DEPTH) & view.known
    height, width = other.size
    target = warped.depth.clamp(min=_MIN_DEPTH).log()
    best = torch.full_like(target, torch.inf)
    nearest = [torch.zeros_like(column), torch.zeros_like(row)]
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            rows, columns = (row + down).clamp(0, height - 1), (column + right).clamp(0, width - 1)
            found = other.depth[rows, columns]
            difference = torch.where(found > 0, target - found.clamp(min=_MIN_DEPTH).log(), torch.inf)
            closer = difference.abs() < best.abs()
            best = torch.where(closer, difference, best)
            nearest = [torch.where(closer, a, b) for a, b in zip((columns, rows), nearest, strict=True)]
    visible = inside & best.isfinite()
    difference = torch.where(visible, best, torch.nan)
    return PairComparison(
        visible=visible,
        confirmed=visible & (difference.abs() <= TOLERANCE),
        contradicted=visible & (difference < -TOLERANCE),
        difference=difference,
        residual_px=torch.where(visible, _residual(view, other, warped, best), torch.nan),
    )


def _residual(
    view: DepthView, other: DepthView, warped: WarpedPixels, difference: Float[Tensor, "H W"]
) -> Float[Tensor, "H W"]:
    """Return the distance of each pixel to the projection of the surface that the other view has there."""
    surface = warped.depth.clamp(min=_MIN_DEPTH) * torch.exp(-torch.nan_to_num(difference, posinf=0.0))
    rays = normalize_pixels(warped.pixels.double(), other.camera.intrinsics.double())
    points = torch.cat([rays, torch.ones_like(rays[..., :1])], dim=-1) * surface.double()[..., None]
    relative = view.camera.world_to_camera.double() @ other.camera.camera_to_world.double()
    pixels, _ = project(transform_points(relative, points), view.camera.intrinsics.double())
    distance: Tensor = (pixels - pixel_grid(*view.size, dtype=pixels.dtype)).norm(dim=-1)
    return distance.to(view.depth)
