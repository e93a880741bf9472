"""One run: scene and predictor in, a complete output folder out."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

import torch
from pydantic import JsonValue

from page4d.conventions import Scale
from page4d.errors import InterruptedRunError, MemoryBudgetError, OutputError, WeightsError
from page4d.export.cameras import capture_cameras
from page4d.export.instant import InstantFiles, InstantOptions, write_capture_cameras, write_instant
from page4d.export.layout import OutputLayout
from page4d.export.maps import choose_depth_scale
from page4d.export.output import open_output
from page4d.export.run_record import ChunkRecord, NetworkRecord, RunRecord, read_run, write_run
from page4d.geometry.camera import Cameras
from page4d.geometry.preprocess import Preprocess
from page4d.geometry.similarity import Sim3
from page4d.inference.agreement import agreement_notice, agreement_of, residuals_record
from page4d.inference.bounded_queue import Handover
from page4d.inference.calibration_check import RigResiduals, compare_rigs
from page4d.inference.chunk_source import ChunkSource, OpenChunks, local_chunks
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.fingerprint import check_fingerprint, fingerprint_of
from page4d.inference.memory import is_out_of_memory
from page4d.inference.metric_scale import known_distance, metric_scene
from page4d.inference.output_policy import ExistingOutput, check_apart, check_target
from page4d.inference.plan import plan_run
from page4d.inference.predictor import Predictor
from page4d.inference.previews import write_previews
from page4d.inference.progress import Journal, Observer, SilentObserver
from page4d.inference.report import RunInputs, chunk_record, run_record
from page4d.inference.rig_report import distance_notice, distance_record, fit_notice, rig_notice, rig_state
from page4d.inference.run_state import (
    FinishedChunk,
    RunState,
    StateFolder,
    cameras_of,
    check_disk,
    chunk_state,
    finished_chunk,
    is_occupied,
    plan_of,
    transform_of,
)
from page4d.inference.seam_report import check_seams, seams_notice
from page4d.inference.settings import ReconstructSettings
from page4d.inference.static_rig import RigKeeper
from page4d.inference.stitch import Stitched, stitch
from page4d.inference.world import World
from page4d.io.atomic import claim_output
from page4d.models.conditioning import Memory
from page4d.models.ood import OOD_MESSAGES
from page4d.predictions import Predictions
from page4d.scene.batches import scene_cameras
from page4d.scene.records import Level, Notice, Scene

MAX_SHRINKS = 3
"""How often a chunk that does not fit in memory is halved."""


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
    open_chunks: OpenChunks = local_chunks,
) -> RunRecord:
    """Reconstruct a scene into an output folder and return what `run.json` records.

    `command` are the settings as the caller knows them, for `run.json`. A run is continued only if everything that
    its bytes depend on is the same; one that is complete is returned as it is. Where chunks are predicted, as
    `open_chunks` says, is of no influence on the bytes.

    Raises:
        UsageError: if the folder holds another result, or the inputs themselves.
        InputError: if a frame cannot be decoded.
        OutputError: if the folder cannot be written.
        MemoryBudgetError: if not even the smallest chunk fits in memory, or in the memory that the settings allow.
        InterruptedRunError: if a signal ended the run; what is written stays and can be continued.
    """
    settings, observer = settings or ReconstructSettings(), observer or SilentObserver()
    scene = metric_scene(scene, settings.scale_from)
    inputs = RunInputs(
        scene=scene,
        predictor=predictor,
        network=network,
        plan=plan_run(scene, settings, predictor, network, observer.notice),
        command=command or {},
        seed=settings.points.seed,
    )
    check_target(Path(out), existing)
    check_apart(scene, Path(out))
    with claim_output(Path(out)) as folder:
        check_target(folder, existing)  # once more: it may have been finished by another process meanwhile
        return _Run(inputs, settings, folder, Journal(observer), open_chunks).execute(existing)


class _Chunk(NamedTuple):
    """A predicted chunk on its way to the writers; `begin` is when its work began."""

    chunk: Chunk
    predictions: Predictions
    rig: Cameras | None
    begin: float


class _Run:
    """The state of one call of `reconstruct`; methods stand in the order in which they are first called.

    While a chunk is predicted, the frames of the next are decoded and the one before is stitched and written, each in
    a thread of its own. World, stitching and files belong to the writing thread, the network to the one that calls.
    """

    def __init__(
        self,
        inputs: RunInputs,
        settings: ReconstructSettings,
        folder: Path,
        journal: Journal,
        open_chunks: OpenChunks,
    ) -> None:
        self.open_chunks = open_chunks
        self.inputs = inputs
        self.settings = settings
        self.journal = journal
        self.layout = OutputLayout(folder, inputs.scene.view_names)
        self.states = StateFolder(self.layout)
        self.world = World(
            inputs.scene,
            settings.poses,
            predictor_uses_rig=inputs.predictor.uses_rig_cameras,
            distance=known_distance(inputs.scene, settings.scale_from),
        )
        self.rig = RigKeeper(settings.camera_motion, self._place_first)
        self.finished: list[FinishedChunk] = []
        self.settled, self.begin = Sim3.identity(), 0.0
        self.changing = Lock()
        self.memories: dict[int, Memory | None] = {}
        self.residuals: dict[int, RigResiduals] = {}

    def execute(self, existing: ExistingOutput) -> RunRecord:
        try:
            return self._execute(existing)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory() from error
        except InterruptedRunError as error:
            raise InterruptedRunError(
                f"interrupted after {self._num_done} of {self.inputs.scene.num_times} frames",
                "continue with --resume",
                error.exit_code - 128,
            ) from error

    def _execute(self, existing: ExistingOutput) -> RunRecord:
        begin = time.perf_counter()
        if existing is ExistingOutput.RESUME and self._is_done():
            self.journal.progress(self.inputs.scene.num_times, self.inputs.scene.num_times)
            finished = read_run(self.layout)
            self._check_seams(finished.chunks)
            return finished
        self.state = self._begin(existing)
        for notice in (*self.inputs.scene.notices, *self.inputs.plan.notices):
            self.journal.notice(notice)
        write_run(self.layout, self._record("incomplete"))
        self._reconstruct_chunks()
        self._notice_clipping()
        self._notice_seams()
        self._notice_cameras()
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
        self.journal.seconds["total"] += time.perf_counter() - begin
        self._update(other_files=[*names, "run.json"])
        record = self._record("complete")
        write_run(self.layout, record)
        return record

    def _is_done(self) -> bool:
        """Tell whether the run in the folder is this one, complete, with all its files."""
        earlier = self.states.read_run()
        if earlier is None or not self.states.is_complete():
            return False
        check_fingerprint(self.layout.folder, earlier, fingerprint_of(self.inputs, self.settings))
        done = self.states.finished_chunks(earlier)
        return bool(done) and done[-1].stop == self.inputs.scene.num_times

    def _begin(self, existing: ExistingOutput) -> RunState:
        folder, inputs = self.layout.folder, self.inputs
        fingerprint = fingerprint_of(inputs, self.settings)
        if existing is ExistingOutput.RESUME and is_occupied(folder):
            earlier = check_fingerprint(folder, self.states.read_run(), fingerprint)
            self.finished = self.states.finished_chunks(earlier)
            self._check_seams([chunk.record for chunk in self.finished])
            self.journal.continue_from(earlier.warnings, earlier.seconds)
            if self.finished and earlier.scale is not None:
                self.world.continue_from(earlier.scale, transform_of(self.finished[-1].record))
                if earlier.rig is not None:
                    self.rig.continue_from(earlier.rig.cameras(), self.finished[-1].record.rig)
            return earlier
        if existing is ExistingOutput.OVERWRITE and is_occupied(folder):
            check_disk(folder, inputs.plan.bytes_on_disk, self.states.listed_bytes())
            self.states.remove_listed_files()
        check_disk(folder, inputs.plan.bytes_on_disk)
        plan = [(chunk.start, chunk.stop, chunk.overlap) for chunk in inputs.plan.chunks]
        state = RunState(fingerprint=fingerprint, plan=plan, other_files=["run.json"])
        self.states.write_run(state)
        return state

    def _update(self, **changes: object) -> None:
        """Change the recorded state of the run, on disk too."""
        with self.changing:
            tally = {"warnings": list(self.journal.warnings), "seconds": dict(self.journal.seconds)}
            self.state = self.state.model_copy(update={**tally, **changes})
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
            with self.open_chunks(self.inputs, self.settings, self.journal) as source:
                held = self._held_back(source) if self.finished else None
                with Handover(partial(self._stitch_and_write, held=held)) as writing:
                    for chunk in self._predicted(source):
                        writing.give(chunk)
                        del chunk
        except OutputError as error:
            raise OutputError(f"{error.message} (after {self._num_done} of {total} frames)", error.hint) from error

    @property
    def _num_done(self) -> int:
        """Instants whose chunks are finished."""
        return self.finished[-1].stop if self.finished else 0

    def _place_first(self, first: Predictions) -> Sim3:
        return self.world.place_first(first, self._calibrated(first))

    def _stitch_and_write(self, chunks: Iterator[_Chunk], held: Predictions | None) -> None:
        """Bring chunks into one world as they come, and write them."""
        stitched = stitch(
            self._settled(chunks),
            num_times=self.inputs.scene.num_times,
            overlap=self.settings.overlap,
            place_first=self._place_first,
            fixed_world=self.world.is_fixed,
            anchor=self.rig.anchor,
            held=held,
        )
        for part in stitched:
            self._write_chunk(part)

    def _settled(self, chunks: Iterator[_Chunk]) -> Iterator[tuple[Chunk, Predictions]]:
        for chunk, predictions, rig, begin in chunks:
            settled, self.settled = self.world.settle(predictions, rig)
            self.begin = begin
            del predictions
            yield chunk, settled
            del settled

    def _calibrated(self, predictions: Predictions) -> Cameras | None:
        return scene_cameras(self.inputs.scene, predictions.pixel_transforms, 0, predictions.num_times)

    def _held_back(self, source: ChunkSource) -> Predictions:
        """Predict the last finished chunk again for the instants that it held back: they are not on disk."""
        last = self.finished[-1]
        chunk = Chunk(last.record.start, last.record.stop, last.record.overlap)
        predicted = self._predict_or_none(source, chunk, len(self.finished) - 1)
        if predicted is None:
            raise self._out_of_memory()
        predictions, self.settled = self.world.settle(predicted.predictions, predicted.rig)
        if self.rig.rig is not None:
            predictions = self.rig.rig.hold(predictions, transform_of(last.record).scale)
        elif not self.world.is_fixed:
            predictions = predictions.transformed(transform_of(last.record))
        return predictions.at_times(last.stop - chunk.start, chunk.length)

    def _predicted(self, source: ChunkSource) -> Iterator[_Chunk]:
        """Predict the chunks of the plan; one that does not fit in memory is halved with all that follow."""
        index, shrinks = len(self.finished), 0
        while index < len(self.state.plan):
            chunk = plan_of(self.state)[index]
            predicted = self._predict_or_none(source, chunk, index)
            if predicted is None:
                shrinks += 1
                self._shrink(index, chunk, shrinks)
                continue
            yield predicted
            del predicted
            index += 1

    def _predict_or_none(self, source: ChunkSource, chunk: Chunk, index: int) -> _Chunk | None:
        try:
            return self._predict(source, chunk, index)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: its traceback would keep the tensors alive that did not fit.
        if self.inputs.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _predict(self, source: ChunkSource, chunk: Chunk, index: int) -> _Chunk:
        begin = time.perf_counter()
        coming = plan_of(self.state)[index + 1 :]
        predicted, rig = source.predict(chunk, coming, self._memory_before(index))
        predictions, self.memories[index], strange = predicted
        _check_finite(predictions)
        if index == 0 and not self.finished:
            self._notice_strangeness(strange)
        if rig is not None and not self.inputs.predictor.uses_rig_cameras:
            self.residuals[index] = compare_rigs(predictions.cameras[0], rig[0])
        return _Chunk(chunk, predictions, rig, begin)

    def _notice_strangeness(self, strange: tuple[str, ...]) -> None:
        """Warn if the network shows signs of being at a loss; what the first chunk shows is said of the capture."""
        if strange:
            reasons = ", ".join(OOD_MESSAGES[name] for name in strange)
            text = f"this footage is unlike what the network was trained on ({reasons}): do not trust the result"
            self.journal.notice(Notice(text))

    def _memory_before(self, index: int) -> Memory | None:
        """Return what the network remembers of the chunk before; a continued run finds it on disk."""
        if index - 1 in self.memories:
            return self.memories[index - 1]
        return self.states.read_memory(index - 1) if index else None

    def _shrink(self, index: int, chunk: Chunk, shrinks: int) -> None:
        """Replan from a chunk on with half its length.

        Raises:
            MemoryBudgetError: if it cannot be halved once more.
        """
        length = chunk.length // 2
        unjoined = self.settings.overlap == 0 and not self.world.is_fixed
        if shrinks > MAX_SHRINKS or length < max(1, 2 * self.settings.overlap) or unjoined:
            raise self._out_of_memory(chunk.length)
        rest = plan_chunks(self.inputs.scene.num_times, length, self.settings.overlap, start=chunk.start)
        self.states.forget_chunks_from(index)
        self._update(plan=self.state.plan[:index] + [(part.start, part.stop, part.overlap) for part in rest])
        text = f"out of memory with {chunk.length} frames per chunk: continuing with {length}"
        self.journal.notice(Notice(text))

    def _out_of_memory(self, length: int | None = None) -> MemoryBudgetError:
        side = self.inputs.plan.long_side
        frames = {None: "", 1: " with 1 frame per chunk"}.get(length, f" with {length} frames per chunk")
        return MemoryBudgetError(
            f"out of memory even{frames} at {side} px" if frames else f"out of memory at {side} px",
            f"try {_smaller(side, self.settings.preprocess)}, a smaller --overlap, or fewer --views",
        )

    def _write_chunk(self, stitched: Stitched) -> None:
        """Write the instants that a chunk completes, then its record."""
        settled = self.settled if self.world.is_fixed else stitched.transform
        record = chunk_record(stitched, settled, time.perf_counter() - self.begin)
        self._check_seams([record])
        predictions = replace(stitched.predictions, scale=self.world.scale)
        if self.state.depth_scale is None:
            depth_scale = choose_depth_scale(predictions.depth, predictions.valid, predictions.scale)
            self._update(depth_scale=depth_scale, scale=predictions.scale)
            self._notice_scale()
        if not self.finished:
            self._settle_rig(predictions)
        written, first = InstantFiles(), stitched.chunk.start
        options = InstantOptions(depth_scale=self.state.depth_scale or 1.0, points=self.settings.points)
        with self.journal.timed("write"):
            for place in range(predictions.num_times):
                written += write_instant(self.layout, first + place, predictions.at_times(place, place + 1), options)
                self.journal.progress(first + place + 1, self.inputs.scene.num_times)
        index = len(self.finished)
        self.memories.pop(index - 1, None)
        memory = self.memories[index]
        kept = None if memory is None else self.states.write_memory(index, memory)
        residuals = self.residuals.pop(index, None)
        compared = None if residuals is None else residuals_record(residuals, predictions.view_names)
        seconds = round(time.perf_counter() - self.begin, 3)
        state = chunk_state(
            record.model_copy(update={"seconds": seconds, "calibration": compared}),
            first,
            capture_cameras([predictions]),
            written,
            kept,
            self.layout.folder,
        )
        self.states.write_chunk(index, state)
        self.finished.append(finished_chunk(state))
        self._update()

    def _settle_rig(self, first: Predictions) -> None:
        """Record what the first chunk decided about cameras and lengths, before any instant is written."""
        if self.world.measured is not None:
            distance = distance_record(self.world.measured)
            self._update(scale_from=distance)
            self.journal.notice(distance_notice(distance))
        names, size = first.view_names, first.cameras.image_size
        rig = rig_state(self.rig, self.settings.camera_motion, names, size)
        if rig is not None:
            self._update(rig=rig)
            self.journal.notice(rig_notice(rig.record))

    def _check_seams(self, chunks: list[ChunkRecord]) -> None:
        """Refuse what does not fit before it is written, if the settings say so."""
        if self.settings.strict_seams:
            check_seams(chunks, self._longest_side)

    @property
    def _longest_side(self) -> int:
        """The longest side of an image as the network sees it, in pixels."""
        return max(max(transform.canvas_size) for transform in self.inputs.plan.transforms)

    def _notice_seams(self) -> None:
        notice = seams_notice([chunk.record for chunk in self.finished], self._longest_side)
        if notice is not None:
            self.journal.notice(notice)

    def _notice_cameras(self) -> None:
        chunks = [chunk.record for chunk in self.finished]
        notice = fit_notice(chunks, self.inputs.scene.view_names, self._longest_side)
        if notice is not None:
            self.journal.notice(notice)
        agreement = agreement_of(self.inputs.scene, chunks)
        notice = None if agreement is None else agreement_notice(self.inputs.scene, agreement)
        if notice is not None:
            self.journal.notice(notice)

    def _notice_scale(self) -> None:
        if self.world.lacks_baseline:
            text = "cameras in one place give no baseline: the scale of the result is arbitrary"
            self.journal.notice(Notice(text))
        elif self.world.scale is Scale.ARBITRARY:
            self.journal.notice(Notice("lengths are in an arbitrary unit (no metric calibration)", Level.INFO))

    def _notice_clipping(self) -> None:
        clipped = sum(chunk.clipped_depths for chunk in self.finished)
        if clipped:
            levels = self.state.depth_scale or 1.0
            span = f"{1 / levels:.4g} to {65535 / levels:.4g}"
            self.journal.notice(Notice(f"{clipped} depths outside {span} were clipped in the depth PNGs"))


def _smaller(side: int, preprocess: Preprocess) -> str:
    """Name the options that make images smaller."""
    size = f"--size {max(side * 3 // 4, 14)}"
    return size if preprocess is Preprocess.NATIVE else f"--preprocess native {size}"


def _check_finite(predictions: Predictions) -> None:
    """Refuse cameras that are not numbers before anything is built on them.

    Raises:
        WeightsError: naming the first such camera.
    """
    cameras = predictions.cameras
    finite = cameras.world_to_camera.isfinite().all((-1, -2)) & cameras.intrinsics.isfinite().all((-1, -2))
    if not bool(finite.all()):
        _, time, view = (~finite).nonzero()[0].tolist()
        name, seconds = predictions.view_names[view], float(predictions.times[time])
        raise WeightsError(
            f"the camera of view '{name}' at {seconds:.3f} s is not finite",
            "repeat with --precision fp32; if that does not help, the weights do not suit these videos",
        )
