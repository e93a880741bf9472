"""The state folder of an output: records for resuming a run, and the list of its files."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator, Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError, OutputError, UsageError
from page4d.inference.state_records import ChunkState, CleaningState, FileRecord, FinishedChunk, OwnFile, RunState
from page4d.io.atomic import WrittenFile, file_sha256, write_bytes_atomic
from page4d.io.json_records import FileModel, Model, read_model, read_sealed, write_sealed
from page4d.networks.conditioning import Memory
from page4d.output.layout import OutputLayout, is_own_file
from page4d.output.record import RunRecord, read_run
from page4d.stereo.background import Background

CONTRACT_NAMES = (
    "run.json",
    "cameras.json",
    "cameras",
    "points",
    "mesh",
    "depth",
    "confidence",
    "dynamic",
    "motion",
    "motion_sigma",
    "tracks",
    "preview",
    "state",
)
"""Names of files and folders in the output contract."""

_BACKGROUND_NAME = "background.safetensors"

PREVIEW_NAMES = ("contact_sheet.png", "cloud.png", "orbit.mp4")

_Listed = Annotated[OwnFile, BeforeValidator(lambda file: file.get("name") if isinstance(file, dict) else file)]


class _Listing(FileModel, extra="ignore"):
    """The files that a record lists, also one of an older version; all else is ignored."""

    files: list[_Listed] = Field(default_factory=list)
    other_files: list[_Listed] = Field(default_factory=list)


class StateFolder:
    """The `state/` folder of an output."""

    def __init__(self, layout: OutputLayout) -> None:
        self._layout = layout

    def write_run(self, state: RunState) -> None:
        """Record the run atomically."""
        write_sealed(self._layout.state("run.json"), state)

    def read_run(self) -> RunState | None:
        """Return the recorded run, or None if there is none.

        Raises:
            UsageError: if the record was changed, or is of an older version.
        """
        path = self._layout.state("run.json")
        if not path.is_file():
            return None
        try:
            return read_sealed(path, RunState)
        except InputError as error:
            hint = "use another folder, or --overwrite to replace the result"
            raise UsageError(error.message, hint) from error

    def write_chunk(self, index: int, chunk: FinishedChunk, files: Sequence[FileRecord]) -> None:
        """Record a finished chunk, after all its files."""
        state = ChunkState(
            record=chunk.record,
            first=chunk.first,
            stop=chunk.stop,
            files=list(files),
            times=chunk.cameras.times.tolist(),
            world_to_camera=chunk.cameras.world_to_camera.tolist(),
            intrinsics=chunk.cameras.intrinsics.tolist(),
            clipped_depths=chunk.clipped_depths,
            num_points=chunk.num_points,
            clipped_velocities=chunk.clipped_velocities,
            motion=list(chunk.motion),
        )
        write_sealed(self._layout.state(_chunk_name(index)), state)

    def write_memory(self, index: int, memory: Memory) -> WrittenFile:
        """Write the memory that the network passes on after a chunk."""
        tensors = {name: tokens.contiguous() for name, tokens in memory.items()}
        return write_bytes_atomic(self._layout.state(_memory_name(index)), save(tensors))

    def read_memory(self, index: int, chunk: FinishedChunk) -> Memory | None:
        """Return the memory after a finished chunk, or None if it has none.

        Raises:
            UsageError: if the file is damaged.
        """
        path = self._layout.state(_memory_name(index))
        if f"state/{path.name}" not in chunk.files:
            return None
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise UsageError(f"'{path}' is damaged: {error}", "repeat with --resume, or use --overwrite") from error

    def write_tracks(self, index: int, tensors: Mapping[str, Tensor]) -> WrittenFile:
        """Write the tracks of a chunk, from which a resumed run continues them."""
        return write_bytes_atomic(self._layout.state(_tracks_name(index)), save(dict(tensors)))

    def read_tracks(self, index: int) -> dict[str, Tensor]:
        """Return the tracks of a finished chunk.

        Raises:
            UsageError: if the file is missing or damaged.
        """
        path = self._layout.state(_tracks_name(index))
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise UsageError(f"'{path}' is damaged: {error}", "repeat with --resume, or use --overwrite") from error

    def write_background(self, background: Background) -> WrittenFile:
        """Write the background of the static cameras, in the unit of the predictor."""
        return write_bytes_atomic(self._layout.state(_BACKGROUND_NAME), save(background.tensors()))

    def read_background(self, state: CleaningState) -> Background | None:
        """Return the recorded background; None if there is none.

        Raises:
            UsageError: if the file is missing or was changed.
        """
        if not state.background:
            return None
        path = self._layout.state(_BACKGROUND_NAME)
        if not self._is_unchanged(state.background[0]):
            raise UsageError(f"'{path}' is missing or was changed", "use --overwrite to start again")
        return Background(**load(path.read_bytes()))

    def finished_chunks(
        self, run: RunState, times: Sequence[float], image_sizes: tuple[tuple[int, int], ...]
    ) -> list[FinishedChunk]:
        """Return the first chunks of the plan that are recorded and whose files are unchanged.

        `times` are those of the whole scene, `image_sizes` the original (height, width) of the views.
        """
        finished: list[FinishedChunk] = []
        for index, planned in enumerate(run.plan):
            chunk = self._read_chunk(index)
            first = finished[-1].stop if finished else 0
            if (
                chunk is None
                or (chunk.record.start, chunk.record.stop, chunk.record.overlap) != planned
                or chunk.first != first
                or chunk.times != list(times[first : chunk.stop])
                or len(chunk.world_to_camera[0]) != len(image_sizes)
                or not all(self._is_unchanged(file) for file in chunk.files)
            ):
                break
            cameras = chunk.cameras(self._layout.view_names, image_sizes, run.scale or Scale.ARBITRARY)
            finished.append(
                FinishedChunk(
                    record=chunk.record,
                    first=first,
                    cameras=cameras,
                    files={file.name: file.num_bytes for file in chunk.files},
                    clipped_depths=chunk.clipped_depths,
                    num_points=chunk.num_points,
                    clipped_velocities=chunk.clipped_velocities,
                    motion=chunk.motion,
                )
            )
        return finished

    def _read_chunk(self, index: int) -> ChunkState | None:
        """Return the record of a chunk; None if it is missing or was changed, so that the chunk is repeated."""
        path = self._layout.state(_chunk_name(index))
        try:
            return read_sealed(path, ChunkState) if path.is_file() else None
        except InputError:
            return None

    def delete_chunks_from(self, index: int) -> None:
        """Delete the records of chunks of an abandoned plan."""
        for path in self._chunk_records():
            if path.name >= _chunk_name(index):
                path.unlink()

    def is_complete(self, run: RunState) -> bool:
        """Return whether the recorded run has ended and its files, other than those of chunks, are unchanged."""
        return bool(run.other_files) and all(self._is_unchanged(file) for file in run.other_files)

    def record_files(self, files: Sequence[WrittenFile]) -> list[FileRecord]:
        """Record files that are complete on disk."""
        return [FileRecord.of(file, self._layout.folder) for file in files]

    def check_present(self, chunks: Sequence[FinishedChunk]) -> None:
        """Refuse to end a run whose files were removed meanwhile.

        Raises:
            OutputError: naming the first such file.
        """
        for chunk in chunks:
            for name, num_bytes in chunk.files.items():
                path = self._layout.folder / name
                if not path.is_file() or path.stat().st_size != num_bytes:
                    raise OutputError(f"'{path}' was removed or changed during the run", "repeat with --resume")

    def _chunk_records(self) -> list[Path]:
        found = self._layout.state("run.json").parent.glob("chunk_*.json")
        return sorted(path for path in found if is_own_file(f"state/{path.name}") and path.is_file())

    def _is_unchanged(self, file: FileRecord) -> bool:
        path = self._layout.path(*PurePosixPath(file.name).parts)
        if path.is_symlink() or not path.is_file() or path.stat().st_size != file.num_bytes:
            return False
        return file_sha256(path) == file.sha256

    def listed_files(self) -> list[str]:
        """Name every file that the recorded run lists, `run.json` first: without it a folder is no result.

        Raises:
            UsageError: if a record is damaged, or names a file that page4d does not write.
        """
        names = ["run.json", *self._planned_files()]
        for path in [self._layout.state("run.json"), *self._chunk_records()]:
            listing = _read(path, _Listing)
            names += [*listing.files, *listing.other_files, f"state/{path.name}"]
        return list(dict.fromkeys(names))

    def listed_bytes(self) -> int:
        """Return the size of the listed files."""
        paths = [self._layout.folder / name for name in self.listed_files()]
        return sum(path.lstat().st_size for path in paths if path.is_file())

    def remove_listed_files(self) -> None:
        """Delete the files that the recorded run lists, and nothing else, and the folders that this empties.

        Raises:
            OutputError: if a link leads out of the folder; then nothing is deleted.
        """
        names = [PurePosixPath(name) for name in self.listed_files()]
        for path in [self._layout.path(*name.parts) for name in names]:
            if path.is_file() or path.is_symlink():
                path.unlink()
        parents = {parent for name in names for parent in name.parents if parent.name}
        for parent in sorted(parents, reverse=True):
            folder = self._layout.path(*parent.parts)
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()

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
        paths = [layout.cameras, layout.static_points, layout.static_mesh]
        paths += [layout.preview(name) for name in PREVIEW_NAMES]
        paths += [path(view) for path in (layout.tum, layout.open3d_trajectory) for view in layout.view_names]
        clouds = (layout.points, layout.moving_points, layout.mesh, layout.moving_mesh)
        paths += [path(index) for path in clouds for index in range(len(earlier.times))]
        paths += [
            path(index, view) for path in maps for view in layout.view_names for index in range(len(earlier.times))
        ]
        return [path.relative_to(root).as_posix() for path in paths]


def is_occupied(folder: Path) -> bool:
    """Return whether a folder holds anything under the names of the output contract.

    The records of a run that ended before it wrote its first file do not count, nor do empty folders.
    """
    held = {name for name in CONTRACT_NAMES if _holds_anything(folder / name)}
    return bool(held - {"run.json", "state"}) or (bool(held) and not _has_only_begun(folder))


def _holds_anything(path: Path) -> bool:
    """Return whether there is a file, or a folder with a file or link at any depth."""
    if not path.is_dir():
        return os.path.lexists(path)
    return any(entry.is_symlink() or _holds_anything(entry) for entry in path.iterdir())


def _has_only_begun(folder: Path) -> bool:
    """Return whether the state is that of a run without any file of a result."""
    layout, records = OutputLayout(folder, ()), folder / "state"
    if not records.is_dir() or [path.name for path in records.iterdir()] != ["run.json"]:
        return False
    try:
        state = StateFolder(layout).read_run()
        begun = not layout.run.exists() or read_run(layout).status == "incomplete"
    except (InputError, OutputError, UsageError):
        return False
    return begun and state is not None and not state.other_files


def check_disk(folder: Path, needed_bytes: int, freed_bytes: int = 0) -> None:
    """Refuse to start a run that cannot fit on the disk, counting the space that is about to be freed.

    Raises:
        OutputError: if the disk has less free space than the estimate.
    """
    free = shutil.disk_usage(folder).free + freed_bytes
    if needed_bytes > free:
        raise OutputError(
            f"need about {_amount(needed_bytes)} in '{folder}', {_amount(free)} free",
            "free space, use --voxel or --max-points, or another folder",
        )


def _amount(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


def _chunk_name(index: int) -> str:
    return f"chunk_{index:05d}.json"


def _tracks_name(index: int) -> str:
    return f"tracks_{index:05d}.safetensors"


def _memory_name(index: int) -> str:
    return f"memory_{index:05d}.safetensors"


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return read_model(path, model)
    except InputError as error:
        raise UsageError(error.message, "use another folder, or delete this one") from error
