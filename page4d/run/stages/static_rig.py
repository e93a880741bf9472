"""Static rigs: detection of camera motion, one averaged camera per view, and alignment of every chunk to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from page4d.choices import CameraMotion
from page4d.conventions import Scale
from page4d.errors import Level, Notice, counted
from page4d.geometry import alignment
from page4d.geometry.camera import Cameras, unproject
from page4d.geometry.pixels import PixelTransform, shared_canvas
from page4d.geometry.statistics import robust_std
from page4d.geometry.transforms import Sim3, invert_rigid, transform_points
from page4d.io.json_records import DOUBLES, FileModel
from page4d.output.record import RigFitRecord, RigRecord, ViewMotionRecord
from page4d.output.rig_record import Count
from page4d.records import Predictions
from page4d.rig.camera_motion import ViewMotion
from page4d.run.stage import History, Instant, Stage
from page4d.run.stages.stitch import MIN_SCALE_STD, PlacedChunk, scale_of_depth
from page4d.run.stages.world import has_baseline
from page4d.scene.batches import scene_cameras
from page4d.scene.records import Scene

STATIC_SHARE = 0.002
"""Motion up to this share of the image's long side counts as none: 1 px of 518."""

_MIN_STEPS = 3
"""With fewer steps between instants, jitter cannot be separated from motion and counts as motion."""

_GRID_SIDE = 3
"""Points per side of the grid whose projections are compared."""

_UNMEASURED_SCALE_STD = 1e-2
"""Relative standard deviation of the scale from camera baselines with too few instants to measure it."""


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
    known = predictions.known

    def median(depth: Tensor, where: Tensor, otherwise: Tensor) -> Tensor:
        return depth[where].double().median() if bool(where.any()) else otherwise

    of_all = median(predictions.depth, known, torch.ones((), dtype=torch.float64))
    views = range(known.shape[2])
    return torch.stack([median(predictions.depth[:, :, v], known[:, :, v], of_all) for v in views])


def registered_rig(scene: Scene, transforms: Sequence[PixelTransform]) -> "StaticRig | None":
    """Return the cameras of a scene of which only some views have one, at network pixels; None for other scenes."""
    views = tuple(index for index, view in enumerate(scene.views) if view.camera is not None)
    if len(views) in (0, scene.num_views):
        return None
    placed = replace(scene, views=tuple(scene.views[view] for view in views))
    cameras = scene_cameras(placed, [transforms[view] for view in views], 0, 1)
    assert cameras is not None
    return StaticRig(cameras=replace(cameras[0, 0], image_size=shared_canvas(transforms)), views=views)


@dataclass(frozen=True, kw_only=True)
class StaticRig:
    """One camera for each of S static views in the world, at network pixels; `views` are their indices."""

    cameras: Cameras
    views: tuple[int, ...]

    def apply(self, predictions: Predictions, transform: Sim3) -> Predictions:
        """Bring predictions into the world by a transform, with the cameras of static views replaced.

        Depth is relative to its camera and only multiplied.
        """
        axes, static = predictions.depth.shape[:2], list(self.views)
        poses = transform.apply_to_cameras(predictions.cameras.world_to_camera.to(torch.float64)).clone()
        intrinsics = predictions.cameras.intrinsics.to(torch.float64).clone()
        poses[:, :, static] = self.cameras.world_to_camera.to(poses).expand(*axes, -1, 4, 4)
        intrinsics[:, :, static] = self.cameras.intrinsics.to(intrinsics).expand(*axes, -1, 3, 3)
        cameras = replace(predictions.cameras, world_to_camera=poses, intrinsics=intrinsics)
        depth = predictions.depth * transform.scale.to(predictions.depth)
        return replace(predictions, cameras=cameras, depth=depth)


class RigState(FileModel):
    """The decision on camera motion, and the cameras of the static views at pixels of an image (height, width).

    `static_views` are their indices.
    """

    rig: RigRecord
    image_size: tuple[PositiveInt, PositiveInt]
    static_views: list[Count] = Field(default_factory=list)
    world_to_camera: Annotated[Float[Tensor, "..."], DOUBLES] = torch.zeros(0)
    intrinsics: Annotated[Float[Tensor, "..."], DOUBLES] = torch.zeros(0)

    @staticmethod
    def of(record: RigRecord, rig: StaticRig | None, image_size: tuple[int, int]) -> "RigState":
        """Record the static cameras, or none."""
        if rig is None:
            return RigState(rig=record, image_size=image_size)
        return RigState(
            rig=record,
            image_size=image_size,
            static_views=list(rig.views),
            world_to_camera=rig.cameras.world_to_camera,
            intrinsics=rig.cameras.intrinsics,
        )

    def static_rig(self) -> StaticRig | None:
        """Return the static cameras, or None if all move."""
        if not self.static_views:
            return None
        poses, intrinsics = self.world_to_camera, self.intrinsics
        cameras = Cameras(world_to_camera=poses, intrinsics=intrinsics, image_size=self.image_size)
        return StaticRig(cameras=cameras, views=tuple(self.static_views))


class StaticRigAligner(Stage[RigState]):
    """Decides on the first chunk which cameras are static, and aligns every chunk to them.

    `measure` judges the views from pixels; those that it does not determine are static if all their predicted cameras
    are. Static views get one camera, moving ones keep a camera per instant. With `registered` cameras of some static
    views the world is theirs.

    The average cameras of a chunk determine its rotation and translation. The scale estimates from camera baselines
    and from the depth of the overlap are weighted by their variances, and the variance of the result is propagated
    from chunk to chunk (a Kalman filter of the log scale): wide baselines stop the scale from drifting, and narrow
    ones do not add noise.
    """

    name, decision = "rig", RigState

    def __init__(
        self,
        requested: CameraMotion,
        place_first: Callable[[Predictions], Sim3],
        measure: Callable[[], Sequence[ViewMotion]] = tuple,
        registered: StaticRig | None = None,
    ) -> None:
        self._requested, self._is_moving = requested, False
        self._place_first, self._measure, self._registered = place_first, measure, registered
        self._scale_std = 0.0
        self.record: RigRecord | None = None
        self.rig: StaticRig | None = None

    def restore(self, history: History) -> None:
        """Restore the decision, and the fit of the last chunk."""
        super().restore(history)
        if self.decided is None:
            return
        last = history.finished[-1]
        self.rig = self.decided.static_rig()
        self._is_moving = self.rig is None
        self._scale_std = 0.0 if last.record.rig is None else last.record.rig.scale_std

    def __call__(self, instant: Instant) -> Instant:
        """Report the decision at the first instant."""
        if instant.index > 0 or self.record is None:
            return instant
        self.decided = RigState.of(self.record, self.rig, instant.chunk.cameras.image_size)
        return instant.with_notices(rig_notice(self.record))

    def anchor(self, predictions: Predictions, held: Predictions | None) -> PlacedChunk | None:
        """Align a chunk to the rig; None if all cameras move. `held` are its first instants, in the world already."""
        if self._is_moving:
            return None
        predicted = predictions.cameras[0].to(torch.float64)
        average = alignment.median_camera(predicted)
        num_points = 0
        if self.rig is None:
            transform = self._decide(predictions, predicted, average)
            if transform is None:
                return None
        else:
            anchors = self._registered or self.rig
            scale, num_points = self._scale_of(predictions, average, held, anchors)
            transform = _aligned(average, anchors, scale)
        assert self.rig is not None
        static = list(self.rig.views)
        moved = replace(predicted, world_to_camera=transform.apply_to_cameras(predicted.world_to_camera))
        depths = transform.scale * median_depths(predictions)
        sizes = [predictions.view_sizes[view] for view in static]
        shift = measure_shift(moved[:, static], self.rig.cameras, depths[static], sizes)
        motion = dict(zip(static, shift.motion.tolist(), strict=True))
        if self._registered is not None:  # it is the prediction that is wrong, not the camera that moves
            motion.update(dict.fromkeys(self._registered.views, 0.0))
        motions = [motion.get(view, 0.0) for view in range(len(predictions.view_names))]
        fit = RigFitRecord(motion_px=motions, scale_std=self._scale_std)
        return PlacedChunk(self.rig.apply(predictions, transform), transform, num_points, fit)

    def _decide(self, predictions: Predictions, predicted: Cameras, average: Cameras) -> Sim3 | None:
        """Decide which views of the first chunk are static; their average cameras become the rig."""
        shift = measure_shift(predicted, average, median_depths(predictions), predictions.view_sizes)
        long_side = max(predicted.image_size)
        steady = shift.static_views(long_side)
        pixels = {motion.view: motion for motion in self._measure()}
        verdicts = [pixels[name].is_static if name in pixels else None for name in predictions.view_names]
        unknown = all(steady[view] for view, verdict in enumerate(verdicts) if verdict is None)
        static = [unknown if verdict is None else verdict for verdict in verdicts]
        if self._requested is not CameraMotion.AUTO:
            static = [self._requested is CameraMotion.STATIC] * len(static)
        for view in () if self._registered is None else self._registered.views:
            static[view] = True
        found = [steady[view] if verdict is None else verdict for view, verdict in enumerate(verdicts)]
        self.record = RigRecord(
            asked=self._requested.value,
            cameras="static" if all(static) else "mixed" if any(static) else "moving",
            num_times=predictions.num_times,
            limit_px=STATIC_SHARE * long_side,
            views=[
                _motion_record(name, shift, view, found[view], static[view], pixels.get(name))
                for view, name in enumerate(predictions.view_names)
            ],
        )
        self._is_moving = not any(static)
        if self._is_moving:
            return None
        views = tuple(view for view, is_static in enumerate(static) if is_static)
        return self._place(predictions, average, views)

    def _place(self, predictions: Predictions, average: Cameras, views: tuple[int, ...]) -> Sim3:
        """Bring the first chunk into the world, and make its static cameras the rig."""
        known = self._registered
        if known is None:
            own = StaticRig(cameras=average[list(views)], views=views)
            placed = self._place_first(own.apply(predictions, Sim3.identity()))
            self._scale_std = MIN_SCALE_STD  # the first chunk defines the scale
        else:
            found = self._scale_of_cameras(predictions, average, known)
            scale, self._scale_std = found or (torch.ones((), dtype=torch.float64), MIN_SCALE_STD)
            placed = _aligned(average, known, scale)
        poses, intrinsics = placed.apply_to_cameras(average.world_to_camera), average.intrinsics.clone()
        if known is not None:
            poses[list(known.views)] = known.cameras.world_to_camera.to(poses)
            intrinsics[list(known.views)] = known.cameras.intrinsics.to(intrinsics)
        cameras = replace(average, world_to_camera=poses, intrinsics=intrinsics)
        self.rig = StaticRig(cameras=cameras[list(views)], views=views)
        return placed

    def _scale_of(
        self, predictions: Predictions, average: Cameras, held: Predictions | None, anchors: StaticRig
    ) -> tuple[Tensor, int]:
        """Return the scale of a chunk, and the number of pixels that determined it."""
        one = torch.ones((), dtype=torch.float64)
        if predictions.scale is Scale.METRIC:
            return one, 0
        cameras = self._scale_of_cameras(predictions, average, anchors)
        depth = None if held is None else scale_of_depth(predictions.at_times(0, held.num_times), held)
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
        self, predictions: Predictions, average: Cameras, anchors: StaticRig
    ) -> tuple[Tensor, float] | None:
        """Return the scale from the distances between cameras, and its relative standard deviation.

        Errors of the instants of a chunk correlate, so averaging does not reduce them.
        """
        views, target = list(anchors.views), anchors.cameras.centers.to(torch.float64)
        if anchors is self._registered and (found := _scale_of_wrong(predictions, average, anchors)) is not None:
            return found, _UNMEASURED_SCALE_STD
        centers = average.centers[views]
        if not has_baseline(centers, median_depths(predictions)):
            return None
        ratio = alignment.baseline_ratio(centers, target)
        if ratio is None:
            return None
        samples = predictions.cameras[0].to(torch.float64).centers[:, views]
        each = [found for centers in samples if (found := alignment.baseline_ratio(centers, target)) is not None]
        if len(each) < 3:
            return ratio, _UNMEASURED_SCALE_STD
        return ratio, max(robust_std((torch.stack(each) / ratio).log()), MIN_SCALE_STD)


def _aligned(average: Cameras, anchors: StaticRig, scale: Tensor) -> Sim3:
    """Align the average cameras [V] of a chunk to those of the static views in the world."""
    target = anchors.cameras.world_to_camera.to(average.world_to_camera)
    return alignment.align_cameras_robust(average.world_to_camera[list(anchors.views)], target, scale)


def _scale_of_wrong(predictions: Predictions, average: Cameras, anchors: StaticRig) -> Tensor | None:
    """Return the scale at which the depth of registered views agrees, if their predicted cameras are too wrong."""
    views, instants = list(anchors.views), predictions.num_times
    poses = (average[views].world_to_camera, anchors.cameras.world_to_camera)
    if alignment.disagreement_deg(*poses) <= alignment.MAX_DISAGREEMENT_DEG:
        return None
    known = replace(
        anchors.cameras,
        world_to_camera=anchors.cameras.world_to_camera.expand(instants, -1, 4, 4),
        intrinsics=anchors.cameras.intrinsics.expand(instants, -1, 3, 3),
    )
    depth, valid = (maps[0, :, views].unbind(1) for maps in (predictions.depth, predictions.valid))
    return alignment.agreeing_scale(known, depth, valid)


def rig_notice(rig: RigRecord) -> Notice:
    """Report which cameras are static; a `camera_motion` that contradicts the measurement is a warning."""
    moving = [view for view in rig.views if not view.still]
    if rig.asked == "static" and moving:
        worst = max(moving, key=lambda view: (view.evidence == "pixels", view.displacement_px or 0.0, view.motion_px))
        return Notice(f"⟨camera_motion=static⟩, but {_motion_of(worst, rig)}; try ⟨camera_motion=auto⟩ or moving")
    still = [view for view in rig.views if view.still and view.evidence == "pixels"]
    if rig.asked == "moving" and still:
        names = ", ".join(view.view for view in still)
        verb, share = ("does" if len(still) == 1 else "do"), min(view.still_share or 0.0 for view in still)
        text = f"{names} {verb} not move (at least {share:.0%} of the corners stay)"
        return Notice(
            f"⟨camera_motion=moving⟩, but {text}; try ⟨camera_motion=auto⟩, which gives static views one camera"
        )
    worst = max(rig.views, key=lambda view: (not view.still, view.motion_px))
    verdict = {"static": "static, one camera per view", "moving": "moving"}.get(rig.cameras)
    if verdict is None:
        verdict = f"static except {', '.join(view.view for view in rig.views if not view.is_static)}"
    return Notice(f"cameras: {verdict} ({_motion_of(worst, rig)})", Level.INFO)


def _motion_of(view: ViewMotionRecord, rig: RigRecord) -> str:
    """Describe the measured motion of a view."""
    if view.evidence == "pixels":
        shift = "" if view.displacement_px is None else f", median displacement {view.displacement_px:.2g} px of 256"
        extra = f"; {view.reason}" if view.reason else ""
        verb = "does not move" if view.still else "moves"
        return f"{view.view} {verb}: {view.still_share or 0.0:.0%} of the corners stay{shift}{extra}"
    unclear = f"; its frames do not determine it: {view.reason}" if view.reason else ""
    motion = f"predicted: {view.view} moves by {view.motion_px:.2g} px (jitter {view.jitter_px:.2g} px)"
    limit = f"limit: {rig.limit_px:.2g} px or the jitter"
    return f"{motion} over the first {counted(rig.num_times, 'instant')}; {limit}{unclear}"


def _motion_record(
    name: str, shift: Shift, view: int, found: bool, is_static: bool, pixels: ViewMotion | None
) -> ViewMotionRecord:
    """Record the decision on a view with its evidence; `found` is what was measured, whatever was requested."""
    pixels = pixels or ViewMotion(view=name, is_static=None)
    return ViewMotionRecord(
        view=name,
        jitter_px=float(shift.jitter[view]),
        motion_px=float(shift.motion[view]),
        still=found,
        is_static=is_static,
        evidence="predictions" if pixels.is_static is None else "pixels",
        still_share=pixels.share,
        displacement_px=pixels.displacement_px,
        reason=pixels.reason,
    )
