"""The world frame and the metric scale of a result.

The world is that of the calibrated rig, or of the first predicted camera.
"""

from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.choices import Poses
from page4d.conventions import Scale, ScaleSource
from page4d.errors import InputError, Level, Notice, counted
from page4d.geometry import alignment
from page4d.geometry.alignment import DegenerateGeometryError
from page4d.geometry.camera import Cameras
from page4d.geometry.transforms import Sim3
from page4d.io.json_records import FileModel
from page4d.output.record import DistanceRecord
from page4d.records import Predictions
from page4d.rig.length import TOLERANCE, KnownDistance, has_unit, median_distance, varying_distance
from page4d.run.stage import History, Instant, Stage
from page4d.run.stages.stitch import scale_of_depth
from page4d.run.state_records import transform_of
from page4d.scene.records import Scene

_MIN_BASELINE = 1e-3
"""Cameras coincide if their distance is below this share of the median depth."""


def measure_distance(predictions: Predictions, known: KnownDistance) -> DistanceRecord:
    """Measure a known distance between the predicted cameras of a chunk.

    Raises:
        InputError: if they coincide.
    """
    first, second = (predictions.view_names.index(name) for name in (known.first, known.second))
    centers = predictions.cameras.centers[0].double()
    predicted, variation = median_distance((centers[:, first] - centers[:, second]).norm(dim=-1))
    depth = predictions.depth[predictions.known]
    if predicted <= (_MIN_BASELINE * float(depth.median()) if depth.numel() else 0.0):
        raise InputError(
            f"the predicted cameras of {known.first} and {known.second} coincide, so their distance gives no scale",
            "name two views farther apart with ⟨scale_from⟩",
        )
    return DistanceRecord(
        views=(known.first, known.second),
        metres=known.metres,
        predicted=predicted,
        variation=variation,
        num_times=predictions.num_times,
    )


class WorldState(FileModel):
    """The unit of length, the origin of the metre, and the known distance that was measured."""

    scale: Scale
    scale_source: ScaleSource | None
    unit: Literal["metre", "arbitrary"]
    scale_from: DistanceRecord | None


class World(Stage[WorldState]):
    """The world frame of one run.

    It is fixed if every chunk is registered to it independently, because its cameras are the rig's. Otherwise the
    first chunk is placed and the others are stitched to it. The first chunk determines whether the scale is the
    rig's; a chunk without a baseline takes the scale at which its depth continues that of the previous one.

    `aligns_chunks` is whether the rig determines scale and place of every chunk, so that chunks need not overlap.
    `scale_source` is the origin of the metre of the rig's cameras, by default their calibration. A rig of which only
    some views have cameras gives the unit; `StaticRigAligner` places its chunks.

    Predictions in metres (`predicted_scale`) give the unit where rig and known distance do not. `predicted_scale` is
    None for predictions in the unit of the rig.
    """

    name, decision = "world", WorldState

    def __init__(
        self,
        scene: Scene,
        poses: Poses,
        *,
        predictor_uses_rig: bool,
        predicted_scale: Scale | None = Scale.ARBITRARY,
        distance: KnownDistance | None = None,
        scale_source: ScaleSource | None = None,
    ) -> None:
        self._has_rig = scene.is_calibrated
        has_cameras = any(view.camera is not None for view in scene.views)
        self._distance = None if has_cameras else distance
        self._scale_of_cameras: ScaleSource | None = None
        if distance is not None:
            self._scale_of_cameras = ScaleSource.DISTANCE
        elif has_cameras and scene.scale is Scale.METRIC:
            self._scale_of_cameras = scale_source or ScaleSource.CALIBRATION
        self._predicts_metres = predicted_scale is Scale.METRIC
        self.measured: DistanceRecord | None = None
        self._replaces_cameras = self._has_rig and poses is Poses.INPUT and not predictor_uses_rig
        self.is_fixed = self._has_rig and (poses is Poses.INPUT or predictor_uses_rig)
        depth_fits = not predictor_uses_rig or predicted_scale in (None, scene.scale)
        is_partial = has_cameras and not self._has_rig
        self.scale_is_known = (self._has_rig and depth_fits) or is_partial or self._distance is not None
        self._has_unit = has_unit(scene)
        self.aligns_chunks = self.is_fixed and (not self._replaces_cameras or self._has_unit)
        self._last_scale: Tensor | None = None
        self._scale_is_of_depth: bool | None = None
        self._is_continued = False

    @property
    def scale_source(self) -> ScaleSource | None:
        """Origin of the metre, None if the unit of length is arbitrary; known after the first chunk."""
        if self.scale_is_known:
            return self._scale_of_cameras
        return ScaleSource.NETWORK if self._predicts_metres else None

    @property
    def scale(self) -> Scale:
        """Unit of length of the result; known after the first chunk."""
        return Scale.ARBITRARY if self.scale_source is None else Scale.METRIC

    def restore(self, history: History) -> None:
        """Restore the origin of the metre, and the transform of the last chunk."""
        super().restore(history)
        if self.decided is not None:
            self.continue_from(self.decided.scale_source, transform_of(history.finished[-1].record))

    def __call__(self, instant: Instant) -> Instant:
        """Decide and report on the unit of length at the first instant."""
        if instant.index > 0:
            return instant
        self.decided = WorldState(
            scale=self.scale, scale_source=self.scale_source, unit=self.scale.unit, scale_from=self.measured
        )
        return instant.with_notices(*self._notices())

    def _notices(self) -> list[Notice]:
        """Report a unit of length that is not that of a calibration, and the known distance that gives it."""
        notices = []
        if self.scale_source is ScaleSource.NETWORK:
            text = "lengths are in metres as the network estimates them; verify a known length"
            notices.append(Notice(text, Level.INFO))
        elif self._has_rig and not self.scale_is_known:
            kind = "predicted" if self._has_unit else "calibrated"
            text = f"the {kind} cameras coincide, there is no baseline: the scale of the result is arbitrary"
            notices.append(Notice(text))
        elif self.scale is Scale.ARBITRARY:
            notices.append(Notice("lengths are in an arbitrary unit (no metric calibration)", Level.INFO))
        return notices if self.measured is None else [*notices, _distance_notice(self.measured)]

    def continue_from(self, source: ScaleSource | None, last: Sim3) -> None:
        """Continue with an origin of the metre, after a chunk that this transform brought into the world."""
        self.scale_is_known = self.scale_is_known and source is self._scale_of_cameras
        if self.is_fixed:
            self._last_scale = last.scale
            self._is_continued = True  # the last chunk, which is predicted again, has this scale

    def register(
        self,
        predictions: Predictions,
        rig: Cameras | None,
        rig_scale: float | None = None,
        before: Predictions | None = None,
    ) -> tuple[Predictions, Sim3]:
        """Replace a chunk's cameras by the rig's and transform depth and points; also return the transform.

        The scale is `rig_scale`, that of a refinement in the rig. Otherwise it is the ratio of the distances between
        the calibrated and between the predicted cameras of the chunk; if those of the first chunk are wrong, it is
        the one at which the depth of all views agrees in the rig. Without a baseline it is that of depth `before`,
        at the first instants of the chunk as its predecessor has them in the world, or the agreeing one.
        Predictions that keep their own cameras are returned unchanged, except that metres of a network become a unit:
        they differ between chunks, so that later chunks are scaled to the first one.
        """
        if self._predicts_metres:
            predictions = replace(predictions, scale=Scale.ARBITRARY)
        if not self._replaces_cameras:
            return predictions, Sim3.identity()
        assert rig is not None
        transform = self._align_to_rig(predictions, rig, rig_scale, before)
        self._is_continued = False
        return replace(predictions.transformed(transform), cameras=rig), transform

    def place_first(self, predictions: Predictions, rig: Cameras | None) -> Sim3:
        """Return the transform of the first chunk into the world.

        Without a rig the world is the camera frame of the first view at the first instant; a known distance between
        two cameras makes its unit the metre.

        Raises:
            InputError: if the two cameras of the known distance coincide.
        """
        if rig is not None and self._has_rig:
            return self._align_to_rig(predictions, rig)
        scale = torch.ones((), dtype=torch.float64)
        if self._distance is not None:
            self.measured = measure_distance(predictions, self._distance)
            scale = torch.tensor(self.measured.metres / self.measured.predicted, dtype=torch.float64)
        return Sim3.into_camera(predictions.cameras.world_to_camera[0, 0, 0], scale)

    def _align_to_rig(
        self,
        predictions: Predictions,
        rig: Cameras,
        rig_scale: float | None = None,
        before: Predictions | None = None,
    ) -> Sim3:
        predicted = predictions.cameras.world_to_camera.reshape(-1, 4, 4)
        known = rig.world_to_camera.reshape(-1, 4, 4).to(predicted)
        is_first = self._last_scale is None
        depth = predictions.depth[predictions.valid & (predictions.depth > 0)]
        if (is_first or self.scale_is_known) and has_baseline(predictions.cameras.centers.reshape(-1, 3), depth):
            try:
                transform = alignment.align_cameras(predicted, known)
                if self._replaces_cameras:
                    ratio = transform.scale
                    scale = (
                        self._scale_of(predictions, rig, ratio) if rig_scale is None else ratio.new_tensor(rig_scale)
                    )
                    transform = _rescaled(transform, scale, predictions.cameras.centers)
            except DegenerateGeometryError:
                pass
            else:
                self._last_scale = transform.scale
                return transform
        if self._last_scale is None:
            self.scale_is_known = False
            self._last_scale = torch.ones((), dtype=torch.float64)
        elif before is not None:
            found = scale_of_depth(predictions.at_times(0, before.num_times), before)
            self._last_scale = self._last_scale if found is None else found[0]
        elif self.scale_is_known and not self._is_continued:
            agreed = _agreeing_scale(predictions, rig)
            self._last_scale = self._last_scale if agreed is None else agreed
        scaled = predictions.transformed(replace(Sim3.identity(), scale=self._last_scale))
        rigid = alignment.align_cameras(scaled.cameras.world_to_camera.reshape(-1, 4, 4), known, with_scale=False)
        return Sim3(scale=self._last_scale, rotation=rigid.rotation, translation=rigid.translation)

    def _scale_of(self, predictions: Predictions, rig: Cameras, ratio: Tensor) -> Tensor:
        """Return the ratio of distances between cameras, or the scale of depth in the rig if cameras are too wrong.

        The first chunk determines for all of them which it is; in a continued run, the one nearer to the recorded
        scale of the last chunk, which is predicted again.
        """
        if self._scale_is_of_depth is None and self._last_scale is None:
            poses = (cameras.world_to_camera[0] for cameras in (predictions.cameras, rig))
            self._scale_is_of_depth = alignment.disagreement_deg(*poses) > alignment.MAX_DISAGREEMENT_DEG
        if self._scale_is_of_depth is False:
            return ratio
        scale = _agreeing_scale(predictions, rig)
        if scale is None:
            return ratio
        if self._scale_is_of_depth is None:
            assert self._last_scale is not None
            change, change_of_ratio = ((one / self._last_scale).log().abs() for one in (scale, ratio))
            self._scale_is_of_depth = bool(change < change_of_ratio)
        return scale if self._scale_is_of_depth else ratio


def _agreeing_scale(predictions: Predictions, rig: Cameras) -> Tensor | None:
    """Return the scale at which the confident depth of all views agrees in the rig, None if none does."""
    parts = (predictions.depth, predictions.valid, predictions.depth_confidence)
    depth, valid, confidence = (maps[0].unbind(1) for maps in parts)
    masks = [one & alignment.confident(of_view) for one, of_view in zip(valid, confidence, strict=True)]
    found = alignment.agreeing_scale(rig[0], depth, masks)
    return None if found is None else found.to(torch.float64)


def _rescaled(transform: Sim3, scale: Tensor, centers: Float[Tensor, "*_ 3"]) -> Sim3:
    """Replace the scale of an alignment; the mean camera center keeps its place."""
    mean = transform.rotation @ centers.reshape(-1, 3).mean(0).to(transform.rotation)
    return replace(transform, scale=scale, translation=transform.translation + (transform.scale - scale) * mean)


def has_baseline(centers: Float[Tensor, "K 3"], depth: Float[Tensor, " N"]) -> bool:
    """Return whether cameras are spread by more than a thousandth of the median depth."""
    spread = (centers - centers.mean(0)).norm(dim=-1).max()
    return depth.numel() == 0 or float(spread) > _MIN_BASELINE * float(depth.median())


def _distance_notice(distance: DistanceRecord) -> Notice:
    """Report the known distance that fixes the scale; a distance that varies over time is a warning."""
    pair, count = " and ".join(distance.views), f"the first {counted(distance.num_times, 'instant')}"
    if distance.variation > TOLERANCE:
        return varying_distance(*distance.views, distance.variation, count)
    return Notice(f"metric scale from the median distance between {pair} over {count}", Level.INFO)
