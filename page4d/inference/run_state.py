"""The state folder of an output: records for resuming a run, and the list of its files."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, JsonValue
from safetensors import SafetensorError
from safetensors.torch import load, save

from page4d.conventions import Scale
from page4d.errors import InputError, OutputError, UsageError
from page4d.export.cameras import CaptureCameras
from page4d.export.diagnostics import ChunkRecord, DistanceRecord, RigRecord
from page4d.export.layout import OutputLayout
from page4d.export.run_record import RunRecord
from page4d.geometry.camera import Cameras
from page4d.geometry.similarity import Sim3
from page4d.inference.chunk_plan import Chunk
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.json_model import FileModel, Model, format_json, read_model
from page4d.models.conditioning import Memory

CONTRACT_NAMES = (
    "run.json",
    "cameras.json",
    "cameras",
    "points",
    "mesh",
    "depth",
    "confidence",
    "dynamic",
    "preview",
    "state",
)
"""Names of files and folders in the output contract."""

PREVIEW_NAMES = ("contact_sheet.png", "cloud.png", "orbit.mp4")

Matrix = list[list[float]]


class FileRecord(FileModel):
    """A complete file below the output folder."""

    name: str
    num_bytes: Annotated[int, Field(ge=0)]
    sha256: str


class ChunkState(FileModel):
    """A chunk whose instants `first` to before `stop` are all written: its files, cameras and diagnostics."""

    record: ChunkRecord
    first: int
    stop: int
    files: list[FileRecord]
    times: list[float]
    world_to_camera: list[list[Matrix]]
    intrinsics: list[list[Matrix]]
    clipped_depths: int
    num_points: int


@dataclass(frozen=True, kw_only=True)
class FinishedChunk:
    """Data in memory of a chunk whose instants, from `first` on, are all written."""

    record: ChunkRecord
    first: int
    cameras: CaptureCameras
    clipped_depths: int
    num_points: int

    @property
    def stop(self) -> int:
        """The instant after the last written one."""
        return self.first + len(self.cameras.times)


class RigState(FileModel):
    """The decision on camera motion: the static cameras, at pixels of a network image (height, width), or none."""

    record: RigRecord
    image_size: tuple[int, int]
    world_to_camera: list[Matrix] = Field(default_factory=list)
    intrinsics: list[Matrix] = Field(default_factory=list)

    @staticmethod
    def of(record: RigRecord, cameras: Cameras | None, image_size: tuple[int, int]) -> "RigState":
        """Record the static cameras [V], or none."""
        if cameras is None:
            return RigState(record=record, image_size=image_size)
        poses, intrinsics = cameras.world_to_camera.tolist(), cameras.intrinsics.tolist()
        return RigState(record=record, image_size=image_size, world_to_camera=poses, intrinsics=intrinsics)

    def cameras(self) -> Cameras | None:
        """Return the static cameras [V], or None if they move."""
        if not self.world_to_camera:
            return None
        return Cameras(
            world_to_camera=torch.tensor(self.world_to_camera, dtype=torch.float64),
            intrinsics=torch.tensor(self.intrinsics, dtype=torch.float64),
            image_size=self.image_size,
        )


class RunState(FileModel):
    """The state of a run: the fingerprint required for resuming, the decisions of the first chunk, and totals."""

    fingerprint: dict[str, JsonValue]
    plan: list[tuple[int, int, int]]
    depth_scale: float | None = None
    mesh_voxel_size: float | None = None
    scale: Scale | None = None
    rig: RigState | None = None
    scale_from: DistanceRecord | None = None
    other_files: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of the plan."""
        return tuple(Chunk(*chunk) for chunk in self.plan)


class StateFolder:
    """The `state/` folder of an output."""

    def __init__(self, layout: OutputLayout) -> None:
        self._layout = layout

    def write_run(self, state: RunState) -> None:
        """Record the run atomically."""
        _write(self._layout.state("run.json"), state)

    def read_run(self) -> RunState | None:
        """Return the recorded run, or None if there is none."""
        path = self._layout.state("run.json")
        return _read(path, RunState) if path.is_file() else None

    def write_chunk(self, index: int, chunk: FinishedChunk, files: Sequence[WrittenFile]) -> None:
        """Record a finished chunk, after all its files."""
        folder = self._layout.folder
        state = ChunkState(
            record=chunk.record,
            first=chunk.first,
            stop=chunk.stop,
            files=[
                FileRecord(name=str(file.path.relative_to(folder)), num_bytes=file.num_bytes, sha256=file.sha256)
                for file in files
            ],
            times=chunk.cameras.times.tolist(),
            world_to_camera=chunk.cameras.world_to_camera.tolist(),
            intrinsics=chunk.cameras.intrinsics.tolist(),
            clipped_depths=chunk.clipped_depths,
            num_points=chunk.num_points,
        )
        _write(self._layout.state(_chunk_name(index)), state)

    def write_memory(self, index: int, memory: Memory) -> WrittenFile:
        """Write the memory that the network passes on after a chunk."""
        tensors = {name: tokens.contiguous() for name, tokens in memory.items()}
        return write_bytes_atomic(self._layout.state(_memory_name(index)), save(tensors))

    def read_memory(self, index: int) -> Memory | None:
        """Return the memory after a chunk, or None if there is none.

        Raises:
            UsageError: if the file is damaged.
        """
        path = self._layout.state(_memory_name(index))
        try:
            return load(path.read_bytes()) if path.is_file() else None
        except SafetensorError as error:
            raise UsageError(f"'{path}' is damaged: {error}", "use another folder, or delete this one") from error

    def finished_chunks(
        self, run: RunState, image_sizes: tuple[tuple[int, int], ...], scale: Scale
    ) -> list[FinishedChunk]:
        """Return the first chunks of the plan that are recorded and whose files all exist.

        `image_sizes` are the original (height, width) of the views.
        """
        finished: list[FinishedChunk] = []
        for index, (start, stop, overlap) in enumerate(run.plan):
            path = self._layout.state(_chunk_name(index))
            if not path.is_file():
                break
            chunk = _read(path, ChunkState)
            planned = (chunk.record.start, chunk.record.stop, chunk.record.overlap) == (start, stop, overlap)
            follows = chunk.first == (finished[-1].stop if finished else 0)
            if not (planned and follows and all(self._is_whole(file) for file in chunk.files)):
                break
            cameras = CaptureCameras(
                times=torch.tensor(chunk.times, dtype=torch.float64),
                view_names=self._layout.view_names,
                image_sizes=image_sizes,
                world_to_camera=torch.tensor(chunk.world_to_camera, dtype=torch.float64),
                intrinsics=torch.tensor(chunk.intrinsics, dtype=torch.float64),
                scale=scale,
            )
            finished.append(
                FinishedChunk(
                    record=chunk.record,
                    first=chunk.first,
                    cameras=cameras,
                    clipped_depths=chunk.clipped_depths,
                    num_points=chunk.num_points,
                )
            )
        return finished

    def delete_chunks_from(self, index: int) -> None:
        """Delete the records of chunks of an abandoned plan."""
        for path in self._chunk_records():
            if path.name >= _chunk_name(index):
                path.unlink()

    def is_complete(self) -> bool:
        """Return whether the run in the folder is recorded as complete and every file it lists exists."""
        run = self.read_run()
        if run is None or not self._layout.run.is_file():
            return False
        complete = _read(self._layout.run, RunRecord).status == "complete"
        return complete and all((self._layout.folder / name).is_file() for name in run.other_files)

    def _chunk_records(self) -> list[Path]:
        return sorted(self._layout.state("run.json").parent.glob("chunk_*.json"))

    def _is_whole(self, file: FileRecord) -> bool:
        path = self._layout.folder / file.name
        return path.is_file() and path.stat().st_size == file.num_bytes

    def listed_files(self) -> list[str]:
        """Name every file that the recorded run lists, `run.json` first: without it a folder is no result."""
        names = ["run.json"]
        run = self.read_run()
        if run is not None:
            names += run.other_files + self._planned_files()
        for path in self._chunk_records():
            names += [file.name for file in _read(path, ChunkState).files]
            names.append(f"state/{path.name}")
        return list(dict.fromkeys([*names, "state/run.json"]))

    def listed_bytes(self) -> int:
        """Return the size of the listed files."""
        paths = [self._layout.folder / name for name in self.listed_files()]
        return sum(path.lstat().st_size for path in paths if path.is_file())

    def remove_listed_files(self) -> None:
        """Delete the files that the recorded run lists, and nothing else, and the folders that this empties."""
        names = self.listed_files()
        root = self._layout.folder.resolve()
        for name in names:
            path = self._layout.folder / name
            if path.parent.resolve().is_relative_to(root) and (path.is_file() or path.is_symlink()):
                path.unlink()
        for folder in sorted({(self._layout.folder / name).parent for name in names}, reverse=True):
            for own in (folder, folder.parent):
                if own not in (self._layout.folder, self._layout.folder.parent) and own.is_dir():
                    _remove_if_empty(own)

    def _planned_files(self) -> list[str]:
        """Name the files of all instants of the run in the folder: the last chunk may be half written."""
        root = self._layout.folder
        if not self._layout.run.is_file():
            return []
        earlier = _read(self._layout.run, RunRecord)
        layout = OutputLayout(
            root, tuple(view.name for view in earlier.views), tuple(view.safe_name for view in earlier.views)
        )
        maps = (layout.depth, layout.confidence, layout.dynamic)
        paths = [layout.cameras, *(layout.preview(name) for name in PREVIEW_NAMES)]
        paths += [path(view) for path in (layout.tum, layout.open3d_trajectory) for view in layout.view_names]
        paths += [path(index) for path in (layout.points, layout.mesh) for index in range(len(earlier.times))]
        paths += [
            path(index, view) for path in maps for view in layout.view_names for index in range(len(earlier.times))
        ]
        return [str(path.relative_to(root)) for path in paths]


def is_occupied(folder: Path) -> bool:
    """Return whether a folder holds anything under the names of the output contract."""
    return folder.is_dir() and any(_exists(folder / name) for name in CONTRACT_NAMES)


def _exists(path: Path) -> bool:
    """Return whether there is a file, or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def transform_of(record: ChunkRecord) -> Sim3:
    """Return the transform that brought a recorded chunk into the world."""
    if record.transform is None:
        return Sim3.identity()
    return Sim3(
        scale=torch.tensor(record.transform.scale, dtype=torch.float64),
        rotation=torch.tensor(record.transform.rotation, dtype=torch.float64),
        translation=torch.tensor(record.transform.translation, dtype=torch.float64),
    )


def check_disk(folder: Path, needed_bytes: int, freed_bytes: int = 0) -> None:
    """Refuse to start a run that cannot fit on the disk, counting the space that is about to be freed.

    Raises:
        OutputError: if the disk has less free space than the estimate.
    """
    free = shutil.disk_usage(folder).free + freed_bytes
    if needed_bytes > free:
        raise OutputError(
            f"need about {needed_bytes / 1e9:.1f} GB in '{folder}', {free / 1e9:.1f} GB free",
            "free space, use --voxel or --max-points, or another folder",
        )


def _chunk_name(index: int) -> str:
    return f"chunk_{index:05d}.json"


def _memory_name(index: int) -> str:
    return f"memory_{index:05d}.safetensors"


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return read_model(path, model)
    except InputError as error:
        raise UsageError(error.message, "use another folder, or delete this one") from error


def _write(path: Path, model: FileModel) -> None:
    write_bytes_atomic(path, (format_json(model.model_dump(mode="json")) + "\n").encode())


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
