"""One run: chunks are predicted, brought into one world, and written stage by stage, resumably."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from pydantic import JsonValue

from page4d.choices import ExistingOutput
from page4d.errors import InterruptedRunError, Level, Notice, OutputError, Stopped, UsageError, counted
from page4d.formats.cameras_json import CaptureCameras
from page4d.geometry.transforms import Sim3
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_records import encode_model, read_model, write_model
from page4d.io.machine import trim_heap
from page4d.networks.conditioning import Memory
from page4d.networks.layers.execution import on_threads
from page4d.output.cameras import capture_cameras
from page4d.output.instant import InstantFiles, write_capture_cameras
from page4d.output.layout import OutputLayout
from page4d.output.reader import open_output
from page4d.output.record import ChunkRecord, InstantMotion, RunRecord, TransformRecord
from page4d.records import Predictions
from page4d.run import summary
from page4d.run.bounded_queue import BoundedQueue
from page4d.run.chunk_source import (
    ArrivedChunk,
    ChunkFacts,
    ChunkPredictions,
    OpenChunks,
    local_chunks,
    out_of_memory,
)
from page4d.run.chunks import Chunk
from page4d.run.fingerprint import check_fingerprint, fingerprint_of
from page4d.run.journal import Journal
from page4d.run.memory import is_out_of_memory, peak_bytes
from page4d.run.plan import RunPlan
from page4d.run.registration import check_for_run
from page4d.run.stage import History, Instant, Stage, chunk_name
from page4d.run.stages.clean import Cleaner, Layers
from page4d.run.stages.detail import Detailer
from page4d.run.stages.motion import MotionEstimator, cameras_around
from page4d.run.stages.static_rig import StaticRigAligner, registered_rig
from page4d.run.stages.stitch import StitchedChunk, stitch
from page4d.run.stages.write import FileOptions, Writer
from page4d.run.state import StateFolder, check_disk, is_occupied
from page4d.run.state_records import FileRecord, FinishedChunk, RunState, transform_of
from page4d.run.time import record_rates
from page4d.scene.batches import scene_cameras

_MEMORY = "memory"
"""Name of the network's memory after a chunk in the state folder."""


class Run:
    """The state of one run; methods stand in the order in which they are first called.

    While a chunk is predicted, the frames of the next one are decoded and the previous one is stitched and written,
    each in a thread of its own. Stages and files belong to the writing thread, the network to the caller's.
    """

    def __init__(self, plan: RunPlan, folder: Path, journal: Journal, open_chunks: OpenChunks) -> None:
        self.plan, self.scene, self.world = plan, plan.scene, plan.world
        self.journal = journal
        self.open_chunks = open_chunks
        self.layout = OutputLayout(folder, plan.scene.view_names)
        self.states = StateFolder(self.layout)
        self.readers = ExitStack()
        self.cleaner = Cleaner(plan, open_chunks, journal)
        self.rig = StaticRigAligner(
            plan.settings.camera_motion,
            self._place_first,
            lambda: plan.evidence.motions,
            registered_rig(plan.scene, plan.transforms),
        )
        self.motion = MotionEstimator(plan, self.layout, self.readers)
        self.stages: tuple[Stage[Any], ...] = (
            self.cleaner,
            Detailer(plan, self.readers),
            FileOptions(plan),
            self.world,
            self.rig,
            Layers(plan, self.rig, self.layout),
            self.motion,
            Writer(self.layout, plan.scene),
        )
        self.finished: list[FinishedChunk] = []
        self.state_lock = Lock()

    def execute(self, existing: ExistingOutput) -> RunRecord:
        """Run to the end and return the content of `run.json`."""
        try:
            return self._execute(existing)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(self.plan) from error
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
            finished = read_model(self.layout.run, RunRecord)
            self._check_seams(finished.chunks)
            return finished
        self.state = self._begun(existing) if earlier is None else self._continued(earlier)
        with on_threads(self.state.threads):
            return self._finish(begin, is_new=earlier is None)

    def _finish(self, begin: float, *, is_new: bool) -> RunRecord:
        """Reconstruct what is not finished yet, and write the files of the whole capture."""
        for notice in (*self.scene.notices, *self.plan.notices):
            self.journal.notice(notice)
        begun = summary.begun_record(self.plan, self.layout, self.state)
        write_model(self.layout.run, begun)
        self._reconstruct_chunks()
        files, record = self._finish_stages(begun)
        if self.plan.settings.preview:
            # Previews are drawn from the written files, not from predictions in memory.
            write_model(self.layout.run, record)
            with self.journal.timed("preview"):
                output = open_output(self.layout.folder, allow_incomplete=True)
                files += summary.write_previews(output, self.scene)
        self.journal.seconds["total"] += time.perf_counter() - begin
        if is_new and self.open_chunks is local_chunks:  # a cluster's times are those of waiting
            record_rates(self.plan, self.journal.seconds)
        self.states.check_present(len(self.finished))
        return self._complete(record, files)

    def _earlier(self) -> RunState | None:
        """Return the state of the run to continue, with its finished chunks; None if there is nothing to continue.

        Raises:
            UsageError: if the folder holds something else.
        """
        folder, earlier = self.layout.folder, self.states.read_run()
        if earlier is None:
            return None
        try:
            check_fingerprint(folder, earlier, self.plan)
        except UsageError:
            if is_occupied(folder):
                raise
            return None
        self.finished = self.states.finished_chunks(earlier, self.scene.times.tolist())
        return earlier

    def _continued(self, earlier: RunState) -> RunState:
        if earlier.threads != (now := torch.get_num_threads()):
            text = f"computing on {counted(earlier.threads, 'thread')}, as before the interruption, not on {now}"
            self.journal.notice(Notice(text, Level.STEP))
        self._check_seams([chunk.record for chunk in self.finished])
        self.journal.warnings.extend(text for text in earlier.warnings if text not in self.journal.warnings)
        self.journal.add(earlier.seconds)
        self.states.check_unchanged(earlier.files)
        for stage in self.stages:
            stage.restore(self._history(earlier))
        return earlier

    def _begun(self, existing: ExistingOutput) -> RunState:
        """Record a new run, after the check of its calibration; the files of an older one are deleted on request."""
        folder, evidence, check = self.layout.folder, self.plan.evidence, None
        overwrites = existing is ExistingOutput.OVERWRITE and is_occupied(folder)
        check_disk(folder, self.plan.bytes_on_disk, self.states.listed_bytes() if overwrites else 0)
        if evidence.will_check:
            with self.journal.timed("check"):
                check = check_for_run(evidence.pixels, self.journal.notice)
        if overwrites:
            self.states.remove_listed_files()
            check_disk(folder, self.plan.bytes_on_disk)
        state = RunState(
            fingerprint=fingerprint_of(self.plan),
            threads=torch.get_num_threads(),
            plan=list(self.plan.chunks),
            registration=evidence.registration,
            world=evidence.given_world,
            calibration_check=check,
        )
        self.states.write_run(state)
        return state

    def _history(self, state: RunState) -> History:
        return History(states=state.stages, finished=self.finished, read_tensors=self.states.read_tensors)

    def _update(self, **changes: object) -> None:
        """Change the recorded state of the run, on disk too."""
        with self.state_lock:
            totals = {"warnings": list(self.journal.warnings), "seconds": dict(self.journal.seconds)}
            self.state = self.state.model_copy(update={**totals, **changes})
            self.states.write_run(self.state)

    def _stage_states(self) -> dict[str, JsonValue]:
        return {
            stage.name: stage.decided.model_dump(mode="json") for stage in self.stages if stage.decided is not None
        }

    def _reconstruct_chunks(self) -> None:
        """Predict, stitch and write every chunk that is not finished yet."""
        total = self.scene.num_times
        self.journal.progress(self._num_done, total)
        if self._num_done == total:
            return
        try:
            with self.readers:
                while self._num_done < total:  # again if the only chunk was halved
                    self._prepare()
                    trim_heap()
                    self._predict_and_write()
        except OutputError as error:
            raise OutputError(
                f"{error.marked_message} (after {self._num_done} of {counted(total, 'instant')})", error.marked_hint
            ) from error

    def _predict_and_write(self) -> None:
        """Predict, stitch and write the chunks of the plan, but not that of a plan of one that is halved."""
        with self.open_chunks(self.cleaner.plan, self.journal) as source:
            predictions = ChunkPredictions(self.plan, source, self.journal, self.state.plan, self._replan)
            held, memory = self._held(predictions)
            queue = BoundedQueue(partial(self._stitch_and_write, held=held))
            try:
                with queue as writing:
                    for chunk in predictions.from_chunk(len(self.finished), memory):
                        trim_heap()  # what the network and refinement freed is not left to the writing thread
                        writing.put(chunk)
                        del chunk
            finally:
                queue.end()  # a thread that still writes at the end of the process leaves a partial file

    @property
    def _num_done(self) -> int:
        return self.finished[-1].stop if self.finished else 0

    def _prepare(self) -> None:
        """Predict the background before the first chunk, unless an interrupted run did."""
        prepared = self.cleaner.prepare(self.state.plan)
        files = [self.states.write_tensors(name, tensors) for name, tensors in prepared.items()]
        if self.cleaner.decided is None:
            return
        listed = [*self.state.files, *FileRecord.of_all(files, self.layout.folder)]
        self._update(files=listed, stages={**self.state.stages, **self._stage_states()})

    def _replan(self, index: int, rest: Sequence[Chunk]) -> None:
        """Record other chunks from a number on."""
        self.states.delete_chunks_from(index)
        self._update(plan=[*self.state.plan[:index], *rest])

    def _held(self, predictions: ChunkPredictions) -> tuple[Predictions | None, Memory | None]:
        """Predict the last finished chunk again for its last instants, which are blended with the next chunk.

        Also return the network's memory after it; None for both before the first chunk.
        """
        if not self.finished:
            return None, None
        index, last = len(self.finished) - 1, self.finished[-1]
        before = chunk_name(_MEMORY, index - 1)
        memory = self.states.read_tensors(before) if self.states.has_tensors(before) else None
        arrived = predictions.predict(index, memory)
        placed, _ = self._registered(arrived)
        transform = transform_of(last.record)
        if self.rig.rig is not None:
            placed = self.rig.rig.apply(placed, transform)
        elif not self.world.is_fixed:
            placed = placed.transformed(transform)
        chunk = arrived.facts.chunk
        return placed.at_times(last.stop - chunk.start, chunk.length), arrived.facts.memory

    def _registered(self, arrived: ArrivedChunk, before: Predictions | None = None) -> tuple[Predictions, Sim3]:
        predicted = arrived.predicted
        return self.world.register(predicted.predictions, predicted.rig, predicted.rig_scale, before)

    def _place_first(self, first: Predictions) -> Sim3:
        calibrated = scene_cameras(self.scene, first.pixel_transforms, 0, first.num_times)
        return self.world.place_first(first, calibrated)

    def _stitch_and_write(self, chunks: Iterator[ArrivedChunk], held: Predictions | None) -> None:
        """Bring chunks into one world as they arrive, and write them."""
        arrived: list[tuple[ChunkFacts, Sim3]] = []
        before = None if held is None or not held.num_times else held.at_times(0, 1)

        def registered() -> Iterator[tuple[Chunk, Predictions]]:
            for one in chunks:
                predictions, transform = self._registered(one, before)
                arrived.append((one.facts, transform))
                del one
                yield arrived[-1][0].chunk, predictions
                del predictions

        stitched = stitch(
            registered(),
            num_times=self.scene.num_times,
            overlap=self.plan.overlap,
            place_first=self._place_first,
            fixed_world=self.world.is_fixed,
            anchor=self.rig.anchor,
            held=held,
        )
        for part in stitched:
            facts, transform = arrived.pop()
            before = part.following
            # In a fixed world a chunk is brought there by registration, not by stitching.
            self._write_chunk(part, facts, transform if self.world.is_fixed else part.transform)

    def _write_chunk(self, stitched: StitchedChunk, facts: ChunkFacts, transform: Sim3) -> None:
        """Pass the instants that a chunk completes through the stages, then record it."""
        record = self._chunk_record(stitched, facts, transform)
        self._check_seams([record])
        placed = replace(stitched.predictions, scale=self.world.scale)
        with self.journal.timed("people"):
            people = self.cleaner.people_at(placed.times)
        with self.journal.timed("clean"):
            predictions = self.cleaner.clean(placed, facts.background, people)
        first, index = stitched.chunk.start, len(self.finished)
        written, motion = self._write_instants(first, predictions, stitched.following)
        tensors = {**self.motion.chunk_tensors(), **({} if facts.memory is None else {_MEMORY: facts.memory})}
        states = [self.states.write_tensors(chunk_name(name, index), one) for name, one in tensors.items()]
        records = FileRecord.of_all([*written.files, *states], self.layout.folder)
        cameras = capture_cameras(predictions)
        finished = FinishedChunk(
            record=record.model_copy(update={"seconds": round(time.perf_counter() - facts.begin, 3)}),
            first=first,
            stop=first + predictions.num_times,
            times=cameras.times,
            world_to_camera=cameras.world_to_camera,
            intrinsics=cameras.intrinsics,
            clipped_depths=written.clipped_depths,
            num_points=written.num_points,
            clipped_velocities=written.clipped_velocities,
            motion=motion,
        )
        # The decisions first: a chunk without them could not be continued.
        self._update(stages=self._stage_states())
        self.states.write_chunk(index, finished, records)
        self.finished.append(finished)
        trim_heap()  # the heap would grow by fragments from chunk to chunk

    def _write_instants(
        self, first: int, chunk: Predictions, following: Predictions | None
    ) -> tuple[InstantFiles, list[InstantMotion]]:
        """Pass the instants of a cleaned chunk through the stages one by one."""
        cameras = cameras_around(self.finished[-1] if self.finished else None, chunk, following)
        written, motion = InstantFiles(), []
        for place in range(chunk.num_times):
            instant = Instant(
                index=first + place,
                predictions=chunk.at_times(place, place + 1),
                chunk=chunk,
                before=cameras[place],
                after=cameras[place + 2],
            )
            for stage in self.stages:
                begin = time.perf_counter()
                instant = stage(instant)
                self.journal.seconds[stage.seconds] += time.perf_counter() - begin
            for notice in instant.notices:
                self.journal.notice(notice)
            written += instant.written
            motion += [] if instant.motion is None else [instant.motion]
            self.journal.progress(first + place + 1, self.scene.num_times)
        return written, motion

    def _chunk_record(self, stitched: StitchedChunk, facts: ChunkFacts, transform: Sim3) -> ChunkRecord:
        chunk = stitched.chunk
        return ChunkRecord(
            start=chunk.start,
            stop=chunk.stop,
            overlap=chunk.overlap,
            seconds=0.0,
            transform=TransformRecord.of(transform),
            seam=stitched.seam,
            rig=stitched.fit,
            calibration=facts.residuals,
            empty_frames=summary.count_empty_frames(stitched.predictions),
            faults=summary.fault_records(stitched.predictions, chunk.start),
            refined=facts.domain.refined,
            domain=facts.domain.record,
        )

    def _check_seams(self, chunks: list[ChunkRecord]) -> None:
        if self.plan.settings.strict_seams:
            summary.check_seams(chunks, self.plan.max_side)

    def _finish_stages(self, begun: RunRecord) -> tuple[list[WrittenFile], RunRecord]:
        """Write the files of the whole capture, and report on the whole run."""
        poses = torch.cat([chunk.world_to_camera for chunk in self.finished])
        cameras = CaptureCameras(
            times=torch.cat([chunk.times for chunk in self.finished]),
            view_names=self.layout.view_names,
            image_sizes=tuple(transform.original_size for transform in self.plan.transforms),
            world_to_camera=torch.stack(
                [self.scene.in_files(index, view).expand_as(view) for index, view in enumerate(poses.unbind(1))],
                dim=1,
            ),
            intrinsics=torch.cat([chunk.intrinsics for chunk in self.finished]),
            scale=self.world.scale,
            map_sizes=tuple(transform.map_size for transform in self.plan.map_transforms),
            start_ns=self.scene.start_ns,
            starts=tuple(view.clock.offset_s for view in self.scene.views),
            clock_origin=self.scene.clock_origin,
            up=self.scene.up,
        )
        files = write_capture_cameras(self.layout, cameras)
        files += self.motion.finish(self._history(self.state))
        decided = [stage.decided for stage in self.stages if stage.decided is not None]
        record = summary.finished_record(begun, self.plan, self.state, self.finished, decided)
        for notice in summary.final_notices(self.plan, record, self.finished):
            self.journal.notice(notice)
        return files, record.model_copy(update={"warnings": self.journal.warnings})

    def _complete(self, record: RunRecord, files: list[WrittenFile]) -> RunRecord:
        """Write `run.json` last: only then the run is complete; the state, which has its hash, is written before."""
        totals = {
            "status": "complete",
            "timings": {stage: round(seconds, 3) for stage, seconds in self.journal.seconds.items()},
            "peak_memory_bytes": peak_bytes(self.plan.predictor.device),
            "warnings": list(self.journal.warnings),
        }
        record = record.model_copy(update=totals)
        encoded = encode_model(record)
        files.append(WrittenFile.of(self.layout.run, encoded))
        self._update(stages=self._stage_states(), other_files=FileRecord.of_all(files, self.layout.folder))
        write_bytes_atomic(self.layout.run, encoded)
        return record
