"""Agreement of depth maps between views: which pixels other views confirm, and which they see through."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.warp import ray_warp

TOLERANCE = 0.06
"""Difference of log depth along the ray of the other view up to which two depths are of one surface."""

MAX_TOLERANCE = 0.15
"""Largest tolerance, whatever the uncertainty of depth."""

MAX_COMPARED_VIEWS = 8
"""Views that each view is compared with, those with the nearest cameras: the cost grows with the pairs."""

_MIN_DEPTH = 1e-6


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """For the point of every pixel, the number of other views that confirm it, contradict it, or cannot see it.

    A view confirms a point where its own depth is that of the point within the tolerance. It contradicts the point
    where its own surface lies behind it: the view sees through the point. The point is unseen where it lies outside
    the image, or behind the surface of the view (occluded), or where the view has no depth. Pixels without depth have
    zero counts.
    """

    confirmed: UInt8[Tensor, "*batch V H W"]
    contradicted: UInt8[Tensor, "*batch V H W"]
    unseen: UInt8[Tensor, "*batch V H W"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Agreement":
        """Apply a function to the counts."""
        return Agreement(**{name: function(counts) for name, counts in vars(self).items()})

    def where(self, mask: Bool[Tensor, "*batch V H W"], other: "Agreement") -> "Agreement":
        """Take the counts of this agreement where the mask is set, else those of the other one."""
        parts = vars(self).items()
        return Agreement(**{name: torch.where(mask, counts, getattr(other, name)) for name, counts in parts})

    @property
    def is_kept(self) -> Bool[Tensor, "*batch V H W"]:
        """Whether as many views confirm a point as contradict it."""
        return self.confirmed >= self.contradicted


@torch.no_grad()
def measure_agreement(
    depth: Float[Tensor, "*batch V H W"],
    known: Bool[Tensor, "*batch V H W"],
    cameras: Cameras,
    spread: Float[Tensor, "*batch V H W"] | None = None,
    compared: Bool[Tensor, "*batch V H W"] | None = None,
) -> Agreement:
    """Compare the depth maps of all views of the same instant.

    `cameras` are [*batch, V] in the unit of depth, with intrinsics on the pixel grid of the maps. Depth counts where
    it is `known`; the points of `compared` pixels, by default all, are compared with it, others have zero counts.
    `spread` is the standard deviation of log depth; it widens the tolerance. A point is compared with
    the 3x3 pixels around its projection, of which the one with the nearest depth counts.

    Source: Merrell et al. (2007), "Real-Time Visibility-Based Fusion of Depth Maps": support, occlusion and
    free-space violation.
    """
    shape = depth.shape
    frames = depth.reshape(-1, *shape[-3:])
    flags = (known & depth.isfinite() & (depth > 0)).reshape(frames.shape)
    margin = None if spread is None else spread.reshape(frames.shape)
    own = flags if compared is None else flags & compared.reshape(frames.shape)
    flat = cameras.map(lambda matrices: matrices.reshape(-1, shape[-3], *matrices.shape[-2:]))
    counts = torch.zeros(3, *frames.shape, dtype=torch.uint8, device=depth.device)
    for frame, maps in enumerate(frames):
        rig = flat[frame]
        for view in range(len(maps)):
            points = own[frame, view]
            for other in compared_views(rig, view):
                pair = torch.tensor([view, other], device=depth.device)
                confirms, sees_through = _compare(
                    maps[pair], flags[frame, pair], points, rig[pair], None if margin is None else margin[frame, pair]
                )
                counts[0, frame, view][points] += confirms
                counts[1, frame, view][points] += sees_through
                counts[2, frame, view][points] += ~confirms & ~sees_through
    confirmed, contradicted, unseen = counts.reshape(3, *shape)
    return Agreement(confirmed=confirmed, contradicted=contradicted, unseen=unseen)


def _compare(
    depth: Float[Tensor, "2 H W"],
    known: Bool[Tensor, "2 H W"],
    points: Bool[Tensor, "H W"],
    cameras: Cameras,
    spread: Float[Tensor, "2 H W"] | None,
) -> tuple[Bool[Tensor, " N"], Bool[Tensor, " N"]]:
    """Return which of the N `points` of the first of two views the second confirms, and which it sees through."""
    size = (depth.shape[-2], depth.shape[-1])
    own = depth[0][points]
    rays = camera_rays(cameras[0].intrinsics, size)[points]
    warped = ray_warp(rays, cameras[0], cameras[1]).to(own).at(own, _MIN_DEPTH)
    visible = warped.visible(size, _MIN_DEPTH)
    around, has_depth = _around(depth[1], known[1], warped.pixels)
    tolerance = torch.full_like(own, TOLERANCE)
    if spread is not None:
        both = spread[0][points] + _at(spread[1], warped.pixels)
        tolerance = (tolerance + both).clamp(max=MAX_TOLERANCE)
    beyond = warped.depth.clamp(min=_MIN_DEPTH).log() - around.log()
    confirms = (has_depth & (beyond.abs() <= tolerance)).any(dim=0)
    sees_through = ((beyond < -tolerance) | ~has_depth).all(dim=0) & has_depth.any(dim=0)
    return confirms & visible, sees_through & visible


def compared_views(rig: Cameras, view: int) -> list[int]:
    """Return the other views with the nearest camera centres, in order of index."""
    distance = (rig.centers - rig.centers[view]).norm(dim=-1)
    distance[view] = torch.inf
    return sorted(distance.argsort(stable=True)[: min(len(distance) - 1, MAX_COMPARED_VIEWS)].tolist())


def _around(
    depth: Float[Tensor, "H W"], known: Bool[Tensor, "H W"], pixels: Float[Tensor, "N 2"]
) -> tuple[Float[Tensor, "9 N"], Bool[Tensor, "9 N"]]:
    """Return the depth of the 3x3 pixels around positions, 1 where it is not known, and where it is known."""
    height, width = depth.shape
    column, row = pixel_indices(pixels, (height, width))
    steps = torch.tensor([-1, 0, 1], device=depth.device)
    rows = (row + steps.repeat_interleave(3)[:, None]).clamp(0, height - 1)
    columns = (column + steps.repeat(3)[:, None]).clamp(0, width - 1)
    is_known = known[rows, columns]
    return torch.where(is_known, depth[rows, columns], 1.0), is_known


def _at(values: Float[Tensor, "H W"], pixels: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
    column, row = pixel_indices(pixels, (values.shape[-2], values.shape[-1]))
    return values[row, column]


def pixel_indices(pixels: Float[Tensor, "*batch 2"], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the columns and rows of the pixels that contain positions; those outside are moved to the border."""
    height, width = size
    inside = torch.nan_to_num(pixels, nan=-1.0).clamp(-1.0, max(height, width) + 1.0)
    column, row = inside.floor().long().unbind(-1)
    return column.clamp(0, width - 1), row.clamp(0, height - 1)
