"""Point clouds of one instant, and of what does not move: from depth or point maps through the filters to points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import ShapeError, UsageError
from page4d.formats.maps import DYNAMIC_THRESHOLD, to_bytes, to_numpy
from page4d.formats.open3d import estimate_normals, remove_outliers
from page4d.formats.ply import PointCloud, join_clouds, offset_text
from page4d.geometry.camera import unproject
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.options import PointOptions
from page4d.records import Predictions

MAX_VIEWS = 256
"""Views are stored in one byte."""

_MIN_LENGTH = 1e-12
_STRIP_ROWS = 64
"""Rows of a map that are filtered together: those of whole maps do not stay in the cache of a core."""


def merged_cloud(instant: Predictions, options: PointOptions | None = None, seed: int = 0) -> PointCloud:
    """Merge the points of all views of one instant [1, 1, V, H, W], view by view and row by row.

    Raises:
        ShapeError: if there is more than one instant.
        UsageError: if the options ask for points that are not predicted, or there are too many views.
    """
    options = options or PointOptions()
    _check(instant)
    cloud = join_clouds([_view_cloud(instant, view, options)[0] for view in range(len(instant.view_names))])
    return _thinned(cloud, instant, options, seed)


def static_cloud(background: Predictions, options: PointOptions | None = None, seed: int = 0) -> PointCloud:
    """Merge the depth maps of the background [1, 1, V, H, W], a surface that several views show once.

    Among points closer than about the width of their pixels on the surface, that of the finest pixel stays, among
    pixels of about equal width the most confident one. The filters are those of a merged cloud; points have no
    velocities.

    Raises:
        ShapeError: if there is more than one instant.
        UsageError: if there are too many views.
    """
    options = options or PointOptions()
    _check(background)
    footprints = pixel_footprints(background)[0, 0]
    clouds, widths = [], []
    for view in range(len(background.view_names)):
        cloud, keep = _view_cloud(background, view, options)
        clouds.append(replace(cloud, dynamic=np.zeros_like(cloud.dynamic), velocity=None, velocity_sigma=None))
        widths.append(to_numpy(footprints[view][keep]))
    cloud = join_clouds(clouds)
    cloud = cloud[footprint_subset(cloud.xyz, cloud.confidence, np.concatenate(widths))]
    return _thinned(cloud, background, options, seed)


def _check(instant: Predictions) -> None:
    if instant.depth.shape[:2] != (1, 1):
        raise ShapeError(f"a cloud of {tuple(instant.depth.shape[:2])} instants", "give one with at_times")
    if len(instant.view_names) > MAX_VIEWS:
        raise UsageError(f"{len(instant.view_names)} views in one cloud", f"use at most {MAX_VIEWS} views")


def _thinned(cloud: PointCloud, instant: Predictions, options: PointOptions, seed: int) -> PointCloud:
    """Apply the filters of a whole cloud, and add normals."""
    if options.voxel_size > 0:
        cloud = cloud[voxel_subset(cloud.xyz, cloud.confidence, options.voxel_size)]
    if options.outliers:
        cloud = remove_outliers(cloud)
    if options.normals:
        camera_to_world = invert_rigid(instant.cameras.world_to_camera[0, 0].detach().cpu().double())
        cloud = estimate_normals(cloud, to_numpy(camera_to_world[:, :3, 3]))
    if 0 < options.max_points < cloud.num_points:
        cloud = cloud[random_subset(cloud.num_points, options.max_points, seed)]
    return cloud


@dataclass(frozen=True)
class ViewSurface:
    """Points of one view's pixels [H, W], their confidence in [0, 1], and which of them pass the filters.

    `in_camera` and `in_world` are [H, W, 3]; the points of pixels that do not pass may be anything.
    """

    in_camera: Float[Tensor, "H W 3"]
    in_world: Float[Tensor, "H W 3"]
    confidence: Float[Tensor, "H W"]
    keep: Bool[Tensor, "H W"]


def view_surface(instant: Predictions, view: int, options: PointOptions) -> ViewSurface:
    """Lift the pixels of one view of an instant [1, 1, V, H, W] to points in double precision, and filter them."""
    world_to_camera = instant.cameras.world_to_camera[0, 0, view].detach().cpu().double()
    valid = instant.valid[0, 0, view].cpu()
    valid &= instant.pixel_transforms[view].content_mask((valid.shape[0], valid.shape[1]))
    depth = instant.depth[0, 0, view].detach().cpu().double()
    in_camera = unproject(depth, instant.cameras.intrinsics[0, 0, view].detach().cpu().double())
    in_world = transform_points(invert_rigid(world_to_camera), in_camera)
    confidence = torch.nan_to_num(instant.depth_confidence[0, 0, view].detach().cpu().float(), nan=0.0).clamp(
        0.0, 1.0
    )
    valid = valid & (in_camera[..., 2] > 0) & in_world.isfinite().all(-1)  # of no other point in the camera
    keep = valid & (confidence >= options.min_confidence)
    if instant.agreement is not None and options.min_views:
        # Enough views see the pixel, and no more views see through it than confirm it.
        confirmed = instant.agreement.confirmed[0, 0, view].cpu()
        keep &= (confirmed >= options.min_views - 1) & instant.agreement.is_kept[0, 0, view].cpu()
    if options.edge_angle_deg < 90:
        keep = keep & surface_mask(in_camera, valid, options.edge_angle_deg)
    return ViewSurface(in_camera, in_world, confidence, keep)


def _view_cloud(instant: Predictions, view: int, options: PointOptions) -> tuple[PointCloud, Bool[Tensor, "H W"]]:
    """Return the points of a view, and the pixels that they belong to."""
    surface = view_surface(instant, view, options)
    places = surface.keep.flatten().nonzero()[:, 0]

    def kept(maps: Float[Tensor, "H W *_"]) -> NDArray[np.float32]:
        return to_numpy(maps.detach().cpu().flatten(0, 1).index_select(0, places).float())

    velocity, sigma = (
        None if maps is None else kept(maps[0, 0, view]) for maps in (instant.velocity, instant.velocity_sigma)
    )
    dynamic = torch.zeros(surface.keep.shape) if instant.dynamic is None else instant.dynamic[0, 0, view]
    cloud = PointCloud(
        xyz=kept(surface.in_world),
        rgb=to_bytes(to_numpy(instant.images[0, 0, view].detach().cpu().flatten(1).index_select(1, places).T)),
        confidence=kept(surface.confidence),
        view=np.full(len(places), view, dtype=np.uint8),
        dynamic=(kept(dynamic) > DYNAMIC_THRESHOLD).astype(np.uint8),
        velocity=velocity,
        velocity_sigma=sigma,
    )
    return cloud, surface.keep


def surface_mask(
    points: Float[Tensor, "H W 3"], valid: Bool[Tensor, "H W"], edge_angle_deg: float
) -> Bool[Tensor, "H W"]:
    """Return False on pixels that float between two surfaces instead of lying on one.

    Along both image axes the less steep of a pixel's two one-sided slopes must belong to a surface that is seen less
    than `edge_angle_deg` from the front. Both pixels at a sharp edge are smooth on their own side and stay; a pixel
    between two depths is steep on both and goes. `points` are in the camera frame: the slope is an angle between
    points, so that a tilted plane has the same at every resolution. Invalid neighbours do not count, and a pixel
    without a neighbour on an axis passes there.
    """
    strips, height = [], len(valid)
    for start in range(0, height, _STRIP_ROWS):
        first, last = max(0, start - 1), min(height, start + _STRIP_ROWS + 1)
        found = _surface_mask(points[first:last].movedim(-1, 0), valid[first:last], edge_angle_deg)
        strips.append(found[start - first :][:_STRIP_ROWS])
    return torch.cat(strips)


def _surface_mask(
    points: Float[Tensor, "3 H W"], valid: Bool[Tensor, "H W"], edge_angle_deg: float
) -> Bool[Tensor, "H W"]:
    steepest = math.tan(math.radians(edge_angle_deg))
    points = torch.where(valid, points, 1.0).contiguous()
    rays = points / _length(points)
    keep = valid
    for axis, steps in enumerate(side - 1 for side in valid.shape):
        (before, after), (first, second), (here, there) = (
            (maps.narrow(dim, 0, steps), maps.narrow(dim, 1, steps))
            for maps, dim in ((points, axis + 1), (rays, axis + 1), (valid, axis))
        )
        step, ray = after - before, first + second
        ray /= _length(ray)
        along = (step * ray).sum(dim=0)
        smooth = along.abs() <= steepest * _length(step - along * ray)
        counts = here & there
        keep = keep & (_on_either_side(smooth & counts, axis) | ~_on_either_side(counts, axis))
    return keep


def _length(vectors: Float[Tensor, "3 H W"]) -> Float[Tensor, "H W"]:
    """Return the lengths of vectors, at least a tiny number."""
    return vectors.square().sum(dim=0).sqrt_().clamp_(min=_MIN_LENGTH)


def _on_either_side(steps: Bool[Tensor, "H W"], axis: int) -> Bool[Tensor, "H W"]:
    """Return for every pixel whether one of its two steps to neighbours along the axis is set."""
    before, after = ((0, 0, 1, 0), (0, 0, 0, 1)) if axis == 0 else ((1, 0), (0, 1))
    return torch.nn.functional.pad(steps, before) | torch.nn.functional.pad(steps, after)


def voxel_subset(xyz: NDArray[np.float32], confidence: NDArray[np.float32], voxel_size: float) -> NDArray[np.int64]:
    """Return the indices, increasing, of the most confident point of every voxel; the first of equals."""
    cells = np.floor(xyz.astype(np.float64) / voxel_size)
    order = np.lexsort((-confidence.astype(np.float64), cells[:, 2], cells[:, 1], cells[:, 0]))
    sorted_cells = cells[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (sorted_cells[1:] != sorted_cells[:-1]).any(axis=1)
    return np.sort(order[first])


def footprint_subset(
    xyz: NDArray[np.float32], confidence: NDArray[np.float32], footprint: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the indices, increasing, of points that are about their footprint apart; `footprint` [N] is positive.

    Footprints are rounded to powers of two. From the finest to the coarsest, voxels of that width keep their most
    confident point unless they hold one of a finer footprint: near surfaces keep their detail, and a view from afar
    adds what no nearer one shows.
    """
    level = np.rint(np.log2(footprint)).astype(np.int64)
    kept = np.empty(0, dtype=np.int64)
    for exponent in np.unique(level):
        candidates = np.flatnonzero(level == exponent)
        chosen = np.concatenate([kept, candidates])
        # Finer points come first in their voxels, and all of them stay.
        rank = np.concatenate([np.full(len(kept), np.inf, dtype=np.float32), confidence[candidates]])
        first = chosen[voxel_subset(xyz[chosen], rank, float(2.0**exponent))]
        kept = np.concatenate([kept, first[level[first] == exponent]])
    return np.sort(kept)


def pixel_footprints(predictions: Predictions) -> Float[Tensor, "1 T V H W"]:
    """Return the width of each pixel on the surface that it shows, depth / focal length; 0 without depth."""
    intrinsics = predictions.cameras.intrinsics.detach().cpu().double()
    focal = (intrinsics[..., 0, 0] * intrinsics[..., 1, 1]).abs().sqrt()
    return torch.nan_to_num(predictions.depth.detach().cpu().double()) / focal[..., None, None]


def random_subset(number: int, kept: int, seed: int) -> NDArray[np.int64]:
    """Return `kept` of `number` indices, increasing, the same for the same seed."""
    return np.sort(np.random.default_rng(seed).choice(number, size=kept, replace=False))


def offset_comment(offset: Sequence[float]) -> str:
    """Return the comment of a file whose positions are about an offset."""
    return f"offset {offset_text(offset)}: add it to x y z for the world of cameras.json"


def cloud_comments(
    instant: Predictions, view_files: Sequence[str], kind: str = "", offset: Sequence[float] | None = None
) -> list[str]:
    """Return the comments of a cloud's header: axes, unit, time, offset, and the meaning of its properties.

    `kind` is what the points are if not those of an instant.
    """
    has_velocity = instant.velocity is not None and not kind
    dynamic = "0" if kind else "1 = moving" if instant.dynamic is not None else "not predicted"
    return [
        "written by page4d",
        "axes OpenCV: x right, y down, z forward; world frame of cameras.json",
        f"unit {instant.scale.unit}",
        *([] if offset is None else [offset_comment(offset)]),
        kind or f"time {float(instant.times[0])!r} seconds",
        f"confidence 0 to 1, higher is better; dynamic {dynamic}",
        *([f"velocity in {instant.scale.unit}s per second; vsigma 0 = unknown"] if has_velocity else []),
        *(f"view {index} {name}" for index, name in enumerate(view_files)),
    ]
