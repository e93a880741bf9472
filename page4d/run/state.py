"""The state folder of an output: records for resuming a run, its fingerprint, and the list of its files.

The fingerprint covers everything that a result's bytes depend on, so that only an equal run is resumed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import page4d
from page4d.errors import InputError, OutputError, UsageError, human_size
from page4d.io.atomic import WrittenFile, delete_files, file_sha256, write_bytes_atomic
from page4d.io.input_files import reading_again
from page4d.io.json_records import FileModel, Model, read_model, read_sealed, readable, write_sealed
from page4d.options import ReconstructSettings, describe_settings, option_name
from page4d.output.layout import OUTPUT_FILES, OUTPUT_NAMES, OutputLayout, is_own_file
from page4d.output.record import RunRecord, read_run
from page4d.rig.records import RigRegistration
from page4d.run.plan import RunPlan
from page4d.run.predictor import PRECISION_NAMES
from page4d.run.state_records import FileRecord, FinishedChunk, OwnFile, RunState
from page4d.scene.identity import files_of
from page4d.scene.image_file import image_name
from page4d.scene.records import Scene

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
            f"need about {human_size(needed_bytes)} in '{folder}', {human_size(free)} free",
            "free space, use ⟨voxel_size⟩ or ⟨max_points⟩, or another folder",
        )


def _read(path: Path, model: type[Model]) -> Model:
    try:
        return read_model(path, model)
    except InputError as error:
        raise UsageError(error.marked_message, "use another folder, or delete this one") from error


_EDGE_BYTES = 1 << 20
_WITHOUT_EFFECT = ("preview", "strict_seams", "check_calibration", "memory_bytes", "max_frames", "max_megapixels")
_TEXTS = {"companions": "masks or depth"}
"""Names in messages of what is recorded under a key that is no option."""

_RENAMED = {"masks or depth": "companions"}
"""Keys of runs that older versions have recorded."""

_PATHS = ("sync", "calibration", "masks", "depth", "intrinsics", "tracks2d")


def check_fingerprint(folder: Path, earlier: RunState, plan: RunPlan) -> None:
    """Refuse a recorded run whose inputs or settings were not those of the plan.

    Raises:
        UsageError: naming the differences.
    """
    differs = _differences(_recorded(earlier), fingerprint_of(plan))
    if not differs and earlier.plan[-1].stop != plan.scene.num_times:
        differs = ["instants of the state"]
    _refuse(folder, differs)


def earlier_registration(
    folder: Path, earlier: RunState | None, scene: Scene, settings: ReconstructSettings
) -> RigRegistration | None:
    """Return the registration of the run to continue; None if there is none.

    Raises:
        UsageError: naming the differences, if the run had other inputs or settings.
    """
    if earlier is None or earlier.registration is None:
        return None
    recorded, now = _recorded(earlier), input_fingerprint(scene, settings)
    _refuse(folder, _differences({key: recorded.get(key) for key in now}, now))
    return earlier.registration


def _recorded(state: RunState) -> dict[str, JsonValue]:
    return {_RENAMED.get(key, key): value for key, value in state.fingerprint.items()}


def _refuse(folder: Path, differs: list[str]) -> None:
    if differs:
        of_files = {"inputs", _TEXTS["companions"]} & {*differs}
        copied = "; copies of inputs must keep their times, as with `cp -a`" if of_files else ""
        raise UsageError(
            f"'{folder}' holds results of another run (differs: {', '.join(differs)})",
            f"use ⟨existing=overwrite⟩ to replace them, or another folder{copied}",
        )


def _differences(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of differing inputs and settings: those of their options where these exist."""
    names = []
    for key in dict.fromkeys([*now, *earlier]):
        before, after = earlier.get(key), now.get(key)
        if before == after:
            continue
        if key == "points" and isinstance(before, dict) and isinstance(after, dict):
            names += _differences(before, after)
        else:
            names.append(_TEXTS.get(key) or option_name(key))
    return list(dict.fromkeys(names))


def fingerprint_of(plan: RunPlan) -> dict[str, JsonValue]:
    """Return everything that the result's bytes depend on.

    Files are identified by content, not by path: a run may be resumed from another folder. Settings are included by
    their names, so that a difference can be reported by the option.
    """
    scene, predictor, registration = plan.scene, plan.predictor, plan.evidence.registration
    placed = [] if registration is None else registration.model_dump(mode="json")["cameras"]
    return {
        **input_fingerprint(scene, plan.settings),
        "network": predictor.record.name,
        "preset": predictor.record.preset,
        "weights": predictor.record.sha256,
        "precision": PRECISION_NAMES[predictor.precision],
        "device": predictor.device.type,
        "descriptors": plan.descriptors,
        "cameras": _cameras_fingerprint(scene),
        "pose-model": None if registration is None else registration.record.pose_model,
        "registered": _digest([placed]) if any(placed) else None,
    }


def input_fingerprint(scene: Scene, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Return the part of the fingerprint that is known before a scene without calibration is registered."""
    described = describe_settings(scene.options, settings)
    lenses, tracks = settings.intrinsics, settings.tracks2d
    return {
        **{name: value for name, value in described.items() if name not in (*_WITHOUT_EFFECT, *_PATHS)},
        "version": page4d.__version__,
        "intrinsics": None if lenses is None else _source_fingerprint("", [lenses] if lenses.is_file() else []),
        "tracks2d": None if tracks is None else _source_fingerprint("", sorted(tracks.glob("*.npz"))),
        "mask_meaning": scene.mask_meaning.value,
        "depth_levels": scene.depth_levels,
        "inputs": {
            readable(view.name): _source_fingerprint(view.source.label, files_of(view.source)) for view in scene.views
        },
        "companions": {
            f"{readable(view.name)} {kind}": _source_fingerprint(paired.frames.label, files_of(paired.frames))
            for view in scene.views
            for kind, paired in (("mask", view.mask), ("depth", view.depth))
            if paired is not None
        },
        "instants": _digest([scene.times.tolist(), [view.indices for view in scene.views]]),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _source_fingerprint(label: str, files: list[Path]) -> str:
    digest = hashlib.sha256(os.fsencode(label))
    for path in files:
        with reading_again(path.name if len(files) == 1 else image_name(path)):
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
    offset = "" if scene.world_offset is None else str(scene.world_offset)
    return hashlib.sha256("".join([*parts, offset, scene.up or ""]).encode()).hexdigest()
