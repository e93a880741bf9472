"""Scene flow of a rig: dense optical flow of its views, displacements of points between instants, and velocities.

Optical flow is checked forward and backward; the noise of the pictures is estimated.

The flow of a view gives the ray on which a point lies at the other instant; the flow of other views, at the pixels
where they see the same point, gives its depth on this ray. Differences of two depth maps are not used: the errors of
predicted depth are larger than the motion. Points that stand still have a displacement of exactly 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from page4d.conventions import PIXEL_CENTER
from page4d.geometry.camera import MIN_DEPTH, Cameras, normalize_pixels, pixel_grid, project
from page4d.geometry.transforms import transform_points
from page4d.geometry.warp import WarpedPixels, compared_views, pixel_indices, sample

MAX_INCONSISTENCY_PX = 1.0
"""Largest distance between a pixel and the end of its flow forward and backward."""

MIN_SIDE = 16
"""Smallest side in px of a picture whose flow can be computed: OpenCV fails below 12 px."""

_MIN_NOISE = 0.5
"""Smallest noise of the difference of two pictures, in levels of 8 bits: that of rounding."""

_CLIP, _CLIPPINGS, _CLIPPED_DEVIATION = 2.5, 8, 0.955
"""Limit in standard deviations, repetitions, and the deviation of a normal variable of unit variance cut there."""

_HALF_NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a normal variable of unit variance."""


class ViewFlow(NamedTuple):
    """Optical flow of a picture in px, whether it is consistent with the flow back, and where the picture changes.

    `changed` is False where the picture differs from the other one by no more than noise around the pixel.
    """

    flow: Float[Tensor, "H W 2"]
    consistent: Bool[Tensor, "H W"]
    changed: Bool[Tensor, "H W"]


def to_gray(image: Float[Tensor, "3 H W"]) -> UInt8[np.ndarray, "H W"]:
    """Convert RGB in [0, 1] to luma of 8 bits. Source: ITU-R BT.601."""
    weights = image.new_tensor([0.299, 0.587, 0.114])
    return (torch.einsum("c,chw->hw", weights, image) * 255).round().to(torch.uint8).numpy()


def optical_flow(
    first: UInt8[np.ndarray, "H W"], second: UInt8[np.ndarray, "H W"]
) -> tuple[Float[np.ndarray, "H W 2"], Float[np.ndarray, "H W 2"]]:
    """Return the flow from the first picture to the second, and back, in px.

    Source: Kroeger et al. (2016), dense inverse search, in OpenCV's implementation down to the full resolution.
    """
    search = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    start = np.zeros((*first.shape, 2), dtype=np.float32)  # not used as a first guess by default
    forward = search.calc(first, second, start.copy())
    return np.asarray(forward, dtype=np.float32), np.asarray(search.calc(second, first, start), dtype=np.float32)


def view_flow(
    first: UInt8[np.ndarray, "H W"],
    second: UInt8[np.ndarray, "H W"],
    forward: Float[np.ndarray, "H W 2"],
    backward: Float[np.ndarray, "H W 2"],
) -> ViewFlow:
    """Check the flow from the first picture to the second with that back."""
    flow, back = torch.from_numpy(forward), torch.from_numpy(backward)
    ends = pixel_grid(*first.shape) + flow
    returned = sample(back.permute(2, 0, 1)[None], ends[None])[0].permute(1, 2, 0)
    height, width = first.shape
    inside = (ends > 0).all(-1) & (ends[..., 0] < width) & (ends[..., 1] < height)
    consistent = inside & ((flow + returned).norm(dim=-1) < MAX_INCONSISTENCY_PX)
    return ViewFlow(flow, consistent, torch.from_numpy(changed_pixels(first, second)))


def difference_noise(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> float:
    """Return the standard deviation of the noise of a difference, in levels, if most of the picture stands still.

    It is that of the differences below `_CLIP` deviations, repeatedly.
    """
    counts = np.bincount(cv2.absdiff(first, second).ravel(), minlength=256).astype(np.float64)
    levels = np.arange(256)
    noise = max(float(np.searchsorted(counts.cumsum(), counts.sum() / 2)) / _HALF_NORMAL_MEDIAN, _MIN_NOISE)
    for _ in range(_CLIPPINGS):
        kept = counts * (levels <= max(_CLIP * noise, 1.0))
        noise = max(float(np.sqrt((kept * levels**2).sum() / kept.sum())) / _CLIPPED_DEVIATION, _MIN_NOISE)
    return noise


PATCH = 7
"""Side in px of the patches whose change is compared with noise."""

MAX_CHANGE = 2.0
"""Root mean square of the difference of a patch that noise explains, in standard deviations of the noise."""


def changed_pixels(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return where the patch around a pixel differs between two pictures by more than noise."""
    limit = MAX_CHANGE * difference_noise(first, second)
    squares = cv2.absdiff(first, second).astype(np.float32) ** 2
    return np.asarray(cv2.blur(squares, (PATCH, PATCH), borderType=cv2.BORDER_REFLECT)) > limit * limit


STILL_LIMIT_PX = 0.3
"""Flow, less that which the camera's motion induces, below which a pixel stands still."""

CLEAR_MOTION_PX = 1.0
"""Flow, less that which the camera's motion induces, above which a pixel of the motion mask moves in any case."""

DEPTH_TOLERANCE = 0.06
"""Relative difference of depth up to which another view sees the same point."""

EXACT_DEPTH_TOLERANCE = 0.02
"""The same for depth from a sensor."""

MAX_COLOR_DIFFERENCE = 20 / 255
"""Largest mean difference of RGB between the pixels of two views that see the same point."""

MAX_EPIPOLAR_PX = 1.5
"""Largest distance of the end of another view's flow from the epipolar line of the point's new ray."""

FLOW_NOISE_PX = 0.3
"""Standard deviation of the error of optical flow where it is consistent."""

SIGMA_FACTOR = 2.0
"""Ratio of measured errors to those that follow from the noise of flow: 93 % of the errors are then within 2 sigma
(`tools/measure_motion.py`), as those of a normal variable are."""

STILL = 255
"""In place of the number of views that measured a motion: the point stands still."""

_ROUNDS = 6
_ALONG = 2.0
"""Standard deviation of the prior of no motion along the ray, relative to the motion across it: it matters only with
little parallax."""

_CAUCHY_PX = 1.0


@dataclass(frozen=True, kw_only=True)
class FlowView:
    """One view at an instant: its depth map, its picture, and its flow to another instant, all on their own grids.

    `moving` is the motion mask of the depth map, None where there is none. `depth_camera` and `camera` are the view's
    camera at the instant, for pixels of the depth map and of the picture; `target` is that of the picture at the
    other instant.
    """

    depth: Float[Tensor, "h w"]
    known: Bool[Tensor, "h w"]
    moving: Bool[Tensor, "h w"] | None
    image: Float[Tensor, "3 H W"]
    flow: ViewFlow
    depth_camera: Cameras
    camera: Cameras
    target: Cameras

    def lift(self, pixels: Int[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
        """Return the points in the world of pixels (column, row) of the depth map."""
        depth = self.depth[pixels[:, 1], pixels[:, 0]].double()
        in_camera = _on_rays(pixels + PIXEL_CENTER, self.depth_camera) * depth[:, None]
        return transform_points(self.camera.camera_to_world, in_camera)

    def lift_at(self, pixels: Float[Tensor, "N 2"]) -> tuple[Float[Tensor, "N 3"], Bool[Tensor, " N"]]:
        """Return the points in the world of positions in the picture, and whether their depth is known."""
        rays = _on_rays(pixels, self.camera)
        places = WarpedPixels(*project(rays, self.depth_camera.intrinsics))
        known = places.visible(self.depth.shape) & nearest(self.known, places.pixels)
        in_camera = rays * nearest(self.depth, places.pixels).double()[:, None]
        return transform_points(self.camera.camera_to_world, in_camera), known

    def stands_still(self, world: Float[Tensor, "N 3"]) -> Bool[Tensor, " N"]:
        """Return whether the view shows no motion at points: by flow, by unchanged pictures, or by its mask."""
        pixels, ends, _ = flow_ends(self, world)
        still: Tensor = self.own_motion_px(world, ends) < STILL_LIMIT_PX
        if self.stands:
            still = still | ~nearest(self.flow.changed, pixels)
        if self.moving is not None:
            still = still | ~nearest(self.moving, projected(world, self.depth_camera).pixels)
        return still

    def own_motion_px(self, world: Float[Tensor, "N 3"], ends: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
        """Return the length of the flow of points that ends at pixels, less what the camera's motion induces."""
        length: Tensor = (ends - projected(world, self.target).pixels).norm(dim=-1)
        return length

    @property
    def stands(self) -> bool:
        """Whether the camera is the same at both instants."""
        own, other = self.camera, self.target
        return torch.equal(own.world_to_camera, other.world_to_camera) and torch.equal(
            own.intrinsics, other.intrinsics
        )


class PointMotion(NamedTuple):
    """Motion of the points of a depth map, its standard deviation, and the number of views that measured it.

    The motion is a displacement to another instant, in units of the scene, or a velocity, in these per second.
    `views` is 0 where it is unknown, with a sigma of 0, and `STILL` where points stand still, with a motion of
    exactly 0. Of a displacement that one view measured, sigma is at least the length.
    """

    motion: Float[Tensor, "h w 3"]
    sigma: Float[Tensor, "h w"]
    views: UInt8[Tensor, "h w"]


class FlowEnds(NamedTuple):
    """Pixels at which a view shows N points, where its flow ends, and whether it is consistent there."""

    pixels: Float[Tensor, "N 2"]
    ends: Float[Tensor, "N 2"]
    consistent: Bool[Tensor, " N"]


class Seen(NamedTuple):
    """Whether another view sees N points, a surface before them or one behind them, and its depth at their pixels."""

    sees: Bool[Tensor, " N"]
    occludes: Bool[Tensor, " N"]
    passes: Bool[Tensor, " N"]
    depth: Float[Tensor, " N"]


def rig_flow(views: Sequence[FlowView], tolerance: float = DEPTH_TOLERANCE) -> list[PointMotion]:
    """Return the displacement of the points of every view to the other instant.

    `tolerance` is the relative difference of depth up to which two views see the same point.
    """
    moving = [_moving_pixels(view) for view in views]
    rig = Cameras(
        world_to_camera=torch.stack([view.camera.world_to_camera for view in views]),
        intrinsics=torch.stack([view.camera.intrinsics for view in views]),
        image_size=(1, 1),
    )
    compared = [compared_views(rig, index) for index in range(len(views))]
    return [
        _displacement(view, own, [(views[other], moving[other]) for other in others], tolerance)
        for view, own, others in zip(views, moving, compared, strict=True)
    ]


def _moving_pixels(view: FlowView) -> Bool[Tensor, "h w"]:
    """Return the pixels of the depth map at which the view shows motion."""
    doubtful = view.known if view.moving is None else view.known & view.moving
    pixels = torch.nonzero(doubtful)
    moving = torch.zeros_like(view.known)
    moving[doubtful] = ~view.stands_still(view.lift(pixels.flip(-1)))
    return moving


def _displacement(
    view: FlowView,
    moving: Bool[Tensor, "h w"],
    compared: Sequence[tuple[FlowView, Bool[Tensor, "h w"]]],
    tolerance: float,
) -> PointMotion:
    """Return the displacement of the points of a view; views come with the pixels at which they show motion."""
    others = [other for other, _ in compared]
    sigma = SIGMA_FACTOR * FLOW_NOISE_PX * view.depth.double() / focal_length(view.camera)
    motion = sigma.new_zeros(*view.depth.shape, 3)
    count = torch.where(view.known, STILL, 0).to(torch.uint8)
    # Points that neither this view nor another one shows moving need no votes.
    shown = [_shown(view, *one) for one in compared]
    doubtful = torch.nonzero(view.known & torch.stack([moving, *shown]).any(0))
    own_vote = moving[tuple(doubtful.T)]
    world = view.lift(doubtful.flip(-1))
    flow = flow_ends(view, world)
    color = sample_map(view.image, flow.pixels)
    seen = [correspondence(world, color, other, tolerance).sees for other in others]
    votes = torch.where(own_vote, -1, 1)
    others_votes = [still_votes(other, world, sees) for other, sees in zip(others, seen, strict=True)]
    votes = sum(others_votes, votes)
    if view.moving is not None:
        # With a wrong depth, other views show the surface behind the point: they do not outvote a clear motion.
        clear = view.own_motion_px(world, flow.ends) > CLEAR_MOTION_PX
        votes = torch.where(clear & own_vote, -1, votes)
    count[tuple(doubtful[votes <= 0].T)] = 0
    chosen = torch.nonzero((votes <= 0) & flow.consistent)[:, 0]
    place, start = tuple(doubtful[chosen].T), world[chosen]
    flows = [flow_ends(other, start) for other in others]
    ends = solve_rays(
        view.target,
        start,
        flow.ends[chosen],
        [other.target for other in others],
        [one.ends for one in flows],
        [(vote[chosen] < 0) & one.consistent for vote, one in zip(others_votes, flows, strict=True)],
    )
    motion[place], count[place] = ends.world - start, ends.views
    sigma[place] = ends.sigma + torch.where(ends.views == 1, motion[place].norm(dim=-1), 0.0)
    return PointMotion(motion, torch.where(count > 0, sigma, 0.0), count)


def _shown(view: FlowView, other: FlowView, moving: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Return the pixels of a view, and their neighbors, at which points lie that another view shows moving."""
    places = projected(other.lift(torch.nonzero(moving).flip(-1)), view.depth_camera)
    columns, rows = places.pixels[places.visible(view.depth.shape)].long().unbind(-1)
    shown = torch.zeros(view.depth.shape)
    shown[rows, columns] = 1.0
    return functional.max_pool2d(shown[None], 3, stride=1, padding=1)[0] > 0


def still_votes(view: FlowView, world: Float[Tensor, "N 3"], sees: Bool[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Return 1 where a view that sees a point shows no motion, -1 where it does, 0 where it sees no point."""
    votes = torch.zeros(len(world), dtype=torch.int64)
    votes[sees] = torch.where(view.stands_still(world[sees]), 1, -1)
    return votes


def correspondence(
    world: Float[Tensor, "N 3"], color: Float[Tensor, "3 N"] | None, other: FlowView, tolerance: float
) -> Seen:
    """Find points in another view: it sees a point of equal depth, and color if given, at the same instant."""
    at_depth = projected(world, other.depth_camera)
    depth = at_depth.depth
    known = at_depth.visible(other.depth.shape) & nearest(other.known, at_depth.pixels)
    found = nearest(other.depth, at_depth.pixels).double()
    sees = known & ((found - depth).abs() < tolerance * depth)
    if color is not None:
        pixels = projected(world, other.camera).pixels
        sees = sees & ((sample_map(other.image, pixels) - color).abs().mean(0) < MAX_COLOR_DIFFERENCE)
    return Seen(sees, known & ~sees & (found < depth), known & ~sees & (found >= depth), found)


def flow_ends(view: FlowView, world: Float[Tensor, "N 3"]) -> FlowEnds:
    """Return where the flow of a view takes points."""
    pixels = projected(world, view.camera).pixels
    ends = pixels + sample_map(view.flow.flow.permute(2, 0, 1), pixels).T.double()
    return FlowEnds(pixels, ends, nearest(view.flow.consistent, pixels))


class RayEnds(NamedTuple):
    """Positions of N points on their new rays, the standard deviation, and the number of views that measured them."""

    world: Float[Tensor, "N 3"]
    sigma: Float[Tensor, " N"]
    views: UInt8[Tensor, " N"]


def solve_rays(
    camera: Cameras,
    start: Float[Tensor, "N 3"],
    ends: Float[Tensor, "N 2"],
    others: Sequence[Cameras],
    other_ends: Sequence[Float[Tensor, "N 2"]],
    counts: Sequence[Bool[Tensor, " N"]],
) -> RayEnds:
    """Place points on the rays of the pixels `ends` of a camera, where other cameras see them at `other_ends`.

    One unknown per point, its depth, is estimated by iteratively reweighted least squares with Cauchy weights and a
    weak prior of no change from `start`. A view counts where its end lies near the epipolar line. Without such a view
    the depth stays as it was.
    """
    origin = camera.centers
    rays = transform_points(camera.camera_to_world, _on_rays(ends, camera)) - origin
    before = projected(start, camera).depth
    counts = [
        count & (_epipolar_distance(origin, rays, before, other, end) < MAX_EPIPOLAR_PX)
        for count, other, end in zip(counts, others, other_ends, strict=True)
    ]
    depth = before.clone()
    across = FLOW_NOISE_PX * before / focal_length(camera)
    shift = (origin + rays * before[:, None] - start).norm(dim=-1)
    prior = (rays.norm(dim=-1) / (_ALONG * (shift + across))).square()
    for step in range(_ROUNDS + 1):
        information, gradient = prior.clone(), prior * (before - depth)
        squares, inliers = torch.zeros_like(depth), torch.zeros_like(depth)
        for count, other, end in zip(counts, others, other_ends, strict=True):
            residual, slope, ahead = _residual(origin, rays, depth, other, end)
            square = residual.square().sum(-1)
            weight = torch.where(count & ahead, 1 / (1 + square / _CAUCHY_PX**2) if step else 1.0, 0.0)
            information = information + weight * slope.square().sum(-1) / FLOW_NOISE_PX**2
            gradient = gradient - weight * (slope * residual).sum(-1) / FLOW_NOISE_PX**2
            inlier = (weight > 1 / 2).double()
            squares, inliers = squares + inlier * square, inliers + inlier
        if step < _ROUNDS:
            depth = (depth + gradient / information).clamp(min=before / 4, max=before * 4)
    alone = inliers == 0
    depth = torch.where(alone, before, depth)
    world = origin + rays * depth[:, None]
    # The flow errors of a point exceed the usual noise where its rays do not meet.
    excess = (squares / inliers.clamp(min=1)).sqrt() / FLOW_NOISE_PX
    along = rays.norm(dim=-1) / information.sqrt() * excess.clamp(min=1.0)
    sigma = torch.where(alone, across, (across.square() + along.square()).sqrt())
    return RayEnds(world, SIGMA_FACTOR * sigma, (1 + inliers).to(torch.uint8))


def _residual(
    origin: Tensor, rays: Tensor, depth: Tensor, other: Cameras, end: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return residuals [N, 2] in px of points on rays, their derivatives by depth, and whether they count."""
    rotation, matrix = other.world_to_camera[:3, :3], other.intrinsics
    point = transform_points(other.world_to_camera, origin + rays * depth[:, None])
    direction = rays @ rotation.T
    z = point[:, 2].clamp(min=MIN_DEPTH)
    plane = point[:, :2] / z[:, None]
    slope = (direction[:, :2] - plane * direction[:, 2:]) / z[:, None]
    residual = plane @ matrix[:2, :2].T + matrix[:2, 2] - end
    return residual, slope @ matrix[:2, :2].T, point[:, 2] > MIN_DEPTH


def _epipolar_distance(origin: Tensor, rays: Tensor, depth: Tensor, other: Cameras, end: Tensor) -> Tensor:
    """Return the distance [N] in px of pixels of another camera from the epipolar lines of rays."""
    residual, slope, _ = _residual(origin, rays, depth, other, end)
    along = functional.normalize(slope, dim=-1)
    return (residual[:, 0] * along[:, 1] - residual[:, 1] * along[:, 0]).abs()


def _on_rays(pixels: Float[Tensor, "N 2"], camera: Cameras) -> Float[Tensor, "N 3"]:
    """Return the rays of pixels in the camera frame, of z = 1."""
    plane = normalize_pixels(pixels, camera.intrinsics)
    return torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1)


def projected(world: Float[Tensor, "N 3"], camera: Cameras) -> WarpedPixels:
    """Project points of the world into a camera."""
    return WarpedPixels(*project(transform_points(camera.world_to_camera, world), camera.intrinsics))


def focal_length(camera: Cameras) -> Float[Tensor, ""]:
    """Return the geometric mean of both focal lengths in px."""
    return (camera.intrinsics[0, 0] * camera.intrinsics[1, 1]).abs().sqrt()


def sample_map(maps: Float[Tensor, "C H W"], pixels: Float[Tensor, "N 2"]) -> Float[Tensor, "C N"]:
    """Sample maps bilinearly at positions in px."""
    return sample(maps[None].float(), torch.nan_to_num(pixels, nan=-1.0).clamp(-1e6, 1e6)[None].float())[0]


def nearest(maps: Tensor, pixels: Float[Tensor, "N 2"]) -> Tensor:
    """Take the values of a map [H, W] at the nearest pixels, those of the border outside."""
    columns, rows = pixel_indices(pixels, (maps.shape[0], maps.shape[1]))
    return maps[rows, columns]


ONE_SIDED_ERROR = 0.25
"""Standard deviation of a one-sided difference relative to the displacement: half a step of acceleration."""


def combine(
    before: PointMotion | None, after: PointMotion | None, seconds_before: float, seconds_after: float
) -> PointMotion:
    """Return the velocities from the displacements to the instants before and after, by central differences.

    `seconds_before` and `seconds_after` are the positive distances in time. Where one of the displacements is
    unknown, or only one of them was measured by several views, the difference is one-sided.
    """
    if before is None or after is None:
        side, seconds = (after, seconds_after) if before is None else (before, -seconds_before)
        assert side is not None
        return _one_sided(side, seconds)
    sides = (_one_sided(before, -seconds_before), _one_sided(after, seconds_after))
    span = seconds_before + seconds_after
    both = (before.views > 0) & (after.views > 0) & ((before.views > 1) == (after.views > 1))
    take_after = (before.views == 0) | (after.views > 1)  # the better one, where only one of them is

    def chosen(central: Tensor, of_before: Tensor, of_after: Tensor) -> Tensor:
        spare = (1,) * (central.ndim - both.ndim)
        one = torch.where(take_after.reshape(*both.shape, *spare), of_after, of_before)
        return torch.where(both.reshape(*both.shape, *spare), central, one)

    central = PointMotion(
        (after.motion - before.motion) / span,
        (after.sigma.square() + before.sigma.square()).sqrt() / span,
        torch.minimum(after.views, before.views),
    )
    return PointMotion(*(chosen(*parts) for parts in zip(central, *sides, strict=True)))


def _one_sided(side: PointMotion, seconds: float) -> PointMotion:
    change = ONE_SIDED_ERROR * side.motion.norm(dim=-1)
    sigma = (side.sigma.square() + change.square()).sqrt() / abs(seconds)
    # A component of exactly 0 keeps its sign: no -0.0 in files.
    velocity = side.motion / seconds + 0.0
    return PointMotion(velocity, torch.where(side.views > 0, sigma, 0.0), side.views)
