"""One run: chunks are predicted, stitched and written, resumably, each stage in a thread of its own.

Bounded producer-consumer queue: one item is consumed in a thread while the next one is produced.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from types import TracebackType
from typing import Generic, Literal, TypeVar

import torch

from page4d.choices import ExistingOutput, Preprocess
from page4d.conventions import Scale
from page4d.errors import (
    InterruptedRunError,
    MemoryBudgetError,
    OutputError,
    Stopped,
    UsageError,
    WeightsError,
    counted,
)
from page4d.formats.maps import choose_depth_scale
from page4d.formats.tracks import write_tracks
from page4d.geometry.transforms import Sim3
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.networks.conditioning import Memory
from page4d.output.cameras import capture_cameras, check_finite, join_cameras
from page4d.output.instant import (
    DEFAULT_WRITERS,
    LAYER_WRITERS,
    InstantFiles,
    InstantOptions,
    write_capture_cameras,
    write_instant,
)
from page4d.output.layout import OutputLayout
from page4d.output.reader import open_output
from page4d.output.record import (
    ChunkRecord,
    InstantMotion,
    ResidualsRecord,
    RunRecord,
    encode_run,
    read_run,
    write_run,
)
from page4d.records import Predictions
from page4d.rig.camera_motion import ViewMotion, measure_camera_motion
from page4d.run.chunk_source import ChunkSource, OpenChunks, local_chunks
from page4d.run.chunks import Chunk, plan_chunks
from page4d.run.cost import fitting_checkpoint, is_out_of_memory
from page4d.run.domain import Domain, domain_of
from page4d.run.plan import RunPlan
from page4d.run.predictor import PredictedChunk
from page4d.run.progress import Journal
from page4d.run.stages.clean import Cleaner, first_background, no_layers_notice, static_views, write_static_layer
from page4d.run.stages.detail import Detailer
from page4d.run.stages.motion import MotionEstimator, cameras_around, join_tracks
from page4d.run.stages.static_rig import StaticRigAligner, registered_rig
from page4d.run.stages.stitch import StitchedChunk, stitch
from page4d.run.state import StateFolder, check_disk, check_fingerprint, fingerprint_of, is_occupied
from page4d.run.state_records import CleaningState, FinishedChunk, RigState, RunState, transform_of, transform_record
from page4d.run.summary import (
    check_seams,
    compare_rigs,
    count_empty_frames,
    distance_notice,
    final_notices,
    rig_notice,
    scale_notice,
    summarize_run,
    write_previews,
)
from page4d.run.time import record_rates
from page4d.scene.batches import scene_cameras
from page4d.scene.records import Notice
from page4d.stereo.consensus import static_instant

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """Passes items to a thread that consumes them in order.

    `put` blocks until the consumer takes the item, which it does when it is done with the previous one: at most two
    items are alive. A failure of the consumer is raised by the next `put`, or at the end. If the body raises, as with
    Ctrl-C, the items put so far are consumed first. The thread uses as many cores as that which creates the queue.
    """

    def __init__(self, consume: Callable[[Iterator[T]], None]) -> None:
        self._consume = consume
        self._items: SimpleQueue[list[T]] = SimpleQueue()
        self._demand = Semaphore(0)
        self._failure: BaseException | None = None
        self._num_threads = torch.get_num_threads()
        self._thread = Thread(target=self._run, name="write", daemon=True)

    def put(self, item: T) -> None:
        """Wait for the consumer and pass an item to it."""
        self._demand.acquire()
        if self._failure is not None:
            raise self._failure
        self._items.put([item])

    def __enter__(self) -> "BoundedQueue[T]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._items.put([])
        try:
            self._thread.join()
        except BaseException:
            self._thread.join()  # a signal: the current item is finished first
            raise
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        # A new thread takes the number that any thread has set last, such as 1 in refinement.
        torch.set_num_threads(self._num_threads)
        try:
            self._consume(self._taken())
        except BaseException as error:  # raised in the producer's thread
            self._failure = error
            self._demand.release()

    def _taken(self) -> Iterator[T]:
        while True:
            self._demand.release()
            box = self._items.get()
            if not box:
                return
            yield box.pop()  # without a reference here: items are large


MAX_HALVINGS = 3
"""Number of times that a chunk that does not fit in memory is halved."""


class Run:
    """The state of one run; methods stand in the order in which they are first called.

    While a chunk is predicted, the frames of the next one are decoded and the previous one is stitched and written,
    each in a thread of its own. World, stitching and files belong to the writing thread, the network to the caller's.
    """

    def __init__(self, plan: RunPlan, folder: Path, journal: Journal, open_chunks: OpenChunks) -> None:
        self.plan, self.settings, self.scene = plan, plan.settings, plan.scene
        self.journal = journal
        self.open_chunks = open_chunks
        self.layout = OutputLayout(folder, plan.scene.view_names)
        self.states = StateFolder(self.layout)
        self.world = plan.world
        self.aligner = StaticRigAligner(
            plan.settings.camera_motion,
            self._place_first,
            self._measured_motion,
            registered_rig(plan.scene, plan.transforms),
        )
        self.cleaner = Cleaner(plan, self._measured_motion)
        self.detailer = Detailer(plan.scene, plan.fine_transforms, sweeps=plan.world.is_fixed)
        self.motion = MotionEstimator(plan.scene, plan.predictor, plan.motion_transforms, plan.point_tracks)
        self.finished: list[FinishedChunk] = []
        self.registered, self.begin = Sim3.identity(), 0.0
        self.motions: Sequence[ViewMotion] | None = None
        self.state_lock = Lock()
        self.memories: dict[int, Memory | None] = {}
        self.residuals: dict[int, ResidualsRecord] = {}
        self.domains: dict[int, Domain] = {}

    def execute(self, existing: ExistingOutput) -> RunRecord:
        """Run to the end and return the content of `run.json`."""
        try:
            return self._execute(existing)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory() from error
        except OutputError as error:
            hint = error.marked_hint.replace(", then repeat", ", then repeat with ⟨existing=resume⟩")
            raise OutputError(error.marked_message, hint) from error
        except (InterruptedRunError, Stopped) as error:
            raise InterruptedRunError(
                f"interrupted after {self._num_done} of {counted(self.scene.num_times, 'instant')}",
                "continue with ⟨existing=resume⟩",
                error.exit_code - 128,
            ) from error

    def _execute(self, existing: ExistingOutput) -> RunRecord:
        begin = time.perf_counter()
        earlier = self._earlier() if existing is ExistingOutput.RESUME else None
        if earlier is not None and self._num_done == self.scene.num_times and self.states.is_complete(earlier):
            self.journal.progress(self.scene.num_times, self.scene.num_times)
            finished = read_run(self.layout)
            self._check_seams(finished.chunks)
            return finished
        self.state = self._begun(existing) if earlier is None else self._continued(earlier)
        for notice in (*self.scene.notices, *self.plan.notices):
            self.journal.notice(notice)
        write_run(self.layout, self._record("incomplete"))
        self._reconstruct_chunks()
        for notice in final_notices(self.plan, self.state, self.finished):
            self.journal.notice(notice)
        cameras = join_cameras([chunk.cameras for chunk in self.finished])
        files = write_capture_cameras(self.layout, replace(cameras, scale=self.state.scale or Scale.ARBITRARY))
        files += self._write_tracks()
        if self.settings.preview:
            # Previews are drawn from the written files, not from predictions in memory.
            write_run(self.layout, self._record("incomplete"))
            with self.journal.timed("preview"):
                output = open_output(self.layout.folder, allow_incomplete=True)
                files += write_previews(output, self.scene)
        self.journal.seconds["total"] += time.perf_counter() - begin
        if earlier is None and self.open_chunks is local_chunks:  # a cluster's times are those of waiting
            record_rates(self.plan, self.journal.seconds)
        self.states.check_present(self.finished)
        record = self._record("complete")
        encoded = encode_run(record)
        # The record of the run lists the hash of run.json, and is written first: only then the run is complete.
        files.append(WrittenFile.of(self.layout.run, encoded))
        self._update(other_files=self.states.record_files(files))
        write_bytes_atomic(self.layout.run, encoded)
        return record

    def _write_tracks(self) -> list[WrittenFile]:
        """Write the tracks of all chunks."""
        if self.motion.follower is None:
            return []
        chunks = (self.states.read_tracks(index) for index in range(len(self.finished)))
        tracks = join_tracks(chunks, self.scene.times, self.scene.num_views)
        self._update(num_tracks=tracks.num_tracks)
        return [write_tracks(self.layout.tracks, tracks)]

    def _earlier(self) -> RunState | None:
        """Return the state of the run to continue, with its finished chunks; None if there is nothing to continue.

        Raises:
            UsageError: if the folder holds something else.
        """
        folder, earlier = self.layout.folder, self.states.read_run()
        try:
            state = check_fingerprint(folder, earlier, self.plan)
        except UsageError:
            if is_occupied(folder):
                raise
            return None
        image_sizes = tuple(transform.original_size for transform in self.plan.transforms)
        self.finished = self.states.finished_chunks(state, self.scene.times.tolist(), image_sizes)
        return state

    def _continued(self, earlier: RunState) -> RunState:
        """Restore world and rig of an interrupted run."""
        self._check_seams([chunk.record for chunk in self.finished])
        self.journal.continue_from(earlier.warnings, earlier.seconds)
        if self.finished and earlier.scale is not None:
            self.world.continue_from(earlier.scale_source, transform_of(self.finished[-1].record))
            if earlier.rig is not None:
                self.aligner.continue_from(earlier.rig.static_rig(), self.finished[-1].record.rig)
        if self.finished and self.motion.follower is not None:
            self.motion.follower.continue_from(self.states.read_tracks(len(self.finished) - 1))
        if earlier.cleaning is not None:
            self.cleaner.continue_from(
                self.states.read_background(earlier.cleaning), earlier.cleaning, self._num_done
            )
        return earlier

    def _begun(self, existing: ExistingOutput) -> RunState:
        """Record a new run, after the files of an older one are deleted on request."""
        folder = self.layout.folder
        if existing is ExistingOutput.OVERWRITE and is_occupied(folder):
            check_disk(folder, self.plan.bytes_on_disk, self.states.listed_bytes())
            self.states.remove_listed_files()
        check_disk(folder, self.plan.bytes_on_disk)
        chunks = [(chunk.start, chunk.stop, chunk.overlap) for chunk in self.plan.chunks]
        state = RunState(
            fingerprint=fingerprint_of(self.plan),
            plan=chunks,
            registration=self.plan.registration,
            calibration_check=self.plan.calibration_check,
        )
        self.states.write_run(state)
        return state

    def _update(self, **changes: object) -> None:
        """Change the recorded state of the run, on disk too."""
        with self.state_lock:
            totals = {"warnings": list(self.journal.warnings), "seconds": dict(self.journal.seconds)}
            self.state = self.state.model_copy(update={**totals, **changes})
            self.states.write_run(self.state)

    def _record(self, status: Literal["complete", "incomplete"]) -> RunRecord:
        """Return the content of `run.json` at this point."""
        return summarize_run(status, self.plan, self.layout, self.state, self.finished, self.journal)

    def _reconstruct_chunks(self) -> None:
        """Predict, stitch and write every chunk that is not finished yet."""
        total = self.scene.num_times
        self.journal.progress(self._num_done, total)
        if self._num_done == total:
            return
        try:
            self._predict_background()
            with self.open_chunks(self.plan, self.journal) as source:
                held = self._predict_held(source) if self.finished else None
                with (
                    closing(self.detailer),
                    closing(self.motion),
                    BoundedQueue(partial(self._stitch_and_write, held=held)) as writing,
                ):
                    for chunk in self._predicted(source):
                        writing.put(chunk)
                        del chunk
        except OutputError as error:
            raise OutputError(
                f"{error.marked_message} (after {self._num_done} of {counted(total, 'instant')})", error.marked_hint
            ) from error

    def _predict_background(self) -> None:
        """Predict and record the background of a run of several chunks, unless an interrupted run did."""
        if self.state.cleaning is not None or not self.cleaner.needs_background:
            return
        self.cleaner.predict_background(self.open_chunks, self._in_unit_of_world, self.journal)
        files = [] if self.cleaner.background is None else [self.states.write_background(self.cleaner.background)]
        self._update(cleaning=CleaningState(background=[*self.states.record_files(files)]))

    def _in_unit_of_world(self, predicted: PredictedChunk) -> Predictions:
        return self.world.register(predicted.predictions, predicted.rig, predicted.rig_scale)[0]

    @property
    def _num_done(self) -> int:
        """Instants whose chunks are finished."""
        return self.finished[-1].stop if self.finished else 0

    def _predict_held(self, source: ChunkSource) -> Predictions:
        """Predict the last finished chunk again for its last instants, which are blended with the next chunk."""
        last = self.finished[-1]
        chunk = Chunk(last.record.start, last.record.stop, last.record.overlap)
        predicted = self._predict_or_none(source, chunk, len(self.finished) - 1)
        if predicted is None:
            raise self._out_of_memory()
        predictions, self.registered = self.world.register(predicted.predictions, predicted.rig, predicted.rig_scale)
        transform = transform_of(last.record)
        if self.aligner.rig is not None:
            predictions = self.aligner.rig.apply(predictions, transform)
        elif not self.world.is_fixed:
            predictions = predictions.transformed(transform)
        return predictions.at_times(last.stop - chunk.start, chunk.length)

    def _predicted(self, source: ChunkSource) -> Iterator[tuple[Chunk, PredictedChunk, float]]:
        """Predict the chunks of the plan; one that does not fit in memory is halved with all that follow.

        The time at which work on a chunk began comes with it.
        """
        index, halvings = len(self.finished), 0
        while index < len(self.state.plan):
            chunk, begin = self.state.chunks[index], time.perf_counter()
            predicted = self._predict_or_none(source, chunk, index)
            if predicted is None:
                halvings += 1
                self._halve(index, chunk, halvings)
                continue
            yield chunk, predicted, begin
            del predicted
            index += 1

    def _predict_or_none(self, source: ChunkSource, chunk: Chunk, index: int) -> PredictedChunk | None:
        try:
            return self._predict(source, chunk, index)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: its traceback would keep the tensors alive that did not fit.
        if self.plan.predictor.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _predict(self, source: ChunkSource, chunk: Chunk, index: int) -> PredictedChunk:
        predicted = source.predict(chunk, self.state.chunks[index + 1 :], self._memory_before(index))
        predictions, rig = predicted.predictions, predicted.rig
        if not self.plan.has_motion:
            predictions = replace(predictions, dynamic=None)
        check_finite(predictions, WeightsError)
        self.memories[index] = predicted.memory
        self.domains[index] = domain = domain_of(predicted, self.plan)
        if index == 0 and not self.finished:
            for notice in domain.notices(fitting_checkpoint(self.plan.predictor.device, commercial=True)):
                self.journal.notice(notice)
        if rig is not None and not self.plan.predictor.uses_rig_cameras:
            self.residuals[index] = compare_rigs(predictions.cameras[0], rig[0], predictions.view_names)
        return predicted._replace(predictions=predictions, memory=None)

    def _memory_before(self, index: int) -> Memory | None:
        """Return the network's memory after the previous chunk; a resumed run reads it from disk."""
        if index - 1 in self.memories:
            return self.memories[index - 1]
        return self.states.read_memory(index - 1, self.finished[index - 1]) if index else None

    def _halve(self, index: int, chunk: Chunk, halvings: int) -> None:
        """Replan from a chunk on with half its length.

        Raises:
            MemoryBudgetError: if it cannot be halved again.
        """
        length = chunk.length // 2
        unaligned = self.settings.overlap == 0 and not self.world.is_fixed
        if halvings > MAX_HALVINGS or length < max(1, 2 * self.settings.overlap) or unaligned:
            raise self._out_of_memory(chunk.length)
        rest = plan_chunks(self.scene.num_times, length, self.settings.overlap, start=chunk.start)
        self.states.delete_chunks_from(index)
        self._update(plan=self.state.plan[:index] + [(part.start, part.stop, part.overlap) for part in rest])
        text = f"out of memory with {counted(chunk.length, 'instant')} per chunk: continuing with {length}"
        self.journal.notice(Notice(text))

    def _out_of_memory(self, length: int | None = None) -> MemoryBudgetError:
        side = self.plan.long_side
        even = "" if length is None else f" even with {counted(length, 'instant')} per chunk"
        native = "" if self.settings.preprocess is Preprocess.NATIVE else "⟨preprocess=native⟩ "
        return MemoryBudgetError(
            f"out of memory{even} at {side} px",
            f"try {native}⟨long_side={max(side * 3 // 4, 14)}⟩, a smaller ⟨overlap⟩, or fewer ⟨views⟩",
        )

    def _stitch_and_write(
        self, chunks: Iterator[tuple[Chunk, PredictedChunk, float]], held: Predictions | None
    ) -> None:
        """Bring chunks into one world as they arrive, and write them."""
        stitched = stitch(
            self._registered_chunks(chunks),
            num_times=self.scene.num_times,
            overlap=self.settings.overlap,
            place_first=self._place_first,
            fixed_world=self.world.is_fixed,
            anchor=self.aligner.anchor,
            held=held,
        )
        for part in stitched:
            self._write_chunk(part)

    def _registered_chunks(
        self, chunks: Iterator[tuple[Chunk, PredictedChunk, float]]
    ) -> Iterator[tuple[Chunk, Predictions]]:
        for chunk, predicted, begin in chunks:
            registered, self.registered = self.world.register(
                predicted.predictions, predicted.rig, predicted.rig_scale
            )
            self.begin = begin
            del predicted
            yield chunk, registered
            del registered

    def _measured_motion(self) -> Sequence[ViewMotion]:
        """Return the motion of the cameras, measured by registration, or once when it is first needed."""
        registration = self.plan.registration
        if self.motions is None:
            self.motions = (registration and registration.motions) or measure_camera_motion(self.scene)
        return self.motions

    def _place_first(self, first: Predictions) -> Sim3:
        calibrated = scene_cameras(self.scene, first.pixel_transforms, 0, first.num_times)
        return self.world.place_first(first, calibrated)

    def _write_chunk(self, stitched: StitchedChunk) -> None:
        """Write the instants that a chunk completes, then its record."""
        record = self._chunk_record(stitched)
        self._check_seams([record])
        with self.journal.timed("clean"):
            predictions = self.cleaner.clean(replace(stitched.predictions, scale=self.world.scale), self.journal)
        first = stitched.chunk.start
        with self.journal.timed("detail"):
            self.detailer.begin(predictions, self.cleaner.fused_background)
            shown = self.detailer.instant(first, predictions.at_times(0, 1))
        if self.state.depth_scale is None:
            depth_scale = choose_depth_scale(predictions.depth, predictions.valid, predictions.scale)
            self._update(
                depth_scale=depth_scale,
                scale=predictions.scale,
                scale_source=self.world.scale_source,
                mesh_voxel_size=self.plan.mesh_voxel(shown),
                cleaning=self.cleaner.state(self.state.cleaning),
            )
            if (unit := scale_notice(self.world)) is not None:
                self.journal.notice(unit)
        if not self.finished:
            self._record_rig(predictions)
        written = InstantFiles()
        options = InstantOptions(
            depth_scale=self.state.depth_scale or 1.0,
            points=replace(self.settings.points, min_views=self.cleaner.min_views),
            mesh_voxel=self.state.mesh_voxel_size or 1.0,
            seed=self.settings.seed,
        )
        if not self.finished:
            written += self._write_static(predictions, shown, options)
        options = replace(options, writers=self._writers(has_layers=self.state.layers is not None))
        motion: list[InstantMotion] = []
        before = self.finished[-1].cameras if self.finished else None
        cameras = cameras_around(before, predictions, stitched.following)
        for place in range(predictions.num_times):
            with self.journal.timed("detail"):
                if place:
                    shown = self.detailer.instant(first + place, predictions.at_times(place, place + 1))
            with self.journal.timed("motion"):
                shown, measured = self.motion.instant(first + place, shown, cameras[place], cameras[place + 2])
                motion += [] if measured is None else [measured]
            with self.journal.timed("write"):
                written += write_instant(self.layout, first + place, shown, options)
            self.journal.progress(first + place + 1, self.scene.num_times)
        index = len(self.finished)
        self.memories.pop(index - 1, None)
        memory = self.memories[index]
        files = [*written.files, *([] if memory is None else [self.states.write_memory(index, memory)])]
        if self.motion.follower is not None:
            files.append(self.states.write_tracks(index, self.motion.follower.take_chunk()))
        seconds = round(time.perf_counter() - self.begin, 3)
        records = self.states.record_files(files)
        finished = FinishedChunk(
            record=record.model_copy(update={"seconds": seconds}),
            first=first,
            cameras=capture_cameras([predictions]),
            files={file.name: file.num_bytes for file in records},
            clipped_depths=written.clipped_depths,
            num_points=written.num_points,
            clipped_velocities=written.clipped_velocities,
            motion=motion,
        )
        self.states.write_chunk(index, finished, records)
        self.finished.append(finished)
        self._update()

    def _write_static(self, first: Predictions, shown: Predictions, options: InstantOptions) -> InstantFiles:
        """Write what does not move if the run is to have layers, and record it; report if it cannot have them.

        `shown` is the first instant at the pixels of the result.
        """
        if not self.settings.layers:
            return InstantFiles()
        views = static_views(self.scene, self.aligner.rig, is_calibrated=self.world.is_fixed)
        if (notice := no_layers_notice(first, views, self.scene.num_times)) is not None:
            self.journal.notice(notice)
            return InstantFiles()
        options = replace(options, writers=self._writers(has_layers=True))
        fused = self.detailer.background(self.cleaner.fused_background)
        background = first_background(first, views) if fused is None else static_instant(shown, fused)
        with self.journal.timed("write"):
            record, written = write_static_layer(self.layout, background, options)
        self._update(layers=record)
        return written

    def _writers(self, *, has_layers: bool) -> tuple[str, ...]:
        """Return the writers of the files of an instant."""
        writers, mesh = (LAYER_WRITERS, "moving_mesh") if has_layers else (DEFAULT_WRITERS, "mesh")
        return (*writers, mesh) if self.settings.mesh else writers

    def _chunk_record(self, stitched: StitchedChunk) -> ChunkRecord:
        chunk, domain = stitched.chunk, self.domains.pop(len(self.finished), None)
        transform = self.registered if self.world.is_fixed else stitched.transform
        return ChunkRecord(
            start=chunk.start,
            stop=chunk.stop,
            overlap=chunk.overlap,
            seconds=round(time.perf_counter() - self.begin, 3),
            transform=transform_record(transform),
            seam=stitched.seam,
            rig=stitched.fit,
            calibration=self.residuals.pop(len(self.finished), None),
            empty_frames=count_empty_frames(stitched.predictions),
            refined=None if domain is None else domain.refined,
            domain=None if domain is None else domain.record,
        )

    def _record_rig(self, first: Predictions) -> None:
        """Record the decisions of the first chunk on cameras and scale, before any instant is written."""
        if self.world.measured is not None:
            self._update(scale_from=self.world.measured)
            self.journal.notice(distance_notice(self.world.measured))
        if self.aligner.record is not None:
            self._update(rig=RigState.of(self.aligner.record, self.aligner.rig, first.cameras.image_size))
            self.journal.notice(rig_notice(self.aligner.record))

    def _check_seams(self, chunks: list[ChunkRecord]) -> None:
        if self.settings.strict_seams:
            check_seams(chunks, self.plan.max_side)
