"""Cameras that stand still: one camera a view for a whole capture, to which every chunk is brought."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.export.run_record import RigFitRecord
from page4d.geometry.averaging import align_cameras_robust, baseline_ratio, median_camera, weighted_median
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import transform_points
from page4d.geometry.similarity import Sim3
from page4d.inference.motion import CameraMotion, Shift, measure_shift, median_depths
from page4d.inference.seams import static_pixels
from page4d.inference.stitch import MAX_CORRESPONDENCES, Placed, RigFit
from page4d.inference.world import has_baseline
from page4d.predictions import Predictions

_SURE = 1e-3
"""No estimate of a scale is trusted to better than this share of it."""

_UNMEASURED = 1e-2
"""How far the scale of cameras is trusted where too few instants show how it varies."""

_INDEPENDENT_PIXELS = 16
"""Errors of neighbouring pixels are alike: all pixels of an overlap tell as much as so many independent ones."""


@dataclass(frozen=True, kw_only=True)
class StillRig:
    """One camera for each of V views in the world, at network pixels."""

    cameras: Cameras

    def hold(self, predictions: Predictions, scale: Tensor) -> Predictions:
        """Give predictions these cameras, and their depth and points the scale of the world.

        Depth is only multiplied: it belongs to the camera, wherever that stands. The points of a frame were predicted
        along with its camera and stay where they are before it.
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


@dataclass(frozen=True, kw_only=True)
class Stillness:
    """What the first chunk showed of the cameras' motion over `num_times` instants, and what was decided."""

    shift: Shift
    still: list[bool]
    num_times: int
    is_static: bool


class RigKeeper:
    """Decides on the first chunk whether the cameras stand still; if so, brings every chunk to the same cameras.

    The cameras of the views, averaged over a chunk, say how it lies in the world. What they say of the scale and what
    the depth of the overlap says of it are weighed by their variances, and the variance of the result is carried from
    chunk to chunk (a Kalman filter of the logarithm): cameras far apart keep the scale from drifting, and cameras
    close together do not shake it.
    """

    def __init__(self, asked: CameraMotion, place_first: Callable[[Predictions], Sim3]) -> None:
        self._asked = asked
        self._place_first = place_first
        self._scale_std = 0.0
        self.stillness: Stillness | None = None
        self.rig: StillRig | None = None

    def continue_from(self, rig: Cameras | None, last: RigFitRecord | None) -> None:
        """Take up what an interrupted run had decided, and how its last chunk fitted; without `rig` cameras move."""
        self._asked = CameraMotion.MOVING if rig is None else CameraMotion.STATIC
        self.rig = None if rig is None else StillRig(cameras=rig)
        self._scale_std = 0.0 if last is None else last.scale_std

    def anchor(self, predictions: Predictions, held: Predictions | None) -> Placed | None:
        """Bring a chunk to the rig; None if the cameras move. `held` are the first instants in the world already."""
        if self._asked is CameraMotion.MOVING:
            return None
        seen = _in_double(predictions.cameras[0])
        own = median_camera(seen)
        num_points = 0
        if self.rig is None:
            transform = self._decide(predictions, seen, own)
            if transform is None:
                return None
        else:
            scale, num_points = self._scale_of(predictions, own, held)
            transform = align_cameras_robust(own.world_to_camera, self.rig.cameras.world_to_camera, scale)
        assert self.rig is not None
        moved = replace(seen, world_to_camera=transform.apply_to_cameras(seen.world_to_camera))
        depths = transform.scale * median_depths(predictions)
        shift = measure_shift(moved, self.rig.cameras, depths, predictions.view_sizes)
        fit = RigFit(motion_px=tuple(shift.motion.tolist()), scale_std=self._scale_std)
        return Placed(self.rig.hold(predictions, transform.scale), transform, num_points, fit)

    def _decide(self, predictions: Predictions, seen: Cameras, own: Cameras) -> Sim3 | None:
        """Measure the motion of the first chunk; if there is none, make its average cameras the rig's."""
        shift = measure_shift(seen, own, median_depths(predictions), predictions.view_sizes)
        still = shift.still_views(max(seen.image_size))
        is_static = self._asked is CameraMotion.STATIC or all(still)
        self.stillness = Stillness(shift=shift, still=still, num_times=predictions.num_times, is_static=is_static)
        if not is_static:
            self._asked = CameraMotion.MOVING
            return None
        placed = self._place_first(StillRig(cameras=own).hold(predictions, torch.ones(())))
        self.rig = StillRig(cameras=replace(own, world_to_camera=placed.apply_to_cameras(own.world_to_camera)))
        self._scale_std = _SURE  # what its depth and cameras say together is what the scale is
        return placed

    def _scale_of(self, predictions: Predictions, own: Cameras, held: Predictions | None) -> tuple[Tensor, int]:
        """Return the scale of a chunk, and the number of pixels that had a say in it."""
        one = torch.ones((), dtype=torch.float64)
        if predictions.scale is Scale.METRIC:
            return one, 0
        cameras = self._scale_of_cameras(predictions, _in_double(predictions.cameras[0]), own)
        depth = None if held is None else _scale_of_depth(predictions.at_times(0, held.num_times), held)
        if depth is None:
            scale, self._scale_std = (one, self._scale_std) if cameras is None else cameras
            return scale, 0
        scale, std, num_points = depth
        carried = (self._scale_std**2 + std**2) ** 0.5
        if cameras is None:
            self._scale_std = carried
            return scale, num_points
        seen, seen_std = cameras
        gain = carried**2 / (carried**2 + seen_std**2)
        self._scale_std = (1 - gain) ** 0.5 * carried
        return (scale.log() + gain * (seen / scale).log()).exp(), num_points

    def _scale_of_cameras(self, predictions: Predictions, seen: Cameras, own: Cameras) -> tuple[Tensor, float] | None:
        """Return the scale that the distances between the cameras give, and its standard deviation as a share.

        The errors of the instants of a chunk are alike: that of their average is no smaller.
        """
        assert self.rig is not None
        if not has_baseline(own.centers, median_depths(predictions)):
            return None
        target = self.rig.cameras.centers
        ratio = baseline_ratio(own.centers, target)
        if ratio is None:
            return None
        each = [said for at in seen.centers if (said := baseline_ratio(at, target)) is not None]
        if len(each) < 3:
            return ratio, _UNMEASURED
        return ratio, max(_robust_std((torch.stack(each) / ratio).log()), _SURE)


def _scale_of_depth(source: Predictions, target: Predictions) -> tuple[Tensor, float, int] | None:
    """Return the scale that the static pixels of both give, its standard deviation as a share, and their number."""
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
    return median.exp(), max(std, _SURE), len(chosen)


def _robust_std(residuals: Float[Tensor, " K"]) -> float:
    """Return the standard deviation that normal errors with this median size have."""
    return 1.4826 * float(residuals.abs().median())


def _in_double(cameras: Cameras) -> Cameras:
    return replace(cameras, world_to_camera=cameras.world_to_camera.double(), intrinsics=cameras.intrinsics.double())
