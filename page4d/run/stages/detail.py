"""The fine instants of a run: depth and clouds at a higher resolution than the network's."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import Level, Notice, counted
from page4d.geometry.pixels import PixelTransform
from page4d.geometry.time_axis import spread_places, to_device
from page4d.io.json_records import FileModel
from page4d.networks.layers.execution import on_threads
from page4d.output.record import ComparedRecord, FineDepthRecord
from page4d.output.rig_record import RegistrationRecord
from page4d.records import Predictions
from page4d.run.memory import SMALL_SIDE
from page4d.run.plan import RunPlan
from page4d.run.stage import Instant, Stage
from page4d.scene.batches import BatchReader, FrameBatch, open_placed_batches
from page4d.scene.records import with_instants
from page4d.stereo.consensus import FusedBackground
from page4d.stereo.detail import Compared, choose_compared, fine_background, fine_instant

_SAMPLES = 8
"""Instants whose pictures give the color of the background."""


class DetailState(FileModel):
    """The pictures that refine the depth of a registered rig."""

    fine_depth: FineDepthRecord


class Detailer(Stage[DetailState]):
    """Raises the resolution of cleaned instants, in the order in which they are written.

    After the prediction of the only chunk of a run cores are idle: two instants are raised at once.

    `readers` closes the videos at the end of the run. Pictures are compared if all cameras are known: those of a
    registration where they are exact enough.
    """

    name, seconds, decision = "detail", "detail", DetailState

    def __init__(self, plan: RunPlan, readers: ExitStack) -> None:
        self._scene, self._transforms, self._readers = plan.scene, plan.fine_transforms, readers
        self._device, self._has_cameras = plan.predictor.device, plan.world.is_fixed
        registration = plan.evidence.registration
        self._registration = None if registration is None else registration.record
        self._is_small = max(max(one.canvas_size) for one in plan.map_transforms) <= SMALL_SIDE
        self._at_once = plan.forecast.raised_at_once(plan.chunks[0].length)
        self._threads = readers.enter_context(ThreadPoolExecutor(self._at_once, "detail"))
        self._begun: dict[int, Future[Predictions]] = {}
        self._reader: BatchReader | None = None
        self._fused: FusedBackground | None = None
        """On the device."""
        self._background: FusedBackground | None = None
        """The same in the memory of the process, for the stages that follow."""

    def __call__(self, instant: Instant) -> Instant:
        """Bring an instant and its background to the pixels of the result, the background once."""
        if self._transforms is None:
            return instant
        if self._reader is None:
            self._reader = self._readers.enter_context(open_placed_batches(self._scene, self._transforms))
            self._reader.read(instant.index, instant.index + 1)  # its maps of lenses serve the background, too
            if self._has_cameras and self._registration is not None and self.decided is None:
                instant = self._choose(instant, self._reader, self._registration)
            if instant.background is not None:
                self._raise_background(instant.background, instant.predictions, self._transforms)
        threads = 1 if self._is_small else torch.get_num_threads()  # they would wait for each other
        place = int(torch.searchsorted(instant.chunk.times, instant.predictions.times[0]))
        for later in range(min(self._at_once, instant.chunk.num_times - place)):
            index, coarse = instant.index + later, instant.chunk.at_times(place + later, place + later + 1)
            if index not in self._begun:
                batch = self._reader.read(index, index + 1)
                self._begun[index] = self._threads.submit(self._raise, coarse, batch, self._compared, threads)
                if index + 1 < self._scene.num_times:
                    self._reader.read_ahead(index + 2)
        fine = self._begun.pop(instant.index).result()
        return replace(instant, predictions=fine, background=self._background)

    def _raise_background(
        self, network: FusedBackground, coarse: Predictions, fine: tuple[PixelTransform, ...]
    ) -> None:
        network, coarse = to_device(network, self._device), to_device(coarse, self._device)
        self._fused = fine_background(network, coarse, self._samples(fine), fine, self._compared)
        self._background = to_device(self._fused, "cpu")

    def _raise(self, coarse: Predictions, batch: FrameBatch, compared: Compared, threads: int) -> Predictions:
        with on_threads(threads):
            coarse, batch = to_device(coarse, self._device), to_device(batch, self._device)
            return to_device(fine_instant(coarse, batch, self._fused, compared), "cpu")

    @property
    def _compared(self) -> Compared:
        """The pictures that are compared: all with a calibration, none with predicted cameras."""
        if self.decided is None:
            return None if self._has_cameras else {}
        places = {view.name: place for place, view in enumerate(self._scene.views)}
        pairs = self.decided.fine_depth.pairs
        return {(places[pair.views[0]], places[pair.views[1]]): pair.side for pair in pairs}

    def _choose(self, instant: Instant, reader: BatchReader, found: RegistrationRecord) -> Instant:
        """Choose the pictures of a registered rig that are compared; a notice names the others."""
        assert self._transforms is not None
        names, sides = self._scene.view_names, [max(transform.canvas_size) for transform in self._transforms]
        batch = to_device(reader.read(instant.index, instant.index + 1), self._device)
        chosen = choose_compared(to_device(instant.predictions, self._device), batch)
        pairs = [ComparedRecord(views=(names[one], names[other]), side=side) for (one, other), side in chosen.items()]
        coarser = [pair for pair, side in chosen.items() if side < max(sides[view] for view in pair)]
        if not coarser:
            self.decided = DetailState(fine_depth=FineDepthRecord(pairs=pairs))
            return instant
        shares = [
            (camera.epipolar_px or 0.0) / max(view.source.size)
            for camera, view in zip(found.cameras, self._scene.views, strict=True)
        ]
        worst = max(shares[view] * sides[view] for pair in coarser for view in pair)
        reason = (
            f"pictures of {len(coarser)} of {counted(len(chosen), 'pair')} of registered views do not refine depth "
            f"at {max(sides)} px: they do not match along epipolar lines, which are uncertain by {worst:.1f} px"
        )
        self.decided = DetailState(fine_depth=FineDepthRecord(pairs=pairs, reason=reason))
        return instant.with_notices(Notice(reason, Level.INFO))

    def _samples(self, transforms: tuple[PixelTransform, ...]) -> Callable[[int], Float[Tensor, "N 3 _ _"]]:
        """Return a function that decodes pictures of a view at instants spread over the scene."""
        scene = with_instants(self._scene, spread_places(self._scene.num_times, _SAMPLES))

        def samples(view: int) -> Float[Tensor, "N 3 _ _"]:
            alone = replace(scene, views=(scene.views[view],))
            with open_placed_batches(alone, (transforms[view],)) as reader:
                return reader.read(0, alone.num_times).images[0, :, 0].to(self._device)

        return samples
