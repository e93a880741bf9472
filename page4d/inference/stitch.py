"""All chunks in one world: each is brought onto the one before by what they share, and blended there."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.registration import DegenerateGeometryError, align_cameras, align_points_robust
from page4d.geometry.rigid import interpolate_rigid
from page4d.geometry.similarity import Sim3
from page4d.inference.chunks import Chunk
from page4d.inference.seams import Seam, has_depth, measure_seam, static_pixels
from page4d.predictions import Predictions, join_times

MAX_CORRESPONDENCES = 20_000
"""Pixels that decide an alignment; they are spread evenly over the overlap."""


@dataclass(frozen=True, kw_only=True)
class RigFit:
    """How a chunk fits cameras that stand still: how far its own are from them, and how sure its scale is.

    `motion_px` is in network pixels at the median depth, for each view and with the jitter left out. `scale_std` is a
    standard deviation, as a share of the scale.
    """

    motion_px: tuple[float, ...]
    scale_std: float


class Placed(NamedTuple):
    """A chunk in the world: the map that brought it there, and the number of pixels that decided it."""

    predictions: Predictions
    transform: Sim3
    num_points: int = 0
    fit: RigFit | None = None


Anchor = Callable[[Predictions, Predictions | None], Placed | None]
"""Brings a chunk to cameras that stand still, given the instants of it that are in the world; None if none do."""


@dataclass(frozen=True, kw_only=True)
class Stitched:
    """Instants from `chunk.start` on that are final, with how their chunk was brought into the world."""

    chunk: Chunk
    predictions: Predictions
    transform: Sim3
    seam: Seam | None
    fit: RigFit | None = None


def stitch(
    chunks: Iterable[tuple[Chunk, Predictions]],
    *,
    num_times: int,
    overlap: int,
    place_first: Callable[[Predictions], Sim3],
    fixed_world: bool = False,
    anchor: Anchor | None = None,
    held: Predictions | None = None,
) -> Iterator[Stitched]:
    """Bring consecutive chunks into one world and yield every instant once, in order.

    `place_first` gives the world of the first chunk. With `fixed_world` the chunks share a world already (calibrated
    cameras) and are only blended. `anchor` places those of cameras that stand still. The instants of an overlap are
    blended linearly and come out with the later chunk; `held` are those that an interrupted run had not yielded, in
    the final world.

    Only neighbours overlap, so the chain of their maps is the least-squares solution for all scales and poses at
    once: it meets every map exactly, and there is no second one to weigh against it.

    Raises:
        UsageError: if a chunk is shorter than two overlaps, so that a blended instant would be blended again.
    """
    for chunk, predictions in chunks:
        if fixed_world:
            placed = Placed(predictions, Sim3.identity())
        else:
            placed = _placed(predictions, held, place_first, anchor)
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
                "make --chunk at least twice --overlap",
            )
        held = predictions.at_times(final, predictions.num_times).clone()
        stitched = Stitched(
            chunk=chunk, predictions=predictions.at_times(0, final), transform=transform, seam=seam, fit=fit
        )
        del predictions  # one chunk is alive while the next is predicted, and this is not it
        yield stitched
        del stitched


def _placed(
    predictions: Predictions,
    held: Predictions | None,
    place_first: Callable[[Predictions], Sim3],
    anchor: Anchor | None,
) -> Placed:
    """Bring a chunk into the world: onto the cameras that stand still, or else onto the chunk before."""
    anchored = None if anchor is None else anchor(predictions, held)
    if anchored is not None:
        return anchored
    if held is None:
        transform, num_points = place_first(predictions), 0
    else:
        transform, num_points = align_chunk(predictions.at_times(0, held.num_times), held)
    return Placed(predictions.transformed(transform), transform, num_points)


def align_chunk(source: Predictions, target: Predictions) -> tuple[Sim3, int]:
    """Find the map from one chunk's world to another's over the instants that both hold.

    The same confident, static pixels of both decide it, robustly; where there are too few, the cameras do. A metric
    scale is not touched. Returns the map and the number of pixels.
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
    """Fade from one to the other over the instants that both hold; cameras turn on the shortest arc.

    A pixel that only one of them knows is taken from that one.
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

    known_one, known_two = (has_depth(part) for part in (first, second))
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
    depth = mixed_maps(first.depth, second.depth)
    confidence = mixed_maps(first.depth_confidence, second.depth_confidence)
    assert depth is not None
    assert confidence is not None
    return replace(
        first,
        cameras=cameras,
        depth=depth,
        depth_confidence=confidence,
        points=mixed_maps(first.points, second.points),
        points_confidence=mixed_maps(first.points_confidence, second.points_confidence),
        dynamic=mixed_maps(first.dynamic, second.dynamic),
    )
