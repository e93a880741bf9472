"""The state folder of an output: records for resuming a run, and the list of its files."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from page4d.errors import InputError, OutputError, UsageError, human_size
from page4d.io.atomic import WrittenFile, delete_files, file_sha256, write_bytes_atomic
from page4d.io.json_records import FileModel, Model, read_model, read_sealed, write_sealed
from page4d.output.layout import OUTPUT_FILES, OUTPUT_NAMES, OutputLayout, is_own_file
from page4d.output.record import RunRecord
from page4d.run.state_records import FileRecord, FinishedChunk, OwnFile, RunState

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
        write_sealed(self._layout.run_state, state)

    def read_run(self) -> RunState | None:
        """Return the recorded run, or None if there is none.

        Raises:
            UsageError: if the record was changed, or is of an older version.
        """
        path = self._layout.run_state
        if not path.is_file():
            return None
        try:
            return read_sealed(path, RunState)
        except InputError as error:
            hint = "use another folder, or ⟨existing=overwrite⟩ to replace the result"
            raise UsageError(error.marked_message, hint) from error

    def write_chunk(self, index: int, chunk: FinishedChunk, files: Sequence[FileRecord]) -> None:
        """Record a finished chunk, after all its files."""
        write_sealed(self._layout.chunk_state(index), chunk.model_copy(update={"files": list(files)}))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> WrittenFile:
        """Write tensors by name, from which a resumed run continues."""
        own = {key: value.contiguous() for key, value in tensors.items()}
        return write_bytes_atomic(self._tensors(name), save(own))

    def has_tensors(self, name: str) -> bool:
        """Return whether there are tensors of a name."""
        return self._tensors(name).is_file()

    def _tensors(self, name: str) -> Path:
        return self._layout.path(f"state/{name}.safetensors")

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Return tensors by name.

        Raises:
            UsageError: if the file is missing or damaged.
        """
        path = self._tensors(name)
        try:
            return load(path.read_bytes())
        except (SafetensorError, OSError) as error:
            raise UsageError(
                f"'{path}' is damaged: {error}", "repeat with ⟨existing=resume⟩, or use ⟨existing=overwrite⟩"
            ) from error

    def check_unchanged(self, files: Sequence[FileRecord]) -> None:
        """Refuse to continue from other files than the recorded ones.

        Raises:
            UsageError: naming the first that is missing or was changed.
        """
        for file in files:
            if not self._is_unchanged(file):
                path = self._layout.folder / file.name
                raise UsageError(f"'{path}' is missing or was changed", "use ⟨existing=overwrite⟩ to start again")

    def finished_chunks(self, run: RunState, times: Sequence[float]) -> list[FinishedChunk]:
        """Return the first chunks of the plan that are recorded and whose files are unchanged.

        `times` are those of the whole scene.
        """
        finished: list[FinishedChunk] = []
        for index, planned in enumerate(run.plan):
            chunk = self._read_chunk(index)
            first = finished[-1].stop if finished else 0
            if (
                chunk is None
                or (chunk.record.start, chunk.record.stop, chunk.record.overlap) != planned
                or chunk.first != first
                or chunk.times.tolist() != list(times[first : chunk.stop])
                or chunk.world_to_camera.shape[1] != len(self._layout.view_names)
                or not all(self._is_unchanged(file) for file in chunk.files)
            ):
                break
            finished.append(chunk.model_copy(update={"files": []}))
        return finished

    def _read_chunk(self, index: int) -> FinishedChunk | None:
        """Return the record of a chunk; None if it is missing or was changed, so that the chunk is repeated."""
        path = self._layout.chunk_state(index)
        try:
            return read_sealed(path, FinishedChunk) if path.is_file() else None
        except InputError:
            return None

    def delete_chunks_from(self, index: int) -> None:
        """Delete the records of chunks of an abandoned plan."""
        for path in self._chunk_records():
            if path.name >= self._layout.chunk_state(index).name:
                path.unlink()

    def is_complete(self, run: RunState) -> bool:
        """Return whether the recorded run has ended and its files, other than those of chunks, are unchanged."""
        return bool(run.other_files) and all(self._is_unchanged(file) for file in run.other_files)

    def check_present(self, num_chunks: int) -> None:
        """Refuse to end a run whose files were removed meanwhile; they are too many to keep their names in memory.

        Raises:
            OutputError: naming the first such file.
        """
        for index in range(num_chunks):
            chunk, record = self._read_chunk(index), self._layout.chunk_state(index)
            sizes = {} if chunk is None else {self._layout.folder / file.name: file.num_bytes for file in chunk.files}
            for path, num_bytes in sizes.items() or [(record, 0)]:
                if not path.is_file() or path.stat().st_size != num_bytes:
                    text = f"'{path}' was removed or changed during the run"
                    raise OutputError(text, "repeat with ⟨existing=resume⟩")

    def _chunk_records(self) -> list[Path]:
        found = self._layout.folder.glob(OUTPUT_FILES["chunk_state"].glob)
        return sorted(path for path in found if is_own_file(f"state/{path.name}") and path.is_file())

    def _is_unchanged(self, file: FileRecord) -> bool:
        path = self._layout.path(file.name)
        if path.is_symlink() or not path.is_file() or path.stat().st_size != file.num_bytes:
            return False
        return file_sha256(path) == file.sha256

    def listed_files(self) -> list[str]:
        """Name every file that the recorded run lists, `run.json` first: without it a folder is no result.

        Raises:
            UsageError: if a record is damaged, or names a file that page4d does not write.
        """
        names = ["run.json", *self._planned_files()]
        for path in [self._layout.run_state, *self._chunk_records()]:
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
        delete_files([self._layout.path(name) for name in self.listed_files()], self._layout.folder)

    def _planned_files(self) -> list[str]:
        """Name the files of all instants of the run in the folder: the last chunk may be half written."""
        if not self._layout.run.is_file():
            return []
        earlier = _read(self._layout.run, RunRecord)
        views = [view.safe_name for view in earlier.views]
        return [name for row in OUTPUT_FILES.values() for name in row.names(views, len(earlier.times))]


def is_occupied(folder: Path) -> bool:
    """Return whether a folder holds anything under the names of the output contract.

    The records of a run that ended before it wrote its first file do not count, nor do empty folders.
    """
    held = {name for name in OUTPUT_NAMES if _holds_anything(folder / name)}
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
        begun = not layout.run.exists() or read_model(layout.run, RunRecord).status == "incomplete"
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
            f"need about {human_size(needed_bytes)} in '{folder}', {human_size(free)} free",
            "free space, use ⟨voxel_size⟩ or ⟨max_points⟩, or another folder",
        )


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return read_model(path, model)
    except InputError as error:
        raise UsageError(error.marked_message, "use another folder, or delete this one") from error
