"""Reading and writing of calibrations of all formats: recognition by name and content, units, and targets."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from page4d.choices import CalibrationFormat
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError, listed, shortened, unknown_name
from page4d.formats.camera_model import METRES, Calibration, camera_distances
from page4d.formats.files import check_exists, key_paths, lens_file, read_document, unreadable
from page4d.formats.table import FORMATS, RigFormat
from page4d.geometry.distortion import Distortion, LensModel
from page4d.io.atomic import check_file
from page4d.io.folders import check_replaceable, staged_folder
from page4d.io.input_files import natural_key

SUSPICIOUS_DISTANCE_M = 100.0
"""Distance of cameras above which the unit of the file is probably millimetres."""


def read_calibration(path: Path, unit: str | None = None, views: Collection[str] | None = None) -> Calibration:
    """Read a calibration of any supported format.

    `unit` ("m", "cm" or "mm") is the unit of a file that does not declare one; the result is then metric. Of several
    COLMAP models in a folder, the only one with cameras of all `views` is read.

    Raises:
        InputError: if the file is missing, damaged or of an unknown format, or contains an invalid camera.
        UsageError: if `unit` is unknown or contradicts the file.
    """
    if unit is not None and unit not in METRES:
        raise unknown_name("unit", unit, METRES, "⟨calibration_unit⟩: ")
    calibration = _read(path, views, poses=True)
    return _with_distance_notice(calibration) if unit is None else _in_metres(calibration, unit)


def read_lenses(path: Path, views: Collection[str] | None = None) -> Calibration:
    """Read a calibration of any supported format for its intrinsics alone; poses may be missing.

    Raises:
        InputError: if the file is missing, damaged or of an unknown format, or contains an invalid camera.
    """
    return _read(path, views, poses=False)


def is_calibration_name(path: Path) -> bool:
    """Return True if a file has a name of a calibration format."""
    name = path.name.lower()
    return any(fnmatchcase(name, pattern) for row in FORMATS for pattern in row.patterns)


def describes_cameras(path: Path) -> bool | None:
    """Return False for a document without cameras, such as a board or settings of a program, None if undecided."""
    if path.suffix.lower() not in {".toml", ".yml", ".yaml", ".mat", ".npz", ".csv"}:
        return None
    try:
        content = read_document(path)
    except InputError:
        return None
    return _recognized(content)[0] is not None if content else None


_DOCUMENTS = frozenset({".json", ".xml", ".csv"})


class _Found(NamedTuple):
    """A calibration and its format; `content` is the parsed document, None for a format that spans a folder."""

    path: Path
    row: RigFormat
    content: object = None


def _read(path: Path, views: Collection[str] | None, *, poses: bool) -> Calibration:
    check_exists(path)
    return _content(_find_in_folder(path, poses) if path.is_dir() else _find_file(path), views, poses)


def _content(found: _Found, views: Collection[str] | None, poses: bool) -> Calibration:
    path, row, content = found
    if row.advice:
        raise InputError(f"'{path.name}' is a calibration of {row.name}, which is not read", row.advice)
    read: Callable[..., Calibration] = row.function(row.reader)
    if not row.keys:
        calibration = read(path, views)
    else:
        calibration = read(path, content) if row.needs_poses else read(path, content, poses=poses)
    return replace(calibration, format=row.name)


def _find_file(path: Path) -> _Found:
    name = path.name.lower()
    for row in FORMATS:
        if not row.keys and any(fnmatchcase(name, pattern) for pattern in row.patterns):
            return _Found(path, row)
    content = read_document(path)
    recognized, content = _recognized(content)
    if recognized is None:
        head = content[0] if isinstance(content, list) and content else content
        keys = listed([f"'{shortened(str(key))}'" for key in head], 6) if isinstance(head, dict) else ""
        reason = "it contains no camera of a supported format"
        raise unreadable(path, f"{reason} (its keys are {keys})" if keys else reason)
    return _Found(path, recognized, content)


def _recognized(content: object) -> tuple[RigFormat | None, object]:
    """Return the format of a document, or of the only table in it, and what has it."""
    paths = tuple(key_paths(content))
    row = next((row for row in FORMATS if row.keys and any(re.fullmatch(row.keys, path) for path in paths)), None)
    inner = (
        [value for value in content.values() if isinstance(value, dict | list)] if isinstance(content, dict) else []
    )
    if row is None and len(inner) == 1 and isinstance(content, dict):
        row, below = _recognized(inner[0])
        if row is not None and row.reader == "read_tables":  # what is stated for all cameras
            facts = {key: value for key, value in content.items() if value is not inner[0]}
            below = facts | (below if isinstance(below, dict) and "cameras" in below else {"cameras": below})
        content = content if row is None else below
    return row, content


def _find_in_folder(folder: Path, poses: bool) -> _Found:
    for row in FORMATS:
        if not row.keys and row.function("is_folder")(folder):
            return _Found(folder, row)
    try:
        # As the views, which may be paired with them in order.
        paths = sorted(folder.iterdir(), key=lambda path: natural_key(path.name))
        files = [path for path in paths if is_calibration_name(path) and path.is_file()]
        # Other names are those of cameras: a folder that is given holds nothing else.
        files = files or [path for path in paths if path.suffix.lower() in _DOCUMENTS and path.is_file()]
        lenses = [path for path in paths if re.match("intr(i|[^a-z]|$)", path.name.lower()) and path.is_dir()]
    except OSError as error:
        raise unreadable(folder, (error.strerror or "it cannot be opened").lower()) from None
    if lenses and not files:
        if len(lenses) == 1:
            return _find_in_folder(lenses[0], poses)
        raise _several(folder, lenses, "folders of lenses")
    found: dict[Path, _Found] = {}
    errors: dict[Path, InputError] = {}
    for documents in (files, _documents_below(paths)):
        for file in documents if not found else ():
            try:
                found[lens_file(file)] = _find_file(file)
            except InputError as error:
                errors[lens_file(file)] = error
    usable = [each for each in found.values() if not each.row.advice and not (each.row.is_single and poses)]
    usable = usable or list(found.values())
    if len(usable) > 1 and all(each.row.is_single for each in usable):
        usable.sort(key=lambda each: natural_key(str(lens_file(each.path))))
        return usable[0]._replace(path=folder, content=[(each.path, each.content) for each in usable])
    if usable:
        chosen = usable[0] if len(usable) == 1 else _same(usable, poses)
        if chosen is None:
            raise _several(folder, [each.path for each in usable], "calibrations")
        return chosen
    if len(errors) == 1:
        raise next(iter(errors.values()))
    names = f": {listed([path.name for path in errors], limit=4)} are none" if errors else ""
    raise unreadable(folder, f"it contains no calibration file{names}")


def _documents_below(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the document of each folder that has a single one, such as `mav0/cam0/sensor.yaml` of EuRoC."""
    for folder in (path for path in paths if path.is_dir() and os.access(path, os.R_OK)):
        files = [path for path in folder.iterdir() if path.suffix.lower() in {".json", ".xml", ".yaml", ".yml"}]
        yield from files if len(files) == 1 else ()


def _several(folder: Path, paths: Sequence[Path], noun: str) -> InputError:
    return InputError(
        f"'{folder.name or folder}' contains {len(paths)} {noun}: {listed([path.name for path in paths], limit=4)}",
        f"pass one of them, such as ⟨calibration='{paths[0]}'⟩",
    )


def _same(found: list[_Found], poses: bool) -> _Found | None:
    """Return the first file in metres if files of a folder hold the same cameras, as those of Caliscope do."""
    read: list[Calibration] = []
    errors: list[InputError] = []
    for each in found:
        try:
            read.append(_content(each, None, poses))
        except InputError as error:
            errors.append(error)
    if errors:
        if not read:
            raise errors[0]
        return None
    metric = [each for each, content in zip(found, read, strict=True) if content.scale is Scale.METRIC]
    return (metric or found)[0] if all(read[0].is_same(other) for other in read[1:]) else None


def _in_metres(calibration: Calibration, unit: str) -> Calibration:
    """Scale the cameras to metres, or compare `unit` with the unit that the file declares."""
    if calibration.file_unit is not None:
        if unit != calibration.file_unit:
            raise UsageError(
                f"⟨calibration_unit={unit}⟩, but '{calibration.path.name}' is in {calibration.file_unit}",
                "omit ⟨calibration_unit⟩",
            )
        return calibration
    factor = torch.ones(4, 4, dtype=torch.float64)
    factor[:3, 3] = METRES[unit]
    cameras = (replace(camera, world_to_camera=camera.world_to_camera * factor) for camera in calibration.cameras)
    return replace(calibration, scale=Scale.METRIC, cameras=tuple(cameras))


def _with_distance_notice(calibration: Calibration) -> Calibration:
    """Take cameras that are implausibly far apart for assumed metres as ones of an unknown unit."""
    if calibration.scale is not Scale.METRIC or calibration.file_unit is not None:
        return calibration
    starts = [camera.world_to_camera.reshape(-1, 4, 4)[0] for camera in calibration.cameras]
    distance = float(camera_distances(starts)[0].max())
    if distance <= SUSPICIOUS_DISTANCE_M:
        return calibration
    notice = (
        f"cameras of {calibration.path.name} are up to {distance:.0f} apart, too far for metres: "
        "their unit is unknown; pass ⟨calibration_unit=mm⟩ if they are in millimetres"
    )
    return replace(calibration, scale=Scale.ARBITRARY, notices=(*calibration.notices, notice))


def choose_format(path: Path, given: CalibrationFormat | None) -> CalibrationFormat:
    """Return the given format, or that of the name.

    Raises:
        UsageError: if the name has another suffix.
    """
    if given is not None:
        return given
    name, suffix = path.name.lower(), path.suffix.lower()
    rows = [row for row in FORMATS if row.written is not None and row.suffix == suffix]
    named = [row for row in rows if any(fnmatchcase(name, pattern) for pattern in row.patterns)] or rows
    if not named or named[0].written is None:
        raise UsageError(f"'{path}' has no suffix of a calibration", "use .json, .toml or .yml, or pass ⟨format⟩")
    return named[0].written


ViewLens = tuple[str, Distortion | None, float]
"""Name of a view, and distortion and skew of its lens."""


def check_calibration_target(
    path: Path, file_format: CalibrationFormat, *, overwrite: bool, lenses: Iterable[ViewLens] = ()
) -> None:
    """Refuse a target that exists, unless it is to be replaced, or that cannot be written.

    With `lenses` of all views, also a format that cannot hold two of them: the others may not be placed.

    Raises:
        UsageError: if it exists, or cannot hold the cameras.
        OutputError: if it cannot be written.
    """
    misfits = [_misfit(file_format, *lens) for lens in lenses]
    if any(misfits) and misfits.count("") < min(2, len(misfits)):
        raise UsageError(next(filter(None, misfits)), "use ⟨format=page4d⟩")
    row = _written(file_format)
    if not row.suffix:
        check_replaceable(path, row.patterns[0], overwrite=overwrite)
        return
    check_file(path, overwrite=overwrite)


def write_calibration(
    calibration: Calibration, path: Path, file_format: CalibrationFormat, *, overwrite: bool = False
) -> None:
    """Write the static cameras of a calibration atomically; `path` is a folder for COLMAP, otherwise a file.

    Cameras that the format cannot hold are written as page4d's next to it, so that no work is lost.

    Raises:
        UsageError: if the target exists and is not to be replaced, or the format cannot hold a camera.
        OutputError: if it cannot be written.
    """
    moving = [camera.name for camera in calibration.cameras if not camera.is_static or camera.image_size is None]
    if moving:
        raise UsageError(f"{listed(moving)} moves or has no image size", "write static cameras with image sizes")
    check_calibration_target(path, file_format, overwrite=overwrite)
    lenses = ((camera.name, camera.distortion, float(camera.intrinsics[0, 1])) for camera in calibration.cameras)
    if misfits := [misfit for lens in lenses if (misfit := _misfit(file_format, *lens))]:
        names = (path.with_name(f"{path.name}{number}.json") for number in ("", *range(2, 1000)))
        other = next(name for name in names if not os.path.lexists(name))
        write_calibration(calibration, other, CalibrationFormat.PAGE4D)
        raise UsageError(misfits[0], f"use '{other}', where the cameras are in the format of page4d")
    row = _written(file_format)
    write = row.function(row.writer)
    if row.suffix:
        write(calibration, path)
        return
    with staged_folder(path, replace=overwrite) as folder:
        write(calibration, folder)


def _misfit(file_format: CalibrationFormat, name: str, lens: Distortion | None, skew: float) -> str:
    """Return why a format cannot hold a camera, "" if it can."""
    misfits = {
        "name": not re.fullmatch(r"[A-Za-z0-9_ -]+", name),  # a part of keys
        "fisheye lens": lens is not None and lens.model is LensModel.FISHEYE,
        "skew": skew != 0,
    }
    found = [what for what in _written(file_format).cannot_hold if misfits[what]]
    return f"{name} has a {found[0]} that the format {file_format} cannot hold" if found else ""


def _written(file_format: CalibrationFormat) -> RigFormat:
    return next(row for row in FORMATS if row.written is file_format)
