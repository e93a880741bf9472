"""One run: scene and predictor in, a complete output folder out."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

import torch
from pydantic import JsonValue

from page4d.conventions import Scale
from page4d.errors import InterruptedRunError, MemoryBudgetError, OutputError, UsageError
from page4d.export.atomic import claim_output
from page4d.export.cameras import CaptureCameras, capture_cameras
from page4d.export.instant import InstantFiles, InstantOptions, write_capture_cameras, write_instant
from page4d.export.layout import OutputLayout
from page4d.export.maps import choose_depth_scale
from page4d.export.output import open_output
from page4d.export.run_record import (
    ChunkRecord,
    CountsRecord,
    NetworkRecord,
    RunRecord,
    SceneRecord,
    SeamRecord,
    TransformRecord,
    view_record,
    write_run,
)
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.geometry.similarity import Sim3
from page4d.inference.anchor import Poses, use_rig_cameras, world_of_rig
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.memory import is_out_of_memory, peak_bytes
from page4d.inference.picture import write_previews
from page4d.inference.predict import PRECISION_NAMES, Predictor
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
from page4d.inference.stitch import Stitched, stitch, world_of_first_camera
from page4d.predictions import Predictions
from page4d.scene.batches import BatchReader, open_batches, scene_cameras
from page4d.scene.records import Level, Notice, Scene

MAX_SHRINKS = 3
"""How often a chunk that does not fit in memory is halved."""

_BYTES_PER_PIXEL = 25
"""Upper estimate of what a network pixel takes on disk: a PLY point and its share of three PNG files."""


class ExistingOutput(StrEnum):
    """What to do with an output folder that already holds a result."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    RESUME = "resume"


class Observer(Protocol):
    """Hears what a run does."""

    def notice(self, notice: Notice) -> None:
        """Hear something that the user should know."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Hear that so many of the instants are written."""
        ...


class SilentObserver:
    """Ignores everything; `run.json` has the warnings."""

    def notice(self, notice: Notice) -> None:
        """Ignore a notice."""

    def progress(self, done: int, total: int) -> None:
        """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run would do, known before any frame is decoded; `bytes_on_disk` is an upper estimate."""

    long_side: int
    transforms: tuple[PixelTransform, ...]
    chunks: tuple[Chunk, ...]
    bytes_on_disk: int


def plan_run(scene: Scene, settings: ReconstructSettings, predictor: Predictor) -> RunPlan:
    """Work out network sizes and chunks.

    Raises:
        UsageError: if the settings do not fit the scene.
    """
    sizes = [view.source.size for view in scene.views]
    native = max(max(size) for size in sizes)
    long_side = settings.long_side or predictor.default_long_side or native
    transforms = fit_views(sizes, long_side, predictor.multiple)
    pixels = sum(transform.content_size[0] * transform.content_size[1] for transform in transforms)
    return RunPlan(
        long_side=long_side,
        transforms=transforms,
        chunks=plan_chunks(scene.num_times, settings.chunk, settings.overlap),
        bytes_on_disk=scene.num_times * pixels * _BYTES_PER_PIXEL,
    )


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
    plan = plan_run(scene, settings, predictor)
    out = Path(out)
    check_target(out, existing)
    with claim_output(out):
        run = _Run(scene, predictor, network, out, settings, plan, command or {}, observer or SilentObserver())
        return run.execute(existing)


def check_target(out: Path, existing: ExistingOutput) -> None:
    """Refuse, before any work, an output that is a file or already holds a result.

    Raises:
        OutputError: if it is a file.
        UsageError: if it holds a result that is neither to be continued nor replaced.
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"cannot write to '{out}': it is a file", "give a folder")
    if is_occupied(out) and existing is ExistingOutput.REFUSE:
        raise UsageError(f"'{out}' already holds a result", "use --resume, --overwrite or another folder")


@dataclass
class _Tally:
    """What adds up over a run."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    warnings: list[str] = field(default_factory=list)
    scale_known: bool = True

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - begin


class _Run:
    """The state of one call of `reconstruct`."""

    def __init__(
        self,
        scene: Scene,
        predictor: Predictor,
        network: NetworkRecord,
        out: Path,
        settings: ReconstructSettings,
        plan: RunPlan,
        command: dict[str, JsonValue],
        observer: Observer,
    ) -> None:
        self.scene, self.predictor, self.network = scene, predictor, network
        self.settings, self.plan, self.command, self.observer = settings, plan, command, observer
        self.layout = OutputLayout(out, scene.view_names)
        self.states = StateFolder(self.layout)
        self.tally = _Tally()
        self.finished: list[ChunkState] = []
        self.device: torch.device = getattr(predictor, "device", torch.device("cpu"))

    def execute(self, existing: ExistingOutput) -> RunRecord:
        begin = time.perf_counter()
        self.state = self._begin(existing, fingerprint_of(self.scene, self.command, self.network.sha256))
        for notice in self.scene.notices:
            self._notice(notice)
        write_run(self.layout, self._record("incomplete"))
        self._write_instants()
        self._check_clipping()
        files = write_capture_cameras(self.layout, self._cameras())
        if self.settings.preview:
            # The pictures are made from the files, so they show what a reader of the contract would see.
            write_run(self.layout, self._record("complete"))
            with self.tally.timed("preview"):
                files += write_previews(open_output(self.layout.folder), self.scene)
        names = [str(file.path.relative_to(self.layout.folder)) for file in files]
        self.states.write_run(self.state.model_copy(update={"other_files": [*names, "run.json"]}))
        self.tally.seconds["total"] = time.perf_counter() - begin
        record = self._record("complete")
        write_run(self.layout, record)
        return record

    def _begin(self, existing: ExistingOutput, fingerprint: dict[str, JsonValue]) -> RunState:
        folder = self.layout.folder
        if existing is ExistingOutput.RESUME and is_occupied(folder):
            earlier = self.states.read_run()
            check_fingerprint(folder, earlier, fingerprint)
            assert earlier is not None
            self.finished = self.states.finished_chunks()
            return earlier
        if existing is ExistingOutput.OVERWRITE:
            self.states.remove_listed_files()
        check_disk(folder, self.plan.bytes_on_disk)
        plan = [(chunk.start, chunk.stop, chunk.overlap) for chunk in self.plan.chunks]
        state = RunState(fingerprint=fingerprint, plan=plan, other_files=["run.json"])
        self.states.write_run(state)
        return state

    def _write_instants(self) -> None:
        """Predict, stitch and write every chunk that is not finished yet."""
        total = self.scene.num_times
        done = self.finished[-1].stop if self.finished else 0
        self.observer.progress(done, total)
        if done == total:
            return
        try:
            with open_batches(self.scene, self.plan.long_side, self.predictor.multiple) as reader:
                for stitched in self._stitched(reader):
                    self._write_chunk(stitched)
        except InterruptedRunError as error:
            done = self.finished[-1].stop if self.finished else 0
            raise InterruptedRunError(
                f"interrupted after {done} of {total} frames", "continue with --resume", error.exit_code - 128
            ) from error

    def _stitched(self, reader: BatchReader) -> Iterator[Stitched]:
        held = None
        if self.finished:
            held = self._held_back(reader)
        return stitch(
            self._predicted(reader, len(self.finished)),
            num_times=self.scene.num_times,
            overlap=self.settings.overlap,
            place_first=self._place_first,
            fixed_world=self._fixed_world,
            held=held,
        )

    def _held_back(self, reader: BatchReader) -> Predictions | None:
        """Predict the last finished chunk again for the instants that it held back: they are not on disk."""
        last = self.finished[-1]
        chunk = Chunk(last.record.start, last.record.stop, last.record.overlap)
        predictions = self._predict(reader, chunk)
        if not self._fixed_world:
            transform = transform_of(last.record)
            predictions = predictions.transformed(transform, self.state.scale)
        return predictions.at_times(last.stop - chunk.start, chunk.length)

    @property
    def _fixed_world(self) -> bool:
        return self._has_rig and (self.settings.poses is Poses.INPUT or self.predictor.uses_rig_cameras)

    @property
    def _has_rig(self) -> bool:
        return all(view.camera is not None for view in self.scene.views)

    def _place_first(self, predictions: Predictions) -> Sim3:
        if not self._has_rig:
            return world_of_first_camera(predictions)
        rig = scene_cameras(self.scene, predictions.pixel_transforms, 0, predictions.num_times)
        assert rig is not None
        transform, self.tally.scale_known = world_of_rig(predictions, rig)
        return transform

    def _predicted(self, reader: BatchReader, first: int) -> Iterator[tuple[Chunk, Predictions]]:
        """Predict the chunks of the plan; one that does not fit in memory is halved with all that follow."""
        index, shrinks = first, 0
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
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _shrink(self, index: int, chunk: Chunk, shrinks: int) -> None:
        length = chunk.length // 2
        if shrinks > MAX_SHRINKS or length < max(1, 2 * self.settings.overlap):
            side = max(self.plan.transforms[0].canvas_size)
            frames = "1 frame" if chunk.length == 1 else f"{chunk.length} frames"
            raise MemoryBudgetError(
                f"out of memory even with {frames} per chunk at {side} px",
                f"try --size {max(side * 3 // 4 // 14 * 14, 14)}, a smaller --overlap, or fewer --views",
            )
        rest = plan_chunks(self.scene.num_times, length, self.settings.overlap, start=chunk.start)
        plan = self.state.plan[:index] + [(part.start, part.stop, part.overlap) for part in rest]
        self.state = self.state.model_copy(update={"plan": plan})
        self.states.write_run(self.state)
        self._notice(Notice(f"out of memory with {chunk.length} frames per chunk: continuing with {length}"))

    def _predict(self, reader: BatchReader, chunk: Chunk) -> Predictions:
        with self.tally.timed("decode"):
            batch = reader.read(chunk.start, chunk.stop)
        with self.tally.timed("predict"):
            predictions = self.predictor.predict(batch)
            if self._fixed_world and not self.predictor.uses_rig_cameras:
                assert batch.cameras is not None
                anchored = use_rig_cameras(predictions, batch.cameras, self.scene.scale)
                self.tally.scale_known = anchored.scale_known
                predictions = anchored.predictions
        return predictions

    def _write_chunk(self, stitched: Stitched) -> None:
        predictions, chunk = stitched.predictions, stitched.chunk
        if not self._fixed_world and self._has_rig:
            scale = self.scene.scale if self.tally.scale_known else Scale.ARBITRARY
            predictions = replace(predictions, scale=scale)
        if self.state.depth_scale is None:
            depth_scale = choose_depth_scale(predictions.depth, predictions.valid, predictions.scale)
            self.state = self.state.model_copy(update={"depth_scale": depth_scale, "scale": predictions.scale})
            self.states.write_run(self.state)
            self._notice_scale(predictions.scale)
        written, begin = InstantFiles(), time.perf_counter()
        options = InstantOptions(depth_scale=self.state.depth_scale or 1.0, points=self.settings.points)
        with self.tally.timed("write"):
            for place in range(predictions.num_times):
                index = chunk.start + place
                written += write_instant(self.layout, index, predictions.at_times(place, place + 1), options)
                self.observer.progress(index + 1, self.scene.num_times)
        state = chunk_state(
            self._chunk_record(stitched, time.perf_counter() - begin),
            chunk.start,
            capture_cameras([predictions]),
            list(written.files),
            self.layout.folder,
            (written.clipped_depths, written.num_points),
        )
        self.states.write_chunk(len(self.finished), state)
        self.finished.append(state)

    def _chunk_record(self, stitched: Stitched, seconds: float) -> ChunkRecord:
        chunk, transform, seam = stitched.chunk, stitched.transform, stitched.seam
        return ChunkRecord(
            start=chunk.start,
            stop=chunk.stop,
            overlap=chunk.overlap,
            seconds=round(seconds, 3),
            transform=TransformRecord(
                scale=float(transform.scale),
                rotation=transform.rotation.tolist(),
                translation=tuple(transform.translation.tolist()),
            ),
            seam=None
            if seam is None
            else SeamRecord(residual=seam.residual, rotation_deg=seam.rotation_deg, scale_ratio=seam.scale_ratio),
        )

    def _notice_scale(self, scale: Scale) -> None:
        if self._has_rig and not self.tally.scale_known:
            self._notice(Notice("one camera in one place gives no baseline: the scale of the result is arbitrary"))
        elif scale is Scale.ARBITRARY:
            self._notice(Notice("lengths are in an arbitrary unit (no metric calibration)", Level.INFO))

    def _check_clipping(self) -> None:
        clipped = sum(chunk.clipped_depths for chunk in self.finished)
        if clipped:
            farthest = 65535 / (self.state.depth_scale or 1.0)
            self._notice(Notice(f"{clipped} depths beyond {farthest:.4g} were clipped in the depth PNGs"))

    def _notice(self, notice: Notice) -> None:
        if notice.level is Level.WARNING:
            self.tally.warnings.append(notice.text)
        self.observer.notice(notice)

    def _cameras(self) -> CaptureCameras:
        return cameras_of(
            self.finished,
            self.scene.view_names,
            tuple(transform.original_size for transform in self.plan.transforms),
            self.state.scale or Scale.ARBITRARY,
        )

    def _record(self, status: Literal["complete", "incomplete"]) -> RunRecord:
        scale = self.state.scale or Scale.ARBITRARY
        return RunRecord(
            status=status,
            settings=self.command,
            scale=scale,
            unit=scale.unit,
            depth_scale=self.state.depth_scale or 1.0,
            scene=SceneRecord(
                name=self.scene.name,
                synchronisation=self.scene.synchronisation,
                calibration=self.scene.calibration,
            ),
            views=[
                view_record(self.layout, view.name, view.source.label, transform, view.clock)
                for view, transform in zip(self.scene.views, self.plan.transforms, strict=True)
            ],
            times=self.scene.times.tolist(),
            network=self.network,
            chunks=[chunk.record for chunk in self.finished],
            counts=CountsRecord(
                clipped_depths=sum(chunk.clipped_depths for chunk in self.finished),
                points=sum(chunk.num_points for chunk in self.finished),
            ),
            timings={stage: round(seconds, 3) for stage, seconds in self.tally.seconds.items()},
            peak_memory_bytes=peak_bytes(self.device),
            device=str(self.device),
            precision=PRECISION_NAMES[getattr(self.predictor, "precision", torch.float32)],
            seed=self.settings.points.seed,
            warnings=self.tally.warnings,
        )
