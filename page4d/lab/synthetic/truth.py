"""Exact motion of a synthetic capture: velocities and displacements of surface points, and their trajectories."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from page4d.conventions import METRIC_DEPTH_SCALE
from page4d.formats.tracks import Tracks
from page4d.geometry.camera import world_points
from page4d.geometry.transforms import invert_rigid
from page4d.lab.synthetic.capture import RenderedFrame, SyntheticCapture, quantize, visible_points
from page4d.lab.synthetic.rigs import Rng
from page4d.lab.synthetic.world import Snapshots

TRUTH_MOTION_STEP = 1 / METRIC_DEPTH_SCALE
"""Velocity of one level of a true velocity map: 1 mm/s."""

MOTION_DEFINITION = (
    "uint16 x y z (RGB): velocity in the world in mm/s + 32768, 0 0 0 = sky; central difference of the exact "
    "position over two frame intervals, one-sided at the first and the last frame"
)

OBJECTS_DEFINITION = (
    "uint16: 1 + index of the object in `poses` of object_poses.npz, 0 = sky; poses [frame, object, 4, 4] are "
    "object_to_world"
)

TRACK_SPACING_PX = 8
"""Distance of the pixels at which tracks start, in rows and columns."""

TRACK_RESTART = 12
"""Number of frames between the instants at which tracks start."""

MAX_TRACKS = 2000
"""Maximum number of tracks; more are reduced to a random subset."""

MAX_POSITIONS = 20_000_000
"""Maximum number of positions of all tracks: long captures have fewer tracks."""

TRACKS_DEFINITION = (
    f"points on moving objects, 1 in {TRACK_SPACING_PX} px of each view in rows and columns at every "
    f"{TRACK_RESTART}th frame, at most {MAX_TRACKS}, followed exactly to the last frame; view_visibs is exact"
)


@dataclass(frozen=True, kw_only=True)
class SurfacePoints:
    """N points of the world at one frame, with the index of the object that each belongs to and their colours."""

    time: int
    points: Float[Tensor, "N 3"]
    objects: Int[Tensor, " N"]
    colors: UInt8[np.ndarray, "N 3"]


def moved_points(
    capture: SyntheticCapture,
    points: Float[Tensor, "*grid 3"],
    objects: Int[Tensor, "*grid"],
    source: float,
    target: float,
) -> Float[Tensor, "*grid 3"]:
    """Move points with their objects from the time `source` to the time `target` in seconds.

    Points of static objects are returned unchanged.
    """
    times = torch.tensor([[source, target]], dtype=torch.float64)
    first, second = capture.world.object_to_world(times)[0]
    motion = (second @ invert_rigid(first)).to(points.dtype)[objects]
    moved = (motion[..., :3, :3] @ points[..., None])[..., 0] + motion[..., :3, 3]
    return torch.where(capture.world.moving[0][objects][..., None], moved, points)


def true_velocity(capture: SyntheticCapture, frame: RenderedFrame, time: int, view: int) -> Float[Tensor, "H W 3"]:
    """Return the velocity in m/s of every pixel's point in the world, 0 in the sky.

    It is the central difference, one-sided at the first and last frame, and exactly 0 on static objects.
    """
    points, times = world_points(frame.depth.double(), capture.cameras_of(view)[time]), capture.times
    before, after = max(time - 1, 0), min(time + 1, capture.num_times - 1)
    ends = [moved_points(capture, points, frame.objects, times[time], times[end]) for end in (before, after)]
    velocity = (ends[1] - ends[0]) / float(times[after] - times[before])
    return torch.where((frame.depth > 0)[..., None], velocity, 0.0)


def object_poses(capture: SyntheticCapture) -> Float[np.ndarray, "T K 4 4"]:
    """Return the pose `object_to_world` of every object at every frame."""
    return capture.world.object_to_world(torch.from_numpy(capture.times)[None])[0].numpy()


def track_starts(capture: SyntheticCapture, frame: RenderedFrame, time: int, view: int) -> SurfacePoints:
    """Return the points of moving objects on a regular grid of pixels of a frame."""
    half, step = TRACK_SPACING_PX // 2, TRACK_SPACING_PX
    grid = torch.zeros_like(frame.dynamic)
    grid[half::step, half::step] = True
    chosen = grid & frame.dynamic & (frame.depth > 0)
    return SurfacePoints(
        time=time,
        points=world_points(frame.depth.double(), capture.cameras_of(view)[time])[chosen],
        objects=frame.objects[chosen],
        colors=quantize(frame.image)[chosen.numpy()],
    )


def start_times(capture: SyntheticCapture) -> range:
    """Return the frames at which tracks start; none starts at the last frame."""
    return range(0, capture.num_times - 1, TRACK_RESTART)


def followed_tracks(capture: SyntheticCapture, starts: Iterable[SurfacePoints], limit: int = MAX_TRACKS) -> Tracks:
    """Follow a reproducible random subset of at most `limit` points to the last frame, with their objects."""
    parts = list(starts)
    points = torch.cat([part.points for part in parts])
    objects = torch.cat([part.objects for part in parts])
    colors = np.concatenate([part.colors for part in parts])
    start = np.concatenate([np.full(len(part.points), part.time) for part in parts])
    chosen = _subset(len(points), min(limit, MAX_POSITIONS // capture.num_times), capture.seed)
    points, objects, colors, start = points[chosen], objects[chosen], colors[chosen.numpy()], start[chosen.numpy()]
    number = len(points)
    coords = np.full((capture.num_times, number, 3), np.nan, dtype=np.float32)
    visible = np.zeros((capture.num_times, number, capture.num_views), dtype=bool)
    for time in range(capture.num_times):
        moved = torch.full((number, 3), torch.nan, dtype=points.dtype)
        for first in np.unique(start[start <= time]):
            own = torch.from_numpy(start == first)
            moved[own] = moved_points(capture, points[own], objects[own], capture.times[first], capture.times[time])
        begun = torch.from_numpy(start <= time)
        coords[time] = moved.numpy()
        visible[time, begun.numpy()] = visible_views(capture, moved[begun], time)
    return Tracks(
        coords=coords,
        visibs=np.asarray(visible.any(-1)),
        view_visibs=visible,
        sigma=np.zeros((capture.num_times, number), dtype=np.float32),
        start=start.astype(np.int32),
        colors=colors,
        times=capture.times,
        ids=np.arange(number, dtype=np.int32),
    )


def visible_views(capture: SyntheticCapture, points: Float[Tensor, "N 3"], time: int) -> Bool[np.ndarray, "N V"]:
    """Return which points [N] each view [V] sees at a frame."""
    if not len(points):
        return np.zeros((0, capture.num_views), dtype=bool)
    at = torch.from_numpy(capture.times)[None, time : time + 1]
    snapshots = Snapshots.of(capture.world, at, points.dtype)
    seen = [
        visible_points(snapshots, capture.cameras_of(view)[time : time + 1], points[None, None])[0, 0]
        for view in range(capture.num_views)
    ]
    return torch.stack(seen, dim=-1).numpy()


def _subset(number: int, limit: int, seed: int) -> Int[Tensor, " n"]:
    """Return the sorted indices of a random subset of at most `limit` of `number`."""
    if number <= limit:
        return torch.arange(number)
    rng = Rng(seed, "tracks")
    keys = [rng.uniform(0, 1) for _ in range(number)]
    return torch.tensor(sorted(sorted(range(number), key=keys.__getitem__)[:limit]), dtype=torch.int64)
