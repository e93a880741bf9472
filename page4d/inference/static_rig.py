"""Static rigs: detection of camera motion, one averaged camera per view, and alignment of every chunk to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.choices import CameraMotion
from page4d.conventions import Scale
from page4d.geometry.averaging import align_cameras_robust, baseline_ratio, median_camera, weighted_median
from page4d.geometry.camera import Cameras, unproject
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.geometry.similarity import Sim3
from page4d.inference.stitch import MAX_CORRESPONDENCES, PlacedChunk, has_depth, static_pixels
from page4d.inference.world import has_baseline
from page4d.output.diagnostics import RigFitRecord, RigRecord, ViewMotionRecord
from page4d.predictions import Predictions

STATIC_SHARE = 0.002
"""Motion up to this share of the image's long side counts as none: 1 px of 518."""

_MIN_STEPS = 3
"""With fewer steps between instants, jitter cannot be separated from motion and counts as motion."""

_GRID_SIDE = 3
"""Points per side of the grid whose projections are compared."""

_MIN_SCALE_STD = 1e-3
"""Lower bound on the relative standard deviation of a scale estimate."""

_UNMEASURED_SCALE_STD = 1e-2
"""Relative standard deviation of the scale from camera baselines with too few instants to measure it."""

_INDEPENDENT_PIXELS = 16
"""Effective number of independent pixels in an overlap, as errors of neighbouring pixels correlate."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Displacement of cameras from static ones, as root mean squares in network pixels, for each of V views.

    Of a point in the image at the view's median depth. `jitter` changes at random between instants, `motion` is the
    rest.
    """

    jitter: Float[Tensor, " V"]
    motion: Float[Tensor, " V"]

    def static_views(self, long_side: int) -> list[bool]:
        """Return for each view whether its motion is below the threshold or its jitter."""
        return (self.motion <= self.jitter.clamp_min(STATIC_SHARE * long_side)).tolist()


def measure_shift(
    cameras: Cameras, rig: Cameras, depth: Float[Tensor, " V"], sizes: Sequence[tuple[int, int]]
) -> Shift:
    """Compare cameras [T, V] with static cameras [V], for points at one `depth` per view.

    `sizes` are the (height, width) of the views' images. The jitter is half the mean squared successive difference: a
    smooth path changes little between instants, random errors are independent.

    Source: von Neumann, "Distribution of the ratio of the mean square successive difference to the variance", 1941.
    """
    shifts = _image_shifts(cameras, rig, depth, sizes)
    total = shifts.square().sum(-1).mean((0, 2))
    steps = shifts.diff(dim=0)
    noise = steps.square().sum(-1).mean((0, 2)) / 2 if len(steps) >= _MIN_STEPS else torch.zeros_like(total)
    return Shift(jitter=noise.sqrt(), motion=(total - noise).clamp_min(0).sqrt())


def _image_shifts(
    cameras: Cameras, rig: Cameras, depth: Float[Tensor, " V"], sizes: Sequence[tuple[int, int]]
) -> Float[Tensor, "T V N 3"]:
    """Return the differences of the viewing directions of a grid of points, times the focal length.

    They equal pixel displacements where these are small, and are bounded for opposite viewing directions.
    """
    cell = rig.intrinsics.new_tensor(
        [[[_GRID_SIDE / width], [_GRID_SIDE / height], [1.0]] for height, width in sizes]
    )
    flat = depth[:, None, None].expand(-1, _GRID_SIDE, _GRID_SIDE)
    grid = unproject(flat, cell * rig.intrinsics).flatten(1, 2)
    placed = transform_points(invert_rigid(rig.world_to_camera), grid)
    seen = transform_points(cameras.world_to_camera, placed.expand(len(cameras.world_to_camera), *placed.shape))
    # Untrained networks may predict negative focal lengths.
    focal = rig.intrinsics[:, [0, 1], [0, 1]].abs().prod(-1).sqrt()[:, None, None]
    unit = torch.nn.functional.normalize
    return focal * (unit(seen, dim=-1) - unit(grid, dim=-1))


def median_depths(predictions: Predictions) -> Float[Tensor, " V"]:
    """Return the median depth of each view; that of all views where a view has none, 1 where none has."""
    known = has_depth(predictions)

    def median(depth: Tensor, where: Tensor, otherwise: Tensor) -> Tensor:
        return depth[where].double().median() if bool(where.any()) else otherwise

    of_all = median(predictions.depth, known, torch.ones((), dtype=torch.float64))
    views = range(known.shape[2])
    return torch.stack([median(predictions.depth[:, :, v], known[:, :, v], of_all) for v in views])


@dataclass(frozen=True, kw_only=True)
class StaticRig:
    """One camera for each of V views in the world, at network pixels."""

    cameras: Cameras

    def apply(self, predictions: Predictions, scale: Tensor) -> Predictions:
        """Replace the cameras of predictions, and scale depth and points to the world.

        Depth is relative to its camera and only multiplied. The points of a frame keep their positions in the camera
        frame.
        """
        axes = predictions.depth.shape[:3]
        cameras = Cameras(
            world_to_camera=self.cameras.world_to_camera.expand(*axes, 4, 4),
            intrinsics=self.cameras.intrinsics.expand(*axes, 3, 3),
            image_size=predictions.cameras.image_size,
        )
        points = predictions.points
        if points is not None:
            local = transform_points(predictions.cameras.world_to_camera.to(points), points)
            points = transform_points(cameras.camera_to_world.to(points), scale.to(points) * local)
        return replace(
            predictions, cameras=cameras, depth=predictions.depth * scale.to(predictions.depth), points=points
        )


class StaticRigAligner:
    """Decides on the first chunk whether cameras are static; if so, aligns every chunk to the same cameras.

    The average cameras of a chunk determine its rotation and translation. The scale estimates from camera baselines
    and from the depth of the overlap are weighted by their variances, and the variance of the result is propagated
    from chunk to chunk (a Kalman filter of the log scale): wide baselines stop the scale from drifting, and narrow
    ones do not add noise.
    """

    def __init__(self, requested: CameraMotion, place_first: Callable[[Predictions], Sim3]) -> None:
        self._requested, self._motion = requested, requested
        self._place_first = place_first
        self._scale_std = 0.0
        self.record: RigRecord | None = None
        self.rig: StaticRig | None = None

    def continue_from(self, rig: Cameras | None, last: RigFitRecord | None) -> None:
        """Restore the decision of an interrupted run and the fit of its last chunk; without `rig` cameras move."""
        self._motion = CameraMotion.MOVING if rig is None else CameraMotion.STATIC
        self.rig = None if rig is None else StaticRig(cameras=rig)
        self._scale_std = 0.0 if last is None else last.scale_std

    def anchor(self, predictions: Predictions, held: Predictions | None) -> PlacedChunk | None:
        """Align a chunk to the rig; None if the cameras move. `held` are its first instants, in the world already."""
        if self._motion is CameraMotion.MOVING:
            return None
        predicted = predictions.cameras[0].to(torch.float64)
        average = median_camera(predicted)
        num_points = 0
        if self.rig is None:
            transform = self._decide(predictions, predicted, average)
            if transform is None:
                return None
        else:
            scale, num_points = self._scale_of(predictions, average, held)
            transform = align_cameras_robust(average.world_to_camera, self.rig.cameras.world_to_camera, scale)
        assert self.rig is not None
        moved = replace(predicted, world_to_camera=transform.apply_to_cameras(predicted.world_to_camera))
        depths = transform.scale * median_depths(predictions)
        shift = measure_shift(moved, self.rig.cameras, depths, predictions.view_sizes)
        fit = RigFitRecord(motion_px=shift.motion.tolist(), scale_std=self._scale_std)
        return PlacedChunk(self.rig.apply(predictions, transform.scale), transform, num_points, fit)

    def _decide(self, predictions: Predictions, predicted: Cameras, average: Cameras) -> Sim3 | None:
        """Measure the motion of the first chunk; if there is none, its average cameras become the rig."""
        shift = measure_shift(predicted, average, median_depths(predictions), predictions.view_sizes)
        long_side = max(predicted.image_size)
        static = shift.static_views(long_side)
        is_static = self._motion is CameraMotion.STATIC or all(static)
        rows = zip(predictions.view_names, shift.jitter.tolist(), shift.motion.tolist(), static, strict=True)
        self.record = RigRecord(
            asked=self._requested.value,
            cameras="static" if is_static else "moving",
            num_times=predictions.num_times,
            limit_px=STATIC_SHARE * long_side,
            views=[
                ViewMotionRecord(view=name, jitter_px=jitter, motion_px=motion, still=still)
                for name, jitter, motion, still in rows
            ],
        )
        if not is_static:
            self._motion = CameraMotion.MOVING
            return None
        placed = self._place_first(StaticRig(cameras=average).apply(predictions, torch.ones(())))
        self.rig = StaticRig(
            cameras=replace(average, world_to_camera=placed.apply_to_cameras(average.world_to_camera))
        )
        self._scale_std = _MIN_SCALE_STD  # the first chunk defines the scale
        return placed

    def _scale_of(self, predictions: Predictions, average: Cameras, held: Predictions | None) -> tuple[Tensor, int]:
        """Return the scale of a chunk, and the number of pixels that determined it."""
        one = torch.ones((), dtype=torch.float64)
        if predictions.scale is Scale.METRIC:
            return one, 0
        cameras = self._scale_of_cameras(predictions, predictions.cameras[0].to(torch.float64), average)
        depth = None if held is None else _scale_of_depth(predictions.at_times(0, held.num_times), held)
        if depth is None:
            scale, self._scale_std = (one, self._scale_std) if cameras is None else cameras
            return scale, 0
        scale, std, num_points = depth
        carried = (self._scale_std**2 + std**2) ** 0.5
        if cameras is None:
            self._scale_std = carried
            return scale, num_points
        measured, measured_std = cameras
        gain = carried**2 / (carried**2 + measured_std**2)
        self._scale_std = (1 - gain) ** 0.5 * carried
        return (scale.log() + gain * (measured / scale).log()).exp(), num_points

    def _scale_of_cameras(
        self, predictions: Predictions, predicted: Cameras, average: Cameras
    ) -> tuple[Tensor, float] | None:
        """Return the scale from the distances between cameras, and its relative standard deviation.

        Errors of the instants of a chunk correlate, so averaging does not reduce them.
        """
        assert self.rig is not None
        if not has_baseline(average.centers, median_depths(predictions)):
            return None
        target = self.rig.cameras.centers
        ratio = baseline_ratio(average.centers, target)
        if ratio is None:
            return None
        each = [found for centers in predicted.centers if (found := baseline_ratio(centers, target)) is not None]
        if len(each) < 3:
            return ratio, _UNMEASURED_SCALE_STD
        return ratio, max(_robust_std((torch.stack(each) / ratio).log()), _MIN_SCALE_STD)


def _scale_of_depth(source: Predictions, target: Predictions) -> tuple[Tensor, float, int] | None:
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
    median = weighted_median(ratio, weights)
    std = _robust_std(ratio - median) / _INDEPENDENT_PIXELS**0.5
    return median.exp(), max(std, _MIN_SCALE_STD), len(chosen)


def _robust_std(residuals: Float[Tensor, " K"]) -> float:
    """Return the standard deviation of normal errors with this median absolute deviation."""
    return 1.4826 * float(residuals.abs().median())
