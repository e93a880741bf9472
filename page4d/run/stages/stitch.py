"""Stitching: every chunk is aligned to its predecessor over their shared instants, and blended there."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.alignment import DegenerateGeometryError, align_cameras, align_points_robust
from page4d.geometry.camera import Cameras, project
from page4d.geometry.rotation import rotation_angle
from page4d.geometry.statistics import central_weighted_median, median, robust_std
from page4d.geometry.time_axis import join_times
from page4d.geometry.transforms import Sim3, interpolate_rigid, transform_points
from page4d.output.record import RigFitRecord, SeamRecord
from page4d.records import Predictions
from page4d.run.chunks import Chunk

MAX_CORRESPONDENCES = 20_000
"""Maximum number of pixels of an alignment, spread evenly over the overlap."""

_MOVING = 0.5
"""Motion probability above which a pixel is left out of an alignment."""

MIN_SCALE_STD = 1e-3
"""Lower bound on the relative standard deviation of a scale estimate."""

_INDEPENDENT_PIXELS = 16
"""Effective number of independent pixels in an overlap, as errors of neighbouring pixels correlate."""


class PlacedChunk(NamedTuple):
    """A chunk in the world, the transform that brought it there, and the number of pixels that determined it."""

    predictions: Predictions
    transform: Sim3
    num_points: int = 0
    fit: RigFitRecord | None = None


Anchor = Callable[[Predictions, Predictions | None], PlacedChunk | None]
"""Places a chunk by static cameras, given its first instants that are in the world already; None if cameras move."""


@dataclass(frozen=True, kw_only=True)
class StitchedChunk:
    """The final instants of a chunk, from `chunk.start` on, with the chunk's alignment.

    `following` are the predictions of the next instant, not blended with those of the next chunk; None if there are
    none.
    """

    chunk: Chunk
    predictions: Predictions
    transform: Sim3
    seam: SeamRecord | None
    fit: RigFitRecord | None = None
    following: Predictions | None = None


def stitch(
    chunks: Iterable[tuple[Chunk, Predictions]],
    *,
    num_times: int,
    overlap: int,
    place_first: Callable[[Predictions], Sim3],
    fixed_world: bool = False,
    anchor: Anchor | None = None,
    held: Predictions | None = None,
) -> Iterator[StitchedChunk]:
    """Bring consecutive chunks into one world and yield every instant once, in order.

    `place_first` returns the transform of the first chunk. With `fixed_world` all chunks are in the world already
    (calibrated cameras) and are only blended. `anchor` places chunks of static cameras. The instants of an overlap
    are blended linearly and belong to the later chunk; `held` are those that an interrupted run had not yielded, in
    the final world.

    As only neighbours overlap, chaining their transforms is the least-squares solution for all scales and poses.

    Raises:
        UsageError: if a chunk is shorter than two overlaps, so that a blended instant would be blended again.
    """
    for chunk, predictions in chunks:
        if fixed_world:
            placed = PlacedChunk(predictions, Sim3.identity())
        else:
            placed = _place(predictions, held, place_first, anchor)
        predictions, transform, num_points, fit = placed
        del placed
        seam = None
        if held is not None:
            head = predictions.at_times(0, overlap)
            seam = measure_seam(held, head, transform, num_points)
            predictions = join_times([blend(held, head), predictions.at_times(overlap, predictions.num_times)])
        final = predictions.num_times if chunk.stop == num_times else predictions.num_times - overlap
        if chunk.stop < num_times and final < chunk.overlap:
            raise UsageError(
                f"chunks of {chunk.length} instants with an overlap of {overlap}",
                "make ⟨chunk⟩ at least twice ⟨overlap⟩",
            )
        held = predictions.at_times(final, predictions.num_times).clone()
        stitched = StitchedChunk(
            chunk=chunk,
            predictions=predictions.at_times(0, final),
            transform=transform,
            seam=seam,
            fit=fit,
            following=held.at_times(0, 1) if held.num_times else None,
        )
        del predictions  # free its memory while the next chunk is predicted
        yield stitched
        del stitched


def _place(
    predictions: Predictions,
    held: Predictions | None,
    place_first: Callable[[Predictions], Sim3],
    anchor: Anchor | None,
) -> PlacedChunk:
    """Bring a chunk into the world by static cameras, or else by its predecessor."""
    anchored = None if anchor is None else anchor(predictions, held)
    if anchored is not None:
        return anchored
    if held is None:
        transform, num_points = place_first(predictions), 0
    else:
        transform, num_points = align_chunk(predictions.at_times(0, held.num_times), held)
    return PlacedChunk(predictions.transformed(transform), transform, num_points)


def align_chunk(source: Predictions, target: Predictions) -> tuple[Sim3, int]:
    """Estimate the similarity between the worlds of two chunks over their shared instants.

    Robust, from the confident static pixels of both; from the cameras if there are too few. A metric scale is kept.
    Returns the transform and the number of pixels.
    """
    static = static_pixels(source, target)
    number = int(static.sum())
    with_scale = source.scale is not Scale.METRIC
    chosen = static.flatten().nonzero()[:: max(1, -(-number // MAX_CORRESPONDENCES)), 0]
    weights = (source.depth_confidence * target.depth_confidence).to(torch.float64).flatten()[chosen]
    points = [part.world_points().reshape(-1, 3)[chosen].to(torch.float64) for part in (source, target)]
    try:
        if not bool((weights > 0).any()):
            weights = torch.ones_like(weights)
        transform, _ = align_points_robust(points[0], points[1], weights, with_scale=with_scale)
    except DegenerateGeometryError:
        poses = [part.cameras.world_to_camera.reshape(-1, 4, 4).to(torch.float64) for part in (source, target)]
        try:
            return align_cameras(poses[0], poses[1], with_scale=with_scale), 0
        except DegenerateGeometryError:
            return align_cameras(poses[0], poses[1], with_scale=False), 0
    return transform, len(chosen)


def blend(first: Predictions, second: Predictions) -> Predictions:
    """Cross-fade linearly over shared instants; rotations are interpolated along the shortest arc.

    A pixel with depth in only one of them is taken from that one.
    """
    count = first.num_times
    fade = (torch.arange(count, dtype=torch.float64, device=first.depth.device) + 1) / (count + 1)

    def mixed(one: Tensor, two: Tensor) -> Tensor:
        weight = fade.to(one.dtype).reshape(1, count, *(1,) * (one.ndim - 2))
        return torch.lerp(one, two, weight)

    def mixed_maps(one: Tensor | None, two: Tensor | None) -> Tensor | None:
        if one is None or two is None:
            return None
        spare = (1,) * (one.ndim - known_one.ndim)
        has_one, has_two = (known.reshape(*known.shape, *spare) for known in (known_one, known_two))
        return torch.where(has_one & has_two, mixed(one, two), torch.where(has_two, two, one))

    known_one, known_two = (part.known for part in (first, second))
    steps = fade.to(first.cameras.world_to_camera.dtype)[None, :, None]
    cameras = Cameras(
        world_to_camera=interpolate_rigid(
            first.cameras.world_to_camera,
            second.cameras.world_to_camera,
            steps.expand(first.cameras.world_to_camera.shape[:-2]),
        ),
        intrinsics=mixed(first.cameras.intrinsics, second.cameras.intrinsics),
        image_size=first.cameras.image_size,
    )
    names = ("depth", "depth_confidence", "dynamic")
    maps: dict[str, Any] = {name: mixed_maps(getattr(first, name), getattr(second, name)) for name in names}
    return replace(first, cameras=cameras, **maps)


def measure_seam(earlier: Predictions, later: Predictions, transform: Sim3, num_points: int) -> SeamRecord:
    """Measure the residuals between two chunks over their shared instants; `transform` aligned the later one.

    Reprojection residuals are those in the next view, where errors of depth are visible; a single view has no other.
    """
    static = static_pixels(earlier, later)
    points = [part.world_points() for part in (earlier, later)]
    distance = (points[0] - points[1]).norm(dim=-1)
    cameras = earlier.cameras
    next_view = [matrix.roll(-1, dims=2) for matrix in (cameras.world_to_camera, cameras.intrinsics)]
    images, depths = zip(
        *(project(transform_points(next_view[0], part), next_view[1]) for part in points), strict=True
    )
    next_sizes = [(width, height) for height, width in (*earlier.view_sizes[1:], earlier.view_sizes[0])]
    size = images[0].new_tensor(next_sizes)[:, None, None]
    visible = static & (depths[0] > 0) & (depths[1] > 0) & ((images[0] >= 0) & (images[0] <= size)).all(-1)
    return SeamRecord(
        residual=median(distance[static]),
        residual_share=median((distance / earlier.depth)[static]),
        residual_px=median((images[0] - images[1]).norm(dim=-1)[visible]),
        rotation_deg=float(torch.rad2deg(rotation_angle(transform.rotation))),
        scale_ratio=float(transform.scale),
        num_points=num_points,
    )


def static_pixels(first: Predictions, second: Predictions) -> Bool[Tensor, "B T V H W"]:
    """Return the mask of pixels with depth in both chunks that move in neither."""
    static = first.known & second.known
    for part in (first, second):
        if part.dynamic is not None:
            static = static & (part.dynamic <= _MOVING)
    return static


def scale_of_depth(source: Predictions, target: Predictions) -> tuple[Tensor, float, int] | None:
    """Return the scale from the static pixels of both, its relative standard deviation, and their number."""
    static = static_pixels(source, target)
    number = int(static.sum())
    if not number:
        return None
    chosen = static.flatten().nonzero()[:: max(1, -(-number // MAX_CORRESPONDENCES)), 0]
    depths = [part.depth.flatten()[chosen].double() for part in (source, target)]
    weights = (source.depth_confidence * target.depth_confidence).flatten()[chosen].double()
    if not bool((weights > 0).any()):
        weights = torch.ones_like(weights)
    ratio = (depths[1] / depths[0]).log()
    middle = central_weighted_median(ratio, weights)
    std = robust_std(ratio - middle) / _INDEPENDENT_PIXELS**0.5
    return middle.exp(), max(std, MIN_SCALE_STD), len(chosen)
