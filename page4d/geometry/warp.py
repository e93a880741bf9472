"""Warping of pixels into another camera, and the agreement of depth maps between views.

Other views confirm a pixel or see through it. Images are sampled bilinearly and compared by normalized
cross-correlation (NCC).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from page4d.geometry.camera import MIN_DEPTH, Cameras, camera_rays, has_depth
from page4d.geometry.transforms import camera_centers


class WarpedPixels(NamedTuple):
    """Positions in px in the target image, and z-depths in the target camera."""

    pixels: Float[Tensor, "*batch 2"]
    depth: Float[Tensor, "*batch"]

    def visible(self, size: Sequence[int], min_depth: float | Tensor = MIN_DEPTH) -> Bool[Tensor, "*batch"]:
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

    def at(self, depth: Float[Tensor, "*rays"], min_depth: float | Tensor = MIN_DEPTH) -> WarpedPixels:
        """Warp points on the rays; points nearer than `min_depth`, or behind the camera, are projected from there."""
        across, down, ahead = (
            torch.addcmul(origin, direction, depth)
            for origin, direction in zip(self.origin.unbind(-1), self.directions.unbind(-1), strict=True)
        )
        near = torch.maximum(ahead, torch.as_tensor(min_depth).to(ahead)).reciprocal_()
        return WarpedPixels(torch.stack([across.mul_(near), down.mul_(near)]).movedim(0, -1), ahead)

    def pixels_per_log_depth(self, depth: Float[Tensor, "*rays"], size: Sequence[int]) -> Float[Tensor, "*rays"]:
        """Return how fast projections into an image of (height, width) move with log depth; 0 outside of it."""
        warped = self.at(depth)
        (across, down, ahead), (column, row) = self.directions.unbind(-1), warped.pixels.unbind(-1)
        slope = torch.hypot(across - column * ahead, down - row * ahead)
        found: Tensor = depth * slope / warped.depth.clamp(min=MIN_DEPTH) * warped.visible(size)
        return found


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


def viewing_angles(
    depth: Float[Tensor, "*batch H W"], camera: Cameras, other: Cameras
) -> Float[Tensor, "*batch H W"]:
    """Return the angle in degrees at which the rays of two cameras meet at the point of each pixel of the first."""
    center = (camera.world_to_camera @ other.camera_to_world)[..., :3, 3].to(depth)
    rays = camera_rays(camera.intrinsics.to(depth), depth.shape[-2:]).unbind(-1)
    from_other = [ray * depth - place[..., None, None] for ray, place in zip(rays, center.unbind(-1), strict=True)]

    def product(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
        return sum((a * b for a, b in zip(first, second, strict=True)), torch.zeros_like(depth))

    cosine = product(rays, from_other) / (product(rays, rays) * product(from_other, from_other)).sqrt()
    return torch.rad2deg(cosine.clamp(-1, 1).acos())


_NORMAL_STEP = 2
"""Pixels on each side between which the normals of a depth map are measured."""


class Surfaces(NamedTuple):
    """Points of depth maps [*batch H W 3] in the frames of their cameras, and their unit normals towards these."""

    points: Float[Tensor, "*batch H W 3"]
    normals: Float[Tensor, "*batch H W 3"]

    def facing(self, place: tuple[int | Tensor, ...], camera: Cameras, other: Cameras) -> Float[Tensor, "*place"]:
        """Return the cosine of the angle between the normals at some places and the directions to another camera.

        It is negative where the surface faces away from the other camera, which cannot see it, and 0 where it has no
        normal.
        """
        center = (camera.world_to_camera @ other.camera_to_world)[:3, 3].to(self.points)
        direction = functional.normalize(center - self.points[place], dim=-1)
        return (direction * self.normals[place]).sum(-1).nan_to_num()


def surfaces_of(depth: Float[Tensor, "*batch H W"], intrinsics: Float[Tensor, "*batch 3 3"]) -> Surfaces:
    """Return the surfaces that depth maps show."""
    points = camera_rays(intrinsics.to(depth), depth.shape[-2:]) * depth[..., None]
    down, across = (_differences(points, axis) for axis in (-3, -2))
    return Surfaces(points, functional.normalize(torch.linalg.cross(across, down, dim=-1), dim=-1).neg_())


def _differences(points: Float[Tensor, "*batch H W 3"], axis: int) -> Float[Tensor, "*batch H W 3"]:
    """Return the differences of points along an axis, on the side where depth changes less: that of the surface."""
    places = torch.arange(points.shape[axis], device=points.device)
    near = [(places + step).clamp(0, len(places) - 1) for step in (-_NORMAL_STEP, _NORMAL_STEP)]
    before, after = points - points.index_select(axis, near[0]), points.index_select(axis, near[1]) - points
    changes = [
        torch.where(step.any(-1), step[..., 2].abs(), torch.inf).nan_to_num(torch.inf) for step in (before, after)
    ]
    return torch.where((changes[0] < changes[1])[..., None], before, after)


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
    if maps.device.type != "cpu":  # some thirty operations, each of the time of its start
        flat = maps.reshape(-1, 1, *maps.shape[-2:])
        return functional.avg_pool2d(flat, window, 1, half, count_include_pad=False).view(maps.shape)
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


TOLERANCE = 0.06
"""Difference of log depth along the ray of the other view up to which two depths are of one surface."""

MAX_TOLERANCE = 0.15
"""Largest tolerance, whatever the uncertainty of depth."""

MAX_COMPARED_VIEWS = 8
"""Views that each view is compared with, those with the nearest cameras: the cost grows with the pairs."""


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
    flags = (known & has_depth(depth)).reshape(frames.shape)
    margin = None if spread is None else spread.reshape(frames.shape)
    own = flags if compared is None else flags & compared.reshape(frames.shape)
    flat = cameras.map(lambda matrices: matrices.reshape(-1, shape[-3], *matrices.shape[-2:]))
    counts = torch.zeros(3, *frames.shape, dtype=torch.uint8, device=depth.device)
    for frame, maps in enumerate(frames):
        rig, logarithms = flat[frame], torch.where(flags[frame], maps, torch.nan).log()
        for view, mask in enumerate(own[frame]):
            points = mask.flatten().nonzero()[:, 0]  # once: a GPU waits for their number
            rays = camera_rays(rig.intrinsics[view], shape[-2:]).flatten(0, 1).index_select(0, points)
            depths, of_points = maps[view].flatten().index_select(0, points), counts.new_zeros(3, len(rays))
            for other in compared_views(rig, view):
                confirms, sees_through = _compare(
                    depths,
                    rays,
                    logarithms[other],
                    rig[[view, other]],
                    None if margin is None else (margin[frame, view].flatten()[points], margin[frame, other]),
                )
                of_points += torch.stack([confirms, sees_through, ~(confirms | sees_through)])
            counts[:, frame, view].flatten(1)[:, points] = of_points
    confirmed, contradicted, unseen = counts.reshape(3, *shape)
    return Agreement(confirmed=confirmed, contradicted=contradicted, unseen=unseen)


def _compare(
    own: Float[Tensor, " N"],
    rays: Float[Tensor, "N 3"],
    other: Float[Tensor, "H W"],
    cameras: Cameras,
    spread: tuple[Float[Tensor, " N"], Float[Tensor, "H W"]] | None,
) -> tuple[Bool[Tensor, " N"], Bool[Tensor, " N"]]:
    """Return which points of the first of two cameras the second confirms, and which it sees through.

    `own` are the depths of the points along their `rays`, `other` the log depth of the second camera, NaN where it is
    not known.
    """
    size = (other.shape[-2], other.shape[-1])
    warped = ray_warp(rays, cameras[0], cameras[1]).to(own).at(own)
    visible = warped.visible(size)
    column, row = pixel_indices(warped.pixels, size)
    tolerance = torch.full_like(own, TOLERANCE)
    if spread is not None:
        tolerance = (tolerance + (spread[0] + spread[1][row, column])).clamp(max=MAX_TOLERANCE)
    beyond = warped.depth.clamp(min=MIN_DEPTH).log() - around(other, column, row)
    # No comparison with NaN holds: of the pixels around, those with depth count.
    confirms = (beyond.abs() <= tolerance).any(dim=0)
    sees_through = (beyond < -tolerance).any(dim=0) & ~(beyond >= -tolerance).any(dim=0)
    return confirms & visible, sees_through & visible


def compared_views(rig: Cameras, view: int) -> list[int]:
    """Return the other views with the nearest camera centres, in order of index."""
    centers = camera_centers(rig.world_to_camera.cpu())
    distance = (centers - centers[view]).norm(dim=-1)
    distance[view] = torch.inf
    return sorted(distance.argsort(stable=True)[: min(len(distance) - 1, MAX_COMPARED_VIEWS)].tolist())


def around(maps: Float[Tensor, "H W"], column: Int[Tensor, " N"], row: Int[Tensor, " N"]) -> Float[Tensor, "9 N"]:
    """Return the values of the 3x3 pixels around some pixels, at the border of those that exist."""
    height, width = maps.shape
    steps = torch.tensor([-1, 0, 1], device=maps.device)[:, None]
    rows, columns = (row + steps).clamp_(0, height - 1).mul_(width), (column + steps).clamp_(0, width - 1)
    return maps.flatten().index_select(0, (rows[:, None] + columns).flatten()).view(9, -1)


def pixel_indices(pixels: Float[Tensor, "*batch 2"], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the columns and rows of the pixels that contain positions; those outside are moved to the border."""
    height, width = size
    inside = torch.nan_to_num(pixels, nan=-1.0).clamp(-1.0, max(height, width) + 1.0)
    column, row = inside.floor().long().unbind(-1)
    return column.clamp(0, width - 1), row.clamp(0, height - 1)
