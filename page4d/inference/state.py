"""What a run leaves behind so that it can be continued, and so that a finished one is never overwritten unasked."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, JsonValue

import page4d
from page4d.conventions import Scale
from page4d.errors import InputError, OutputError, UsageError
from page4d.export.atomic import write_bytes_atomic
from page4d.export.cameras import CaptureCameras
from page4d.export.instant import InstantFiles
from page4d.export.json_file import FileModel, Model, format_json, read_model, readable
from page4d.export.layout import OutputLayout
from page4d.export.run_record import ChunkRecord, NetworkRecord, RunRecord
from page4d.geometry.similarity import Sim3
from page4d.inference.chunks import Chunk
from page4d.scene.records import Scene

_EDGE_BYTES = 1 << 20
_FILE_SETTINGS = ("sync", "calibration", "masks", "depth")
_OWN_NAMES = ("run.json", "cameras.json", "cameras", "points", "depth", "confidence", "dynamic", "preview", "state")

_OPTION_NAMES = {
    "long_side": "size",
    "max_megapixels": "max-pixels",
    "calibration_resize": "calib-resize",
    "source": "points-from",
    "edge_angle_deg": "edge-angle",
    "voxel_size": "voxel",
}
"""Settings that the command line calls otherwise; in the others a dash stands for the underscore."""

Matrix = list[list[float]]


class FileRecord(FileModel):
    """A finished file below the output folder."""

    name: str
    num_bytes: Annotated[int, Field(ge=0)]
    sha256: str


class ChunkState(FileModel):
    """A chunk whose instants are all written: its files, its cameras and its place in the world."""

    record: ChunkRecord
    first: int
    stop: int
    files: list[FileRecord]
    times: list[float]
    world_to_camera: list[list[Matrix]]
    intrinsics: list[list[Matrix]]
    clipped_depths: int
    num_points: int


class RunState(FileModel):
    """What must stay the same for a run to be continued, and what was decided at its start."""

    fingerprint: dict[str, JsonValue]
    plan: list[tuple[int, int, int]]
    depth_scale: float | None = None
    scale: Scale | None = None
    other_files: list[str] = Field(default_factory=list)


class StateFolder:
    """The `state/` folder of an output."""

    def __init__(self, layout: OutputLayout) -> None:
        self._layout = layout

    def write_run(self, state: RunState) -> None:
        """Record the run, whole or not at all."""
        _write(self._layout.state("run.json"), state)

    def read_run(self) -> RunState | None:
        """Return what an earlier run recorded, or None if there was none."""
        path = self._layout.state("run.json")
        return _read(path, RunState) if path.is_file() else None

    def write_chunk(self, index: int, state: ChunkState) -> None:
        """Record a finished chunk; this is the last thing written for it."""
        _write(self._layout.state(_chunk_name(index)), state)

    def finished_chunks(self, *, check_files: bool = True) -> list[ChunkState]:
        """Return the chunks from the start of the capture on that are recorded and whose files are all there."""
        chunks: list[ChunkState] = []
        while True:
            path = self._layout.state(_chunk_name(len(chunks)))
            if not path.is_file():
                return chunks
            chunk = _read(path, ChunkState)
            if check_files and not all(self._is_whole(file) for file in chunk.files):
                return chunks
            chunks.append(chunk)

    def _is_whole(self, file: FileRecord) -> bool:
        path = self._layout.folder / file.name
        return path.is_file() and path.stat().st_size == file.num_bytes

    def remove_listed_files(self) -> None:
        """Delete what the records of an earlier run list, and nothing else; empty folders go too."""
        run = self.read_run()
        names = [file.name for chunk in self.finished_chunks(check_files=False) for file in chunk.files]
        if run is not None:
            names += run.other_files + self._planned_files()
        state = self._layout.state("run.json").parent
        names += [f"state/{path.name}" for path in state.glob("chunk_*.json")] + ["state/run.json"]
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
        """Name the files of all instants that the run in the folder set out to write: the last chunk may be torn."""
        root = self._layout.folder
        if not self._layout.run.is_file():
            return []
        earlier = _read(self._layout.run, RunRecord)
        layout = OutputLayout(
            root, tuple(view.name for view in earlier.views), tuple(view.safe_name for view in earlier.views)
        )
        maps = (layout.depth, layout.confidence, layout.dynamic)
        paths = [layout.points(index) for index in range(len(earlier.times))]
        paths += [
            path(index, view) for path in maps for view in layout.view_names for index in range(len(earlier.times))
        ]
        return [str(path.relative_to(root)) for path in paths]


def is_occupied(folder: Path) -> bool:
    """Tell whether a folder holds something under the names of the output contract."""
    return folder.is_dir() and any(_exists(folder / name) for name in _OWN_NAMES)


def _exists(path: Path) -> bool:
    """Tell whether there is a file, or a folder with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def check_fingerprint(folder: Path, earlier: RunState | None, fingerprint: dict[str, JsonValue]) -> RunState:
    """Return the earlier run if its inputs and settings were the same.

    Raises:
        UsageError: naming what differs.
    """
    if earlier is None:
        raise UsageError(
            f"'{folder}' holds files but no record of a page4d run", "use another folder, or --overwrite"
        )
    differs = _differences(earlier.fingerprint, fingerprint)
    if differs:
        raise UsageError(
            f"'{folder}' holds results of another run (differs: {', '.join(differs)})",
            "use --overwrite to replace them, or another folder",
        )
    return earlier


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name what differs, by the names of the options where there is one."""
    names = []
    for key in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(key), now.get(key)
        if before == after:
            continue
        if key == "points" and isinstance(before, dict) and isinstance(after, dict):
            names += _differences(before, after)
        else:
            names.append(_OPTION_NAMES.get(key, key.replace("_", "-")))
    return names


def fingerprint_of(
    scene: Scene, settings: dict[str, JsonValue], network: NetworkRecord, precision: str
) -> dict[str, JsonValue]:
    """Describe everything that the result's bytes depend on.

    Of settings that name files the content counts, not the path: a run may be continued from another folder.
    """
    return {
        **{name: value for name, value in settings.items() if name not in _FILE_SETTINGS},
        "version": page4d.__version__,
        "network": network.name,
        "preset": network.preset,
        "weights": network.sha256,
        "precision": precision,
        "inputs": {
            readable(view.name): _source_fingerprint(view.source.label, _files_of(view.source))
            for view in scene.views
        },
        "companions": {
            f"{readable(view.name)} {kind}": _source_fingerprint(paired.frames.label, _files_of(paired.frames))
            for view in scene.views
            for kind, paired in (("mask", view.mask), ("depth", view.depth))
            if paired is not None
        },
        "instants": hashlib.sha256(
            json.dumps([scene.times.tolist(), [view.indices for view in scene.views]]).encode()
        ).hexdigest(),
        "cameras": _cameras_fingerprint(scene),
    }


def _files_of(source: Any) -> list[Path]:
    files = getattr(source, "files", None)
    path = getattr(source, "path", None)
    return list(files) if files else [path] if path else []


def _source_fingerprint(label: str, files: list[Path]) -> str:
    digest = hashlib.sha256(os.fsencode(label))
    for path in files:
        size = path.stat().st_size
        digest.update(os.fsencode(f"{path.name} {size} {path.stat().st_mtime_ns}"))
        if len(files) == 1:
            with path.open("rb") as file:
                digest.update(file.read(_EDGE_BYTES))
                file.seek(max(size - _EDGE_BYTES, 0))
                digest.update(file.read(_EDGE_BYTES))
    return digest.hexdigest()


def _cameras_fingerprint(scene: Scene) -> str | None:
    if scene.calibration is None:
        return None
    parts = [
        f"{camera.world_to_camera.tolist()}{camera.intrinsics.tolist()}{camera.distortion}"
        for camera in (view.camera for view in scene.views)
        if camera is not None
    ]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def chunk_state(
    record: ChunkRecord, first: int, cameras: CaptureCameras, written: InstantFiles, folder: Path
) -> ChunkState:
    """Build the record of a chunk whose final instants begin at `first`."""
    return ChunkState(
        record=record,
        first=first,
        stop=first + len(cameras.times),
        files=[
            FileRecord(name=str(file.path.relative_to(folder)), num_bytes=file.num_bytes, sha256=file.sha256)
            for file in written.files
        ],
        times=cameras.times.tolist(),
        world_to_camera=cameras.world_to_camera.tolist(),
        intrinsics=cameras.intrinsics.tolist(),
        clipped_depths=written.clipped_depths,
        num_points=written.num_points,
    )


def cameras_of(
    chunks: list[ChunkState], view_names: tuple[str, ...], image_sizes: tuple[tuple[int, int], ...], scale: Scale
) -> CaptureCameras:
    """Join the cameras of all chunks into those of the capture; sizes are (height, width)."""

    def joined(name: str) -> torch.Tensor:
        return torch.cat([torch.tensor(getattr(chunk, name), dtype=torch.float64) for chunk in chunks])

    return CaptureCameras(
        times=joined("times"),
        view_names=view_names,
        image_sizes=image_sizes,
        world_to_camera=joined("world_to_camera"),
        intrinsics=joined("intrinsics"),
        scale=scale,
    )


def transform_of(record: ChunkRecord) -> Sim3:
    """Return the map that brought a recorded chunk into the world."""
    if record.transform is None:
        return Sim3.identity()
    return Sim3(
        scale=torch.tensor(record.transform.scale, dtype=torch.float64),
        rotation=torch.tensor(record.transform.rotation, dtype=torch.float64),
        translation=torch.tensor(record.transform.translation, dtype=torch.float64),
    )


def plan_of(state: RunState) -> tuple[Chunk, ...]:
    """Return the recorded plan."""
    return tuple(Chunk(*chunk) for chunk in state.plan)


def check_disk(folder: Path, needed_bytes: int) -> None:
    """Refuse to start what cannot fit.

    Raises:
        OutputError: if the disk has less free space than the estimate.
    """
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise OutputError(
            f"need about {needed_bytes / 1e9:.1f} GB in '{folder}', {free / 1e9:.1f} GB free",
            "free space, use --voxel or --max-points, or another folder",
        )


def _chunk_name(index: int) -> str:
    return f"chunk_{index:05d}.json"


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return read_model(path, model)
    except InputError as error:
        raise UsageError(error.message, "use another folder, or delete this one yourself") from error


def _write(path: Path, model: FileModel) -> None:
    write_bytes_atomic(path, (format_json(model.model_dump(mode="json")) + "\n").encode())


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
