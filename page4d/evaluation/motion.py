"""Motion of a capture: predicted velocities and tracks against the exact ones of the same points.

"Nothing moves" is evaluated on the same pixels as a baseline of scene flow.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError
from page4d.evaluation import motion_scores as scores
from page4d.evaluation.comparison import (
    ComparedView,
    Comparison,
    Step,
    joined,
    pixels_in_image,
    random_subset,
    true_camera,
)
from page4d.evaluation.motion_scores import PixelMotion, TrackPairs
from page4d.evaluation.record import FlowResult, MotionReport, TrackComparison, TrackReport
from page4d.formats.tracks import Tracks
from page4d.geometry.camera import project
from page4d.geometry.transforms import Sim3, invert_rigid, transform_points

MAX_MOTION_PIXELS = 4_000_000
"""Maximum number of pixels per kind of motion that errors are computed from; larger captures use a random subset."""

MOVING, SLOW, STATIC = "moving", "slow", "static"
KINDS = (MOVING, SLOW, STATIC)
"""Pixels with a true displacement above `MOVING_LIMIT`, with a smaller one, and of exactly 0."""

SAMPLING = "nearest pixel of the output's maps at the truth's pixels"


@dataclass(frozen=True, kw_only=True)
class _Pixels:
    """Pixels of one kind: a sample, and by view the numbers of all, of those with a prediction, of those still."""

    sample: PixelMotion
    counts: Float[np.ndarray, "V 3"]


def report_motion(comparison: Comparison, transform: Sim3, seed: int, step: Step) -> MotionReport | None:
    """Compare the velocities of all frames that have true ones; None without such frames.

    `transform` maps the predicted to the true world.
    """
    if not has_velocities(comparison):
        return None
    interval, times = 1 / comparison.fps, comparison.output.run.times
    frames = [(index, view) for index in comparison.instants for view in velocity_views(comparison, index)]
    limit, random = MAX_MOTION_PIXELS // len(frames), np.random.default_rng(seed)
    parts: dict[str, list[_Pixels]] = {kind: [] for kind in KINDS}
    for index in comparison.instants:
        for view in velocity_views(comparison, index):
            for kind, pixels in _frame_pixels(comparison, index, view, transform, limit, random):
                parts[kind].append(pixels)
        step()
    pooled = {
        kind: _Pixels(sample=joined([one.sample for one in own]), counts=np.sum([one.counts for one in own], axis=0))
        for kind, own in parts.items()
    }
    return MotionReport(
        sampling=SAMPLING,
        interval=interval,
        output_interval=float(np.median(np.diff(times))) if len(times) > 1 else None,
        moving_limit=scores.MOVING_LIMIT,
        frames=len(frames),
        sampled_pixels=sum(len(own.sample) for own in pooled.values()),
        known_pixels=int(sum(own.counts[:, 1].sum() for own in pooled.values())),
        moving=_result(pooled[MOVING], interval),
        moving_certain=_result(_certain(pooled[MOVING]), interval),
        slow=_result(pooled[SLOW], interval),
        static=_result(pooled[STATIC], interval),
        moving_per_view={
            view.name: _result(_of_view(pooled[MOVING], view.index), interval) for view in comparison.views
        },
    )


def has_velocities(comparison: Comparison) -> bool:
    """Return True if the output has velocities, and the truth those of a common frame."""
    return comparison.output.has_velocity and any(velocity_views(comparison, index) for index in comparison.instants)


def velocity_views(comparison: Comparison, time_index: int) -> tuple[ComparedView, ...]:
    """Return the views that have true velocities at an instant."""
    return tuple(view for view in comparison.views if view.frames[time_index] in view.truth.motion_files)


def _frame_pixels(
    comparison: Comparison, index: int, view: ComparedView, transform: Sim3, limit: int, random: np.random.Generator
) -> Iterator[tuple[str, _Pixels]]:
    """Yield the pixels of a frame by kind of motion, at most `limit` of each in the sample."""
    number = view.frames[index]
    assert number is not None
    true, has_truth = view.truth.velocity(number)
    if comparison.max_depth is not None and number in view.truth.depth_files:
        has_truth &= view.truth.depth(number) < comparison.max_depth
    velocity, sigma = (
        _at_pixels_of(values, view.truth.image_size) for values in comparison.output.velocity(index, view.name)
    )
    way = np.linalg.norm(true, axis=-1) / comparison.fps
    kinds = {MOVING: way > scores.MOVING_LIMIT, SLOW: (way > 0) & (way <= scores.MOVING_LIMIT), STATIC: way == 0}
    for kind, of_kind in kinds.items():
        counted = has_truth & of_kind
        known = counted & (sigma > 0)
        counts = np.zeros((len(comparison.output.view_names), 3))
        counts[view.index] = counted.sum(), known.sum(), (known & (velocity == 0).all(-1)).sum()
        chosen = np.unravel_index(random_subset(known, limit, random), known.shape)
        vectors = transform.apply_to_vectors(torch.from_numpy(velocity[chosen]).double())
        sample = PixelMotion(
            predicted=vectors.numpy().astype(np.float32),
            true=true[chosen],
            sigma=(sigma[chosen] * float(transform.scale)).astype(np.float32),
            view=np.full(len(vectors), view.index, dtype=np.float32),
        )
        yield kind, _Pixels(sample=sample, counts=counts)


def _at_pixels_of(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Return a map [H, W, ...] at the pixels of `size`, by the nearest pixel."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, values.shape[:2], strict=True)
    )
    return values[rows[:, None], columns]


def _of_view(pixels: _Pixels, view: int) -> _Pixels:
    return _Pixels(sample=pixels.sample[pixels.sample.view == view], counts=pixels.counts[view : view + 1])


def _certain(pixels: _Pixels) -> _Pixels:
    """Return the pixels whose predicted speed is 0 or above its standard deviation, their number from the sample."""
    speed = np.linalg.norm(pixels.sample.predicted, axis=-1)
    chosen = (speed == 0) | (speed > pixels.sample.sigma)
    counts = pixels.counts.copy()
    counts[:, 1] *= chosen.mean() if len(chosen) else 0.0
    return _Pixels(sample=pixels.sample[chosen], counts=counts)


def _result(pixels: _Pixels, interval: float) -> FlowResult:
    motion, (counted, known, still) = pixels.sample, pixels.counts.sum(0).tolist()
    predicted, true = motion.predicted.astype(np.float64), motion.true.astype(np.float64)
    return FlowResult(
        pixels=int(counted),
        known_pixels=int(known),
        cover=known / counted if counted else None,
        still=still / known if known else None,
        mean_speed=float(np.linalg.norm(predicted, axis=-1).mean()) if len(motion) else None,
        true_displacement=float(np.linalg.norm(true, axis=-1).mean()) * interval if len(motion) else None,
        errors=scores.score_flow(predicted, true, interval),
        nothing_moves=scores.score_flow(np.zeros_like(true), true, interval),
        sigma=scores.score_sigma(motion, interval),
    )


VISIBILITY_GAP = 0.02
"""Depth in metres by which a visible point may lie behind the true surface of its pixel or a neighbour."""

_DEFINITION = (
    "world coordinates; a track's truth is the point of the true surface at the pixel where the track starts, moved "
    "with its object; displacements since the start are compared; instants after the start with true depth count"
)


@dataclass(frozen=True, kw_only=True)
class TrueStarts:
    """True points [N, 3] at the starts of N tracks, their object, frame and view; NaN and -1 where unknown.

    `views` are indices of views of the output, in which the tracks start.
    """

    points: Float[np.ndarray, "N 3"]
    objects: Int[np.ndarray, " N"]
    frames: Int[np.ndarray, " N"]
    views: Int[np.ndarray, " N"]

    @property
    def known(self) -> Bool[np.ndarray, " N"]:
        """True for tracks whose true point is known."""
        return np.asarray(self.objects >= 0)


def report_tracks(comparison: Comparison, transform: Sim3) -> TrackReport | None:
    """Compare all predicted tracks with the true ones; None if the output has none, or the truth no objects.

    `transform` maps the predicted to the true world.

    Raises:
        InputError: if a file is damaged or of another run.
    """
    if not has_tracks(comparison):
        return None
    predicted = comparison.output.tracks()
    expected = (comparison.output.num_times, len(comparison.output.view_names))
    if (len(predicted.times), predicted.view_visibs.shape[-1]) != expected:
        raise InputError(
            f"'{comparison.output.layout.tracks}' has {len(predicted.times)} instants of "
            f"{predicted.view_visibs.shape[-1]} views, the run {expected[0]} of {expected[1]}",
            "run page4d again",
        )
    starts = true_starts(comparison, predicted)
    chosen = np.flatnonzero(starts.known)
    true, visible = _true_tracks(comparison, starts, chosen, predicted.start[chosen].astype(int))
    coords = transform.apply(torch.from_numpy(predicted.coords[:, chosen]).double()).numpy()
    pairs, start_error = paired_tracks(predicted, starts, coords, true, visible)
    mine, theirs, pixel = _in_cameras(comparison, starts.views[chosen], coords, true)
    paths = pairs.paths
    return TrackReport(
        definition=_DEFINITION,
        tracks=predicted.num_tracks,
        matched=len(pairs.start),
        start_error=start_error,
        tapvid3d=scores.score_tapvid3d(mine, theirs, predicted.visibs[:, chosen], visible, pixel),
        overall=_compared(pairs),
        dynamic=_compared(pairs.select(paths > scores.DYNAMIC_PATH)),
        static=_compared(pairs.select(paths < scores.STATIC_PATH)),
    )


def has_tracks(comparison: Comparison) -> bool:
    """Return True if the output has tracks, and the truth objects with poses."""
    motion = comparison.output.run.motion
    has_objects = any(view.truth.object_files for view in comparison.views)
    return (
        motion is not None and motion.tracks is not None and comparison.truth.poses_file is not None and has_objects
    )


def _labelled_views(comparison: Comparison, instant: int) -> list[ComparedView]:
    """Return the views with true depth and objects at an instant."""
    return [view for view in comparison.depth_views(instant) if view.frames[instant] in view.truth.object_files]


def true_starts(comparison: Comparison, predicted: Tracks) -> TrueStarts:
    """Return the point of the true surface at the pixel where each track starts.

    Of the views that see the start, the one counts in which it is nearest to the centre of a pixel of the maps:
    tracks start at pixels, and in other views an error of depth moves them to another pixel.
    """
    number = predicted.num_tracks
    points, (objects, frames, views) = np.full((number, 3), np.nan), np.full((3, number), -1)
    nearest = np.full(number, np.inf)
    for instant in np.unique(predicted.start).tolist():
        for view in _labelled_views(comparison, instant):
            frame, camera = view.frames[instant], true_camera(view, instant)
            if frame is None or camera is None:
                continue
            own = np.flatnonzero((predicted.start == instant) & predicted.view_visibs[instant, :, view.index])
            start = torch.from_numpy(predicted.coords[instant, own]).double()
            row, column, inside, away = _start_pixels(comparison, view, instant, start)
            depth = view.truth.depth(frame)[row, column].astype(np.float64)
            found = view.truth.objects(frame)[row, column]
            rays = np.stack([column + PIXEL_CENTER, row + PIXEL_CENTER, np.ones(len(own))], axis=-1)
            local = torch.from_numpy(rays * depth[:, None]) @ torch.linalg.inv(view.truth.intrinsics.double()).T
            better = inside & (depth > 0) & (found >= 0) & (away < nearest[own])
            points[own[better]] = transform_points(invert_rigid(camera.double()), local).numpy()[better]
            objects[own[better]], frames[own[better]], nearest[own[better]] = found[better], frame, away[better]
            views[own[better]] = view.index
    return TrueStarts(points=points, objects=objects, frames=frames, views=views)


def _in_cameras(
    comparison: Comparison,
    views: Int[np.ndarray, " N"],
    predicted: Float[np.ndarray, "T N 3"],
    true: Float[np.ndarray, "T N 3"],
) -> tuple[Float[np.ndarray, "T N 3"], Float[np.ndarray, "T N 3"], Float[np.ndarray, "T N"]]:
    """Return both tracks in the true cameras in which they start, and the width of a pixel at the true points."""
    own = [np.full(true.shape, np.nan) for _ in range(2)]
    pixel = np.full(true.shape[:2], np.nan)
    for view in comparison.views:
        columns = np.flatnonzero(views == view.index)
        focal = float((view.truth.intrinsics[0, 0] * view.truth.intrinsics[1, 1]).sqrt())
        for instant in comparison.instants:
            camera = true_camera(view, instant)
            if camera is None or not len(columns):
                continue
            for place, values in zip(own, (predicted, true), strict=True):
                points = torch.from_numpy(values[instant, columns])
                place[instant, columns] = transform_points(camera.double(), points).numpy()
            pixel[instant, columns] = own[1][instant, columns, 2] / focal
    return own[0], own[1], pixel


def paired_tracks(
    predicted: Tracks,
    starts: TrueStarts,
    coords: Float[np.ndarray, "T N 3"],
    true: Float[np.ndarray, "T N 3"],
    visible: Bool[np.ndarray, "T N"],
) -> tuple[TrackPairs, float | None]:
    """Return the tracks with a known true point and their truth, and the median distance of their starts.

    `coords`, `true` and `visible` are those of these tracks, in the true world.
    """
    chosen = np.flatnonzero(starts.known)
    start, row = predicted.start[chosen].astype(int), np.arange(len(chosen))
    begin = coords[start, row]
    after = np.arange(len(coords))[:, None] > start
    away = np.linalg.norm(begin - starts.points[chosen], axis=-1)
    pairs = TrackPairs(
        predicted=coords - begin,
        true=np.where(after[..., None], true - starts.points[chosen], np.nan),
        predicted_visible=predicted.visibs[:, chosen],
        true_visible=visible,
        measured=np.isfinite(coords[..., 0]),
        start=start,
    )
    return pairs, float(np.median(away)) if len(away) else None


def _start_pixels(
    comparison: Comparison, view: ComparedView, instant: int, points: Float[Tensor, "N 3"]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Project points of the predicted world by the predicted camera to rows and columns of the truth's image.

    The last value is the distance from the centre of a pixel of the maps, in their pixels.
    """
    camera = comparison.output.cameras.world_to_camera[instant, view.index].double()
    local = transform_points(camera, points)
    row, column, inside, _ = pixels_in_image(local, comparison.intrinsics(view)[instant], view.truth.image_size)
    on_map, _ = project(local, comparison.output.intrinsics_at_maps(view.name)[instant].double())
    away = (on_map - on_map.floor() - PIXEL_CENTER).abs().amax(-1).nan_to_num(nan=torch.inf)
    return row, column, inside, away.numpy()


def _true_tracks(
    comparison: Comparison, starts: TrueStarts, chosen: Int[np.ndarray, " N"], start: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "T N 3"], Bool[np.ndarray, "T N"]]:
    """Move the true points with their objects; NaN where no view has true depth.

    A point is visible in a view if its object is at its pixel or a neighbour, not nearer than the point by more than
    `VISIBILITY_GAP`.
    """
    poses = torch.from_numpy(comparison.truth.object_poses())
    objects, frames = starts.objects[chosen], starts.frames[chosen]
    if len(chosen) and (objects.max() >= poses.shape[1] or frames.max() >= len(poses)):
        raise InputError(
            f"'{comparison.truth.poses_file}' has {poses.shape[1]} objects at {len(poses)} frames, the maps more",
            "write the truth again with page4d synthesize --truth-motion",
        )
    local = transform_points(invert_rigid(poses[frames, objects]), torch.from_numpy(starts.points[chosen]))
    instants = comparison.output.num_times
    true = np.full((instants, len(chosen), 3), np.nan)
    visible = np.zeros((instants, len(chosen)), dtype=bool)
    for instant in range(instants):
        views = [view for view in _labelled_views(comparison, instant) if true_camera(view, instant) is not None]
        number = views[0].frames[instant] if views else None
        if number is None or number >= len(poses):
            continue
        begun = np.flatnonzero(start <= instant)
        points = transform_points(poses[number, objects[begun]], local[begun])
        true[instant, begun] = points.numpy()
        for view in views:
            visible[instant, begun] |= _visible(view, instant, points, objects[begun])
    return true, visible


def _visible(
    view: ComparedView, instant: int, points: Float[Tensor, "N 3"], objects: Int[np.ndarray, " N"]
) -> NDArray[np.bool_]:
    """Return which points of the true world a view sees at an instant, by its true depth and objects."""
    number, camera = view.frames[instant], true_camera(view, instant)
    assert number is not None
    assert camera is not None
    depth, labels = view.truth.depth(number), view.truth.objects(number)
    local = transform_points(camera.double(), points)
    row, column, inside, distance = pixels_in_image(local, view.truth.intrinsics, view.truth.image_size)
    seen = np.zeros(len(points), dtype=bool)
    for down, right in itertools.product((-1, 0, 1), repeat=2):
        place = (row + down).clip(0, len(depth) - 1), (column + right).clip(0, depth.shape[1] - 1)
        seen |= (labels[place] == objects) & (distance <= depth[place] + VISIBILITY_GAP)
    return inside & seen


def _compared(pairs: TrackPairs) -> TrackComparison | None:
    """Score tracks and the baseline; None without tracks."""
    if not len(pairs.start):
        return None
    return TrackComparison(tracks=scores.score_tracks(pairs), nothing_moves=scores.score_tracks(pairs.staying()))
