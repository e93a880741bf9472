"""Cleaning of a run's chunks before they are written: the background of static cameras, and agreement of views.

Layers of a run: what does not move, once for all instants, apart from the moving points of every instant.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from page4d.choices import CameraMotion
from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.warp import measure_agreement
from page4d.output.instant import InstantFiles, InstantOptions, write_static
from page4d.output.layout import OutputLayout
from page4d.output.record import LayersRecord
from page4d.records import Predictions
from page4d.rig.camera_motion import ViewMotion
from page4d.run.chunk_source import OpenChunks
from page4d.run.chunks import Chunk
from page4d.run.cost import is_out_of_memory
from page4d.run.plan import RunPlan
from page4d.run.predictor import NetworkPredictor, PredictedChunk
from page4d.run.progress import Journal, SilentObserver
from page4d.run.stages.static_rig import StaticRig
from page4d.run.state_records import CleaningState
from page4d.scene.records import Notice, Scene, with_instants
from page4d.stereo.background import Background, estimate_background
from page4d.stereo.consensus import FusedBackground, clean, confirmed_share, fuse_background, scale_between

MIN_CONFIRMED_SHARE = 0.3
"""Share of the depth that another view must confirm; below, views overlap too little, or the cameras are wrong."""

_MIN_SAMPLES = 3
"""Instants that a background needs, unless the scene has fewer: the median of two is one of them."""

_PAIR = 2


class Cleaner:
    """Cleans the predictions of a run, in the order in which they are written.

    `background` is in the unit of the predictor until the first chunk is cleaned.
    """

    def __init__(self, plan: RunPlan, motions: Callable[[], Sequence[ViewMotion]]) -> None:
        self._plan = plan
        self._motions = motions
        self._fuses = plan.settings.fuse and isinstance(plan.predictor, NetworkPredictor)
        self.background: Background | None = None
        self._scale: float | None = None
        self._min_views: int | None = None
        self._fused: FusedBackground | None = None
        self._is_begun = False

    @property
    def needs_background(self) -> bool:
        """Whether a background is predicted before the first chunk; that of a single chunk is its own."""
        return self._fuses and len(self._plan.chunks) > 1

    def continue_from(self, background: Background | None, state: CleaningState, num_done: int) -> None:
        """Restore the decisions of an interrupted run; those of the first chunk only if it was written."""
        self.background = background
        if num_done:
            self._scale, self._min_views = state.background_scale, state.min_views

    def state(self, earlier: CleaningState | None) -> CleaningState:
        """Return the decisions after the first chunk."""
        files = [] if earlier is None else earlier.background
        return CleaningState(background=files, background_scale=self._scale, min_views=self._min_views)

    def predict_background(
        self, open_chunks: OpenChunks, place: Callable[[PredictedChunk], Predictions], journal: Journal
    ) -> None:
        """Predict instants that are spread over the whole scene, and fuse them.

        They are fewer than those of a chunk if those do not fit in memory; there is no background if not enough do.
        `place` brings them into the unit of the world.
        """
        views = self._static_views()
        if not views:
            return
        number = max(chunk.length for chunk in self._plan.chunks)
        while number >= _MIN_SAMPLES:
            instants = np.unique(np.linspace(0, self._plan.scene.num_times - 1, number).round().astype(int))
            plan = replace(
                self._plan,
                scene=with_instants(self._plan.scene, instants.tolist()),
                chunks=(Chunk(0, len(instants), 0),),
            )
            with journal.timed("background"):
                predicted = _predicted_or_none(plan, open_chunks)
                if predicted is not None:
                    self.background = estimate_background(place(predicted), views)
                    return
            number //= 2

    def clean(self, predictions: Predictions, journal: Journal) -> Predictions:
        """Clean consecutive instants [1, T, V, H, W] in the final world."""
        if not self._fuses:
            return self._compared(predictions)
        if not self._is_begun:
            self._begin(predictions)
        cleaned = clean(predictions, self._fused)
        if self._min_views is None:
            self._choose_views(cleaned, journal)
        return cleaned

    @property
    def fused_background(self) -> FusedBackground | None:
        """The background in the unit of the world, once instants were cleaned; None if there is none."""
        return self._fused

    @property
    def min_views(self) -> int:
        """Views that a point of the clouds needs."""
        requested = self._plan.settings.points.min_views
        if requested is not None:
            return requested
        return self._min_views or 0

    def _compared(self, predictions: Predictions) -> Predictions:
        """Compare views only, where the user asks for points that several views see."""
        if not self._plan.settings.points.min_views:
            return predictions
        agreement = measure_agreement(predictions.depth, predictions.known, predictions.cameras)
        return replace(predictions, agreement=agreement)

    def _begin(self, first: Predictions) -> None:
        """Complete the background with the unit and the cameras of the first cleaned instants."""
        self._is_begun = True
        if not self.needs_background and first.num_times >= min(_MIN_SAMPLES, self._plan.scene.num_times):
            self.background = estimate_background(first, self._static_views())
        if self.background is None:
            return
        if self._scale is None:
            self._scale = 1.0 if self._plan.world.is_fixed else scale_between(self.background, first)
        self._fused = fuse_background(self.background.scaled(self._scale), first.cameras[0, 0])

    def _choose_views(self, cleaned: Predictions, journal: Journal) -> None:
        """Choose how many views must see a point, from the agreement of the first chunk."""
        num_views, share = len(cleaned.view_names), confirmed_share(cleaned)
        if num_views == 1:
            self._min_views = 0
        elif share < MIN_CONFIRMED_SHARE:
            self._min_views = 0
            text = (
                f"another view confirms only {share:.0%} of the depth: views overlap little, or cameras or depth are "
                "wrong; the clouds keep all points (⟨min_views=2⟩ for confirmed ones)"
            )
            journal.notice(Notice(text))
        else:
            self._min_views = 1 if num_views == _PAIR else 2

    def _static_views(self) -> tuple[int, ...]:
        """Return the indices of the views whose camera stands still."""
        scene, motion = self._plan.scene, self._plan.settings.camera_motion
        everything = tuple(range(scene.num_views))
        if scene.num_times == 1:
            return everything
        if self._plan.world.is_fixed:
            cameras = [view.camera for view in scene.views]
            return tuple(
                view for view, camera in enumerate(cameras) if camera is not None and camera.world_to_camera.ndim == 2
            )
        if motion is not CameraMotion.AUTO:
            return everything if motion is CameraMotion.STATIC else ()
        return tuple(view for view, found in enumerate(self._motions()) if found.is_static)


def _predicted_or_none(plan: RunPlan, open_chunks: OpenChunks) -> PredictedChunk | None:
    """Predict the one chunk of a plan; None if it does not fit in memory."""
    try:
        with open_chunks(plan, Journal(SilentObserver())) as source:
            return source.predict(plan.chunks[0], (), None)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if plan.predictor.device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def static_views(scene: Scene, rig: StaticRig | None, *, is_calibrated: bool) -> tuple[int, ...]:
    """Return the indices of the views whose camera does not move.

    `rig` are the static cameras of a run whose cameras are predicted; `is_calibrated` is whether all cameras of the
    result are those of the scene.
    """
    if not is_calibrated:
        return () if rig is None else rig.views
    cameras = (view.camera for view in scene.views)
    return tuple(
        index for index, camera in enumerate(cameras) if camera is not None and camera.world_to_camera.ndim == 2
    )


def no_layers_notice(first: Predictions, views: Sequence[int], num_times: int) -> Notice | None:
    """Return why a run has no layers; None if it has. `first` are its first instants, `views` its static views."""
    if first.dynamic is None:
        alone = num_times == 1
        reason = "one instant has no motion" if alone else "there are no motion masks, as the network predicts none"
        return Notice(f"⟨layers⟩: {reason}; only merged clouds are written")
    if not views:
        return Notice(
            "⟨layers⟩: no camera stands still, so that no background is known; only merged clouds are written"
        )
    return None


def first_background(first: Predictions, views: Sequence[int]) -> Predictions:
    """Return the background [1, 1, V, H, W] that static views show at some instants [1, T, V, H, W].

    Every pixel is that of the instant with the median depth, by confidence, among those at which it does not move.
    Other views, and pixels that always move, are not valid.
    """
    static = first.known
    if first.dynamic is not None:
        static = static & (first.dynamic <= DYNAMIC_THRESHOLD)
    standing = torch.zeros(static.shape[2], dtype=torch.bool, device=static.device)
    standing[list(views)] = True
    static = static & standing[:, None, None]
    depth = torch.where(static, first.depth, torch.inf)
    ordered, order = depth.sort(dim=1)
    weights = torch.where(static, first.depth_confidence.double().clamp_min(1e-6), 0.0).gather(1, order).cumsum(1)
    middle = (weights < weights[:, -1:] / 2).sum(1, keepdim=True).clamp_max(len(first.times) - 1)
    instant = order.gather(1, middle)
    known = static.any(1, keepdim=True)
    colors = instant[:, :, :, None].expand(-1, -1, -1, 3, -1, -1)
    return replace(
        first.at_times(0, 1),
        images=first.images.gather(1, colors),
        valid=known,
        depth=torch.where(known, ordered.gather(1, middle), 0.0),
        depth_confidence=first.depth_confidence.gather(1, instant),
        points=None,
        points_confidence=None,
        dynamic=None,
    )


def write_static_layer(
    layout: OutputLayout, background: Predictions, options: InstantOptions
) -> tuple[LayersRecord, InstantFiles]:
    """Write what does not move, and return its record for `run.json` and its files.

    The background [1, 1, V, H, W] is valid where it is known. The points do not count as those of an instant.

    Raises:
        OutputError: if a file cannot be written.
    """
    written = write_static(layout, background, options)
    return LayersRecord(static_points=written.num_points), InstantFiles(written.files)
