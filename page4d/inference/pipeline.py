"""One run: scene and predictor in, a complete output folder out."""

import time
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

import torch
from pydantic import JsonValue

from page4d.conventions import Scale
from page4d.errors import InterruptedRunError, MemoryBudgetError, OutputError, UsageError
from page4d.export.atomic import check_can_be_made, claim_output
from page4d.export.cameras import capture_cameras
from page4d.export.instant import InstantFiles, InstantOptions, write_capture_cameras, write_instant
from page4d.export.layout import OutputLayout
from page4d.export.maps import choose_depth_scale
from page4d.export.output import open_output
from page4d.export.run_record import NetworkRecord, RunRecord, write_run
from page4d.geometry.camera import Cameras
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.memory import is_out_of_memory
from page4d.inference.observe import Journal, Observer, SilentObserver
from page4d.inference.picture import write_previews
from page4d.inference.plan import plan_run
from page4d.inference.predict import PRECISION_NAMES, Predictor
from page4d.inference.report import RunInputs, chunk_record, run_record
from page4d.inference.settings import ReconstructSettings
from page4d.inference.state import (
    ChunkState,
    RunState,
    StateFolder,
    cameras_of,
    check_disk,
    check_fingerprint,
    chunk_state,
    fingerprint_of,
    is_occupied,
    plan_of,
    transform_of,
)
from page4d.inference.stitch import Stitched, stitch
from page4d.inference.world import World
from page4d.predictions import Predictions
from page4d.scene.batches import BatchReader, open_batches, scene_cameras
from page4d.scene.records import Level, Notice, Scene

MAX_SHRINKS = 3
"""How often a chunk that does not fit in memory is halved."""


class ExistingOutput(StrEnum):
    """What to do with an output folder that already holds a result."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    RESUME = "resume"


def reconstruct(
    scene: Scene,
    predictor: Predictor,
    network: NetworkRecord,
    out: Path | str,
    settings: ReconstructSettings | None = None,
    *,
    command: dict[str, JsonValue] | None = None,
    existing: ExistingOutput = ExistingOutput.REFUSE,
    observer: Observer | None = None,
) -> RunRecord:
    """Reconstruct a scene into an output folder and return what `run.json` records.

    `command` are the settings as the caller knows them: they are written to `run.json`, and a run is continued only
    if they are the same.

    Raises:
        UsageError: if the folder holds another result.
        InputError: if a frame cannot be decoded.
        OutputError: if the folder cannot be written.
        MemoryBudgetError: if not even the smallest chunk fits in memory.
        InterruptedRunError: if a signal ended the run; what is written stays and can be continued.
    """
    settings = settings or ReconstructSettings()
    inputs = RunInputs(
        scene=scene,
        predictor=predictor,
        network=network,
        plan=plan_run(scene, settings, predictor),
        command=command or {},
        seed=settings.points.seed,
    )
    check_target(Path(out), existing)
    with claim_output(Path(out)) as folder:
        return _Run(inputs, settings, folder, Journal(observer or SilentObserver())).execute(existing)


def check_target(out: Path, existing: ExistingOutput) -> None:
    """Refuse, before any work, an output that cannot be written or already holds a result.

    Raises:
        OutputError: if it is a file or cannot be made.
        UsageError: if it holds a result that is neither to be continued nor replaced.
    """
    check_can_be_made(out)
    if is_occupied(out) and existing is ExistingOutput.REFUSE:
        raise UsageError(f"'{out}' already holds a result", "use --resume, --overwrite or another folder")


class _Run:
    """The state of one call of `reconstruct`; methods stand in the order in which they are first called."""

    def __init__(self, inputs: RunInputs, settings: ReconstructSettings, folder: Path, journal: Journal) -> None:
        self.inputs = inputs
        self.settings = settings
        self.journal = journal
        self.layout = OutputLayout(folder, inputs.scene.view_names)
        self.states = StateFolder(self.layout)
        self.world = World(inputs.scene, settings.poses, predictor_uses_rig=inputs.predictor.uses_rig_cameras)
        self.finished: list[ChunkState] = []

    def execute(self, existing: ExistingOutput) -> RunRecord:
        try:
            return self._execute(existing)
        except InterruptedRunError as error:
            raise InterruptedRunError(
                f"interrupted after {self._num_done} of {self.inputs.scene.num_times} frames",
                "continue with --resume",
                error.exit_code - 128,
            ) from error

    def _execute(self, existing: ExistingOutput) -> RunRecord:
        begin = time.perf_counter()
        self.state = self._begin(existing)
        for notice in self.inputs.scene.notices:
            self.journal.notice(notice)
        if self.state.scale not in (None, self.inputs.scene.scale):
            self.world.scale_is_known = False  # as the interrupted run found
            self._notice_scale()
        write_run(self.layout, self._record("incomplete"))
        self._reconstruct_chunks()
        self._notice_clipping()
        image_sizes = tuple(transform.original_size for transform in self.inputs.plan.transforms)
        cameras = cameras_of(self.finished, self.layout.view_names, image_sizes, self.state.scale or Scale.ARBITRARY)
        files = write_capture_cameras(self.layout, cameras)
        if self.settings.preview:
            # The pictures are made from the files, so they show what a reader of the contract would see.
            write_run(self.layout, self._record("incomplete"))
            with self.journal.timed("preview"):
                output = open_output(self.layout.folder, allow_incomplete=True)
                files += write_previews(output, self.inputs.scene)
        names = [str(file.path.relative_to(self.layout.folder)) for file in files]
        self._update(other_files=[*names, "run.json"])
        self.journal.seconds["total"] = time.perf_counter() - begin
        record = self._record("complete")
        write_run(self.layout, record)
        return record

    def _begin(self, existing: ExistingOutput) -> RunState:
        folder, inputs = self.layout.folder, self.inputs
        precision = PRECISION_NAMES[getattr(inputs.predictor, "precision", torch.float32)]
        fingerprint = fingerprint_of(inputs.scene, inputs.command, inputs.network, precision)
        if existing is ExistingOutput.RESUME and is_occupied(folder):
            earlier = check_fingerprint(folder, self.states.read_run(), fingerprint)
            self.finished = self.states.finished_chunks()
            return earlier
        if existing is ExistingOutput.OVERWRITE:
            self.states.remove_listed_files()
        check_disk(folder, inputs.plan.bytes_on_disk)
        plan = [(chunk.start, chunk.stop, chunk.overlap) for chunk in inputs.plan.chunks]
        state = RunState(fingerprint=fingerprint, plan=plan, other_files=["run.json"])
        self.states.write_run(state)
        return state

    def _update(self, **changes: object) -> None:
        """Change the recorded state of the run, on disk too."""
        self.state = self.state.model_copy(update=changes)
        self.states.write_run(self.state)

    def _record(self, status: Literal["complete", "incomplete"]) -> RunRecord:
        return run_record(self.inputs, self.layout, self.state, self.finished, self.journal, status)

    def _reconstruct_chunks(self) -> None:
        """Predict, stitch and write every chunk that is not finished yet."""
        total = self.inputs.scene.num_times
        self.journal.progress(self._num_done, total)
        if self._num_done == total:
            return
        try:
            with open_batches(
                self.inputs.scene, self.inputs.plan.long_side, self.inputs.predictor.multiple
            ) as reader:
                stitched = stitch(
                    self._predicted(reader),
                    num_times=total,
                    overlap=self.settings.overlap,
                    place_first=lambda first: self.world.place_first(first, self._rig(first)),
                    fixed_world=self.world.is_fixed,
                    held=self._held_back(reader) if self.finished else None,
                )
                begin = time.perf_counter()
                for part in stitched:
                    self._write_chunk(part, begin)
                    begin = time.perf_counter()
        except OutputError as error:
            raise OutputError(f"{error.message} (after {self._num_done} of {total} frames)", error.hint) from error

    @property
    def _num_done(self) -> int:
        """Instants whose chunks are finished."""
        return self.finished[-1].stop if self.finished else 0

    def _rig(self, predictions: Predictions) -> Cameras | None:
        return scene_cameras(self.inputs.scene, predictions.pixel_transforms, 0, predictions.num_times)

    def _held_back(self, reader: BatchReader) -> Predictions:
        """Predict the last finished chunk again for the instants that it held back: they are not on disk."""
        last = self.finished[-1]
        chunk = Chunk(last.record.start, last.record.stop, last.record.overlap)
        predictions = self._predict(reader, chunk)
        if not self.world.is_fixed:
            predictions = predictions.transformed(transform_of(last.record))
        return predictions.at_times(last.stop - chunk.start, chunk.length)

    def _predicted(self, reader: BatchReader) -> Iterator[tuple[Chunk, Predictions]]:
        """Predict the chunks of the plan; one that does not fit in memory is halved with all that follow."""
        index, shrinks = len(self.finished), 0
        while index < len(self.state.plan):
            chunk = plan_of(self.state)[index]
            predictions = self._predict_or_none(reader, chunk)
            if predictions is None:
                shrinks += 1
                self._shrink(index, chunk, shrinks)
                continue
            yield chunk, predictions
            index += 1

    def _predict_or_none(self, reader: BatchReader, chunk: Chunk) -> Predictions | None:
        try:
            return self._predict(reader, chunk)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: its traceback would keep the tensors alive that did not fit.
        if self.inputs.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _predict(self, reader: BatchReader, chunk: Chunk) -> Predictions:
        with self.journal.timed("decode"):
            batch = reader.read(chunk.start, chunk.stop)
        with self.journal.timed("predict"):
            return self.world.settle(self.inputs.predictor.predict(batch), batch.cameras)

    def _shrink(self, index: int, chunk: Chunk, shrinks: int) -> None:
        """Replan from a chunk on with half its length.

        Raises:
            MemoryBudgetError: if it cannot be halved once more.
        """
        length = chunk.length // 2
        if shrinks > MAX_SHRINKS or length < max(1, 2 * self.settings.overlap):
            side = self.inputs.plan.long_side
            frames = "1 frame" if chunk.length == 1 else f"{chunk.length} frames"
            raise MemoryBudgetError(
                f"out of memory even with {frames} per chunk at {side} px",
                f"try --size {max(side * 3 // 4, 14)}, a smaller --overlap, or fewer --views",
            )
        rest = plan_chunks(self.inputs.scene.num_times, length, self.settings.overlap, start=chunk.start)
        self._update(plan=self.state.plan[:index] + [(part.start, part.stop, part.overlap) for part in rest])
        text = f"out of memory with {chunk.length} frames per chunk: continuing with {length}"
        self.journal.notice(Notice(text))

    def _write_chunk(self, stitched: Stitched, begin: float) -> None:
        """Write the instants that a chunk completes, then its record; `begin` is when its work began."""
        predictions = replace(stitched.predictions, scale=self.world.scale)
        if self.state.depth_scale is None:
            depth_scale = choose_depth_scale(predictions.depth, predictions.valid, predictions.scale)
            self._update(depth_scale=depth_scale, scale=predictions.scale)
            self._notice_scale()
        written, first = InstantFiles(), stitched.chunk.start
        options = InstantOptions(depth_scale=self.state.depth_scale or 1.0, points=self.settings.points)
        with self.journal.timed("write"):
            for place in range(predictions.num_times):
                written += write_instant(self.layout, first + place, predictions.at_times(place, place + 1), options)
                self.journal.progress(first + place + 1, self.inputs.scene.num_times)
        state = chunk_state(
            chunk_record(stitched, time.perf_counter() - begin),
            first,
            capture_cameras([predictions]),
            written,
            self.layout.folder,
        )
        self.states.write_chunk(len(self.finished), state)
        self.finished.append(state)

    def _notice_scale(self) -> None:
        if self.world.lacks_baseline:
            text = "one camera in one place gives no baseline: the scale of the result is arbitrary"
            self.journal.notice(Notice(text))
        elif self.world.scale is Scale.ARBITRARY:
            self.journal.notice(Notice("lengths are in an arbitrary unit (no metric calibration)", Level.INFO))

    def _notice_clipping(self) -> None:
        clipped = sum(chunk.clipped_depths for chunk in self.finished)
        if clipped:
            farthest = 65535 / (self.state.depth_scale or 1.0)
            self.journal.notice(Notice(f"{clipped} depths beyond {farthest:.4g} were clipped in the depth PNGs"))
