"""Cleaning of a run's chunks by the background of static cameras and the agreement of views, and layers of a run.

Layers are what does not move, once for all instants, and the moving points of every instant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor

from page4d.choices import CameraMotion
from page4d.errors import Notice, SilentObserver
from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.time_axis import spread_places, to_device
from page4d.geometry.warp import measure_agreement
from page4d.io.json_records import FileModel
from page4d.output.instant import InstantFiles, InstantOptions, instant_writers, write_static
from page4d.output.layout import OutputLayout
from page4d.output.record import LayersRecord
from page4d.records import Predictions
from page4d.rig.people.placed import PlacedPeople
from page4d.run.chunk_source import OpenChunks
from page4d.run.chunks import Chunk
from page4d.run.journal import Journal
from page4d.run.memory import unless_out_of_memory
from page4d.run.plan import RunPlan, static_views
from page4d.run.predictor import NetworkPredictor, PredictedChunk
from page4d.run.stage import History, Instant, Stage
from page4d.run.stages.static_rig import StaticRigAligner
from page4d.scene.records import with_instants
from page4d.stereo.background import Background, estimate_background
from page4d.stereo.consensus import (
    FusedBackground,
    clean,
    confirmed_share,
    fuse_background,
    scale_between,
    static_instant,
)


class LayersState(FileModel):
    """The record of the layers; None if the run cannot have any."""

    layers: LayersRecord | None


class Layers(Stage[LayersState]):
    """Writes what does not move once, before the first instant, and then the moving points of every instant."""

    name, decision = "layers", LayersState

    def __init__(self, plan: RunPlan, rig: StaticRigAligner, layout: OutputLayout) -> None:
        self._plan, self._rig, self._layout = plan, rig, layout

    def __call__(self, instant: Instant) -> Instant:
        """Write what does not move at the first instant, and have moving points written; report why not."""
        if not self._plan.settings.layers:
            return instant
        if instant.index == 0:
            instant = self._with_static(instant)
        if self.decided is None or self.decided.layers is None:
            return instant
        return replace(instant, options=self._options(instant))

    def _with_static(self, instant: Instant) -> Instant:
        """Write what does not move; its points do not count as those of an instant."""
        rig = self._rig.rig
        views = static_views(self._plan.scene) if self._plan.world.is_fixed else () if rig is None else rig.views
        notice = no_layers_notice(instant.chunk, views, self._plan.scene.num_times)
        if notice is not None:
            self.decided = LayersState(layers=None)
            return instant.with_notices(notice)
        fused = instant.background
        if fused is None:
            background = first_background(instant.chunk, views)
        else:
            background = static_instant(instant.predictions, fused)
        written = write_static(self._layout, background, self._options(instant))
        self.decided = LayersState(layers=LayersRecord(static_points=written.num_points))
        return replace(instant, written=instant.written + InstantFiles(written.files))

    def _options(self, instant: Instant) -> InstantOptions:
        """Return the options of an instant whose moving points are written, too."""
        assert instant.options is not None
        return replace(instant.options, writers=instant_writers(layers=True, mesh=self._plan.settings.mesh))


def no_layers_notice(first: Predictions, views: Sequence[int], num_times: int) -> Notice | None:
    """Return why a run has no layers; None if it has. `first` are its first instants, `views` its static views."""
    if first.dynamic is None:
        alone = num_times == 1
        reason = "one instant has no motion" if alone else "there are no motion masks, neither predicted nor given"
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
        dynamic=None,
        static=None,
    )


MIN_CONFIRMED_SHARE = 0.3
"""Share of the depth that another view must confirm; below, views overlap too little, or the cameras are wrong."""

_MIN_SAMPLES = 3
"""Instants that a background needs, unless the scene has fewer: the median of two is one of them."""

_PAIR = 2

_BACKGROUND = "background"
"""Name of the background's tensors in the state folder."""


class CleaningState(FileModel):
    """Whether a background was found before the first chunk, its unit, and the views that a point needs.

    `background_scale` and `min_views` are known after the first written chunk.
    """

    has_background: bool
    background_scale: PositiveFloat | None = None
    min_views: Annotated[int, Field(ge=0, le=256)] | None = None


class Cleaner(Stage[CleaningState]):
    """Cleans the chunks of a run, in the order in which they are written.

    The background is in the unit of the predictor until the first chunk is cleaned.
    """

    name, seconds, decision = "cleaning", "clean", CleaningState

    def __init__(self, plan: RunPlan, open_chunks: OpenChunks, journal: Journal) -> None:
        self._plan, self._journal = plan, journal
        self._open_chunks = open_chunks
        self._fuses = plan.settings.fuse and isinstance(plan.predictor, NetworkPredictor)
        self._background: Background | None = None
        self._fused: FusedBackground | None = None
        self._is_begun = False
        self._people = PlacedPeople(plan.scene, static_views(plan.scene)) if plan.pose_model else None

    @property
    def _so_far(self) -> CleaningState:
        return self.decided or CleaningState(has_background=False)

    def restore(self, history: History) -> None:
        """Restore the background, and the decisions of the first chunk if it was written."""
        if self.name not in history.states:
            return
        self.decided = history.state(self.name, CleaningState)
        if self.decided.has_background:
            self._background = Background(**history.read_tensors(_BACKGROUND))
        if not history.finished:
            self.decided = CleaningState(has_background=self.decided.has_background)

    def prepare(self, chunks: Sequence[Chunk]) -> Mapping[str, Mapping[str, Tensor]]:
        """Predict the background of a run of several chunks, unless an interrupted run did; return its tensors.

        `chunks` are those of the run: an interrupted run, or the memory that its only chunk lacked, may have others
        than the plan.
        """
        self._plan = replace(self._plan, chunks=tuple(chunks))
        if self.decided is not None or not self._plan.background_length:
            return {}
        self._predict_background()
        self.decided = CleaningState(has_background=self._background is not None)
        return {} if self._background is None else {_BACKGROUND: vars(self._background)}

    @property
    def plan(self) -> RunPlan:
        """The plan of the chunks, with the background if cameras are known, which keep its unit."""
        return replace(self._plan, background=self._background if self._plan.world.is_fixed else None)

    def _predict_background(self) -> None:
        """Predict instants that are spread over the whole scene, and fuse them.

        They are fewer if these do not fit in memory; there is no background if not enough do.
        """
        views = self._static_views()
        if not views:
            return
        number = self._plan.background_length
        while number >= _MIN_SAMPLES:
            instants = spread_places(self._plan.scene.num_times, number)
            plan = replace(
                self._plan,
                scene=with_instants(self._plan.scene, instants),
                chunks=(Chunk(0, len(instants), 0),),
            )
            with self._journal.timed("background"):
                predicted = unless_out_of_memory(plan.predictor.device, partial(self._predict_only, plan))
                if predicted is not None:
                    placed, _ = plan.world.register(predicted.predictions, predicted.rig, predicted.rig_scale)
                    self._background = estimate_background(placed, views)
                    return
            number //= 2

    def _predict_only(self, plan: RunPlan) -> PredictedChunk:
        """Predict the only chunk of a plan."""
        with self._open_chunks(plan, Journal(SilentObserver())) as source:
            return source(plan.chunks[0], (), None)

    def people_at(self, times: Float[Tensor, " T"]) -> list[Float[Tensor, "P J 3"]]:
        """Return the joints of the people at some instants, in the world of known cameras; none without these."""
        if self._people is None:
            return []
        return [self._people.at(int(place)) for place in np.searchsorted(self._plan.scene.times, times.numpy())]

    def clean(
        self,
        predictions: Predictions,
        background: Background | None = None,
        people: Sequence[Float[Tensor, "P J 3"]] = (),
    ) -> Predictions:
        """Clean consecutive instants [1, T, V, H, W] in the final world; unfused, compare views if asked for.

        `background` is that of their prediction, None without, `people` those of every instant, empty without.
        """
        if not self._fuses:
            if not self._plan.settings.points.min_views:
                return predictions
            agreement = measure_agreement(predictions.depth, predictions.known, predictions.cameras)
            return replace(predictions, agreement=agreement)
        if not self._is_begun:
            self._begin(predictions, background)
        device = self._plan.predictor.device
        fused = None if self._fused is None else to_device(self._fused, device)
        people = [joints.to(device) for joints in people]
        scene = self._plan.scene
        completes = torch.tensor([view.mask is None or not scene.has_motion_masks for view in scene.views])
        found = clean(to_device(predictions, device), fused, people, completes.to(device))
        cleaned = to_device(found, "cpu")
        if self._so_far.min_views is None:
            self.decided = self._so_far.model_copy(update={"min_views": self._choose_views(cleaned)})
        return cleaned

    def __call__(self, instant: Instant) -> Instant:
        """Add the background in the unit of the world, and the views that a point of the clouds needs."""
        requested = self._plan.settings.points.min_views
        min_views = (self._so_far.min_views or 0) if requested is None else requested
        return replace(instant, background=self._fused, min_views=min_views)

    def _begin(self, first: Predictions, background: Background | None) -> None:
        """Complete the background with the unit and the cameras of the first cleaned instants."""
        self._is_begun = True
        self._background = self._background or background
        if (
            self._background is None
            and not self._plan.background_length
            and first.num_times >= min(_MIN_SAMPLES, self._plan.scene.num_times)
        ):
            self._background = estimate_background(first, self._static_views())
        if self._background is None:
            return
        scale = self._so_far.background_scale
        if scale is None:
            world = self._plan.world
            has_unit = world.is_fixed and world.scale_is_known
            scale = 1.0 if has_unit else scale_between(self._background, first)
            self.decided = self._so_far.model_copy(update={"background_scale": scale})
        predictor, background = self._plan.predictor, self._background.scaled(scale)
        has_own = isinstance(predictor, NetworkPredictor) and predictor.has_mask_head
        fused = fuse_background(
            to_device(background, predictor.device),
            first.cameras[0, 0].to(predictor.device),
            trusts_masks=has_own or self._plan.scene.motion_is_given,
        )
        self._fused = to_device(fused, "cpu")

    def _choose_views(self, cleaned: Predictions) -> int:
        """Choose how many views must see a point, from the agreement of the first chunk."""
        num_views, share = len(cleaned.view_names), confirmed_share(cleaned)
        if num_views == 1:
            return 0
        if share < MIN_CONFIRMED_SHARE:
            text = (
                f"another view confirms only {share:.0%} of the depth: views overlap little, or cameras or depth are "
                "wrong; the clouds keep all points (⟨min_views=2⟩ for confirmed ones)"
            )
            self._journal.notice(Notice(text))
            return 0
        return 1 if num_views == _PAIR else 2

    def _static_views(self) -> tuple[int, ...]:
        """Return the indices of the views whose camera stands still."""
        scene, motion = self._plan.scene, self._plan.settings.camera_motion
        everything = tuple(range(scene.num_views))
        if scene.num_times == 1:
            return everything
        if self._plan.world.is_fixed:
            return static_views(scene)
        if motion is not CameraMotion.AUTO:
            return everything if motion is CameraMotion.STATIC else ()
        return tuple(view for view, found in enumerate(self._plan.evidence.motions) if found.is_static)
