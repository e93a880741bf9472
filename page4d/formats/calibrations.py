"""Reading and writing of calibrations of all formats: recognition by name and content, units, and targets."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from page4d.choices import CalibrationFormat, LengthUnit
from page4d.conventions import Scale
from page4d.errors import UsageError, listed
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.formats.files import check_exists, read_bytes, read_json, unreadable
from page4d.formats.table import FORMATS, RigFormat
from page4d.geometry.transforms import camera_centers
from page4d.io.atomic import check_file
from page4d.io.folders import check_replaceable, staged_folder

METRES_PER_UNIT: dict[str, float] = {LengthUnit.METRE: 1.0, LengthUnit.CENTIMETRE: 0.01, LengthUnit.MILLIMETRE: 0.001}

SUSPICIOUS_DISTANCE_M = 100.0
"""Distance of cameras above which the unit of the file is probably millimetres."""

MAX_CAMERAS_COMPARED = 1000

_SIGNATURE_BYTES = 4096
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_calibration(path: Path, unit: str | None = None) -> Calibration:
    """Read a calibration of any supported format.

    `unit` ("m", "cm" or "mm") is the unit of a file that does not declare one; the result is then metric.

    Raises:
        InputError: if the file is missing, damaged or of an unknown format, or contains an invalid camera.
        UsageError: if `unit` is unknown or contradicts the file.
    """
    if unit is not None and unit not in METRES_PER_UNIT:
        raise UsageError(f"⟨calibration_unit={unit}⟩", f"choose from {', '.join(METRES_PER_UNIT)}")
    found = _find(path)
    calibration = replace(found.row.read(*found.arguments), format=found.row.name)
    return _with_distance_notice(calibration) if unit is None else _in_metres(calibration, unit)


def read_lenses(path: Path) -> Calibration:
    """Read a calibration of any supported format for its intrinsics alone: OpenCV YAML then needs no `extri.yml`.

    Raises:
        InputError: if the file is missing, damaged or of an unknown format, or contains an invalid camera.
    """
    found = _find(path)
    return _with_distance_notice(replace(found.row.read_lenses(*found.arguments), format=found.row.name))


def is_calibration_name(path: Path) -> bool:
    """Return True if a file has a name of a calibration format."""
    return _format_of_name(path) is not None


class _Found(NamedTuple):
    """The format of a calibration, and the arguments of its reader: path and, for JSON, content."""

    row: RigFormat
    arguments: tuple[object, ...]


def _find(path: Path) -> _Found:
    check_exists(path)
    if path.is_dir():
        return _find_in_folder(path)
    if path.name.lower().endswith(".json"):
        return _find_json(path)
    row = _format_of_name(path)
    return _find_by_content(path) if row is None else _Found(row, (path,))


def _find_in_folder(folder: Path) -> _Found:
    for row in FORMATS:
        if row.is_folder is not None and row.is_folder(folder):
            return _Found(row, (folder,))
    for name in (name for row in FORMATS if row.json_keys for name in row.patterns):
        if (folder / name).is_file():
            return _find_json(folder / name)
    try:
        files = sorted(path for path in folder.iterdir() if _is_single_file(_format_of_name(path)))
    except OSError as error:
        raise unreadable(folder, (error.strerror or "it cannot be opened").lower()) from None
    if len(files) > 1:
        names = listed([path.name for path in files], limit=4)
        raise unreadable(folder, f"it contains {len(files)} calibrations ({names}); pass one of them")
    if not files:
        raise unreadable(folder, "it contains no calibration file")
    return _find(files[0])


def _is_single_file(format_: RigFormat | None) -> bool:
    return format_ is not None and format_.is_folder is None and not format_.json_keys


def _format_of_name(path: Path) -> RigFormat | None:
    name = path.name.lower()
    return next((row for row in FORMATS if any(fnmatchcase(name, pattern) for pattern in row.patterns)), None)


def _find_json(path: Path) -> _Found:
    content = read_json(path)
    for row in FORMATS:
        if row.json_keys & content.keys():
            return _Found(row, (path, content))
    expected = [f"'{key}'" for row in FORMATS for key in sorted(row.json_keys)]
    raise unreadable(path, f"it has none of the keys {', '.join(expected)}")


def _find_by_content(path: Path) -> _Found:
    start = read_bytes(path).removeprefix(_BYTE_ORDER_MARK)[:_SIGNATURE_BYTES].lstrip()
    if not start:
        raise unreadable(path, "it is empty")
    if start.startswith(b"{"):
        return _find_json(path)
    for row in FORMATS:
        if row.signature is not None and row.signature.match(start):
            return _Found(row, (path,))
    raise unreadable(path, "neither its name nor its content matches a supported format")


def _in_metres(calibration: Calibration, unit: str) -> Calibration:
    """Scale the cameras to metres, or compare `unit` with the unit that the file declares."""
    if calibration.file_unit is not None:
        if unit != calibration.file_unit:
            raise UsageError(
                f"⟨calibration_unit={unit}⟩, but '{calibration.path.name}' is in {calibration.file_unit}",
                "omit ⟨calibration_unit⟩",
            )
        return calibration
    cameras = tuple(_scaled(camera, METRES_PER_UNIT[unit]) for camera in calibration.cameras)
    return replace(calibration, scale=Scale.METRIC, cameras=cameras)


def _scaled(camera: CalibratedCamera, factor: float) -> CalibratedCamera:
    scale = torch.ones(4, 4, dtype=torch.float64)
    scale[:3, 3] = factor
    return replace(camera, world_to_camera=camera.world_to_camera * scale)


def _with_distance_notice(calibration: Calibration) -> Calibration:
    """Add a warning if cameras in assumed metres are implausibly far apart."""
    if calibration.scale is not Scale.METRIC or calibration.file_unit is not None:
        return calibration
    starts = [camera_centers(camera.world_to_camera).reshape(-1, 3)[0] for camera in calibration.cameras]
    centers = torch.stack(starts[:MAX_CAMERAS_COMPARED])
    distance = float(torch.cdist(centers, centers).max())
    if distance <= SUSPICIOUS_DISTANCE_M:
        return calibration
    notice = (
        f"cameras of {calibration.path.name} are up to {distance:.0f} m apart; "
        "if the file is in millimetres, pass ⟨calibration_unit=mm⟩"
    )
    return replace(calibration, notices=(*calibration.notices, notice))


def choose_format(path: Path, given: CalibrationFormat | None) -> CalibrationFormat:
    """Return the given format, or that of the name: `.toml` is Anipose, `.json` is page4d, no suffix a COLMAP folder.

    Raises:
        UsageError: if the name has another suffix.
    """
    by_suffix = {row.suffix: row.written for row in FORMATS if row.written is not None}
    chosen = given or by_suffix.get(path.suffix.lower())
    if chosen is None:
        raise UsageError(f"'{path}' has no suffix of a calibration", "use .json or .toml, or pass ⟨format⟩")
    return chosen


def check_calibration_target(path: Path, file_format: CalibrationFormat, *, overwrite: bool) -> None:
    """Refuse a target that exists, unless it is to be replaced, or that cannot be written.

    Raises:
        UsageError: if it exists.
        OutputError: if it cannot be written.
    """
    row = _written(file_format)
    if not row.suffix:
        check_replaceable(path, row.patterns[0], overwrite=overwrite)
        return
    check_file(path)
    if path.exists() and not overwrite:
        raise UsageError(f"'{path}' exists", "use ⟨overwrite=True⟩ or another name")


def write_calibration(
    calibration: Calibration, path: Path, file_format: CalibrationFormat, *, overwrite: bool = False
) -> None:
    """Write the static cameras of a calibration atomically; `path` is a folder for COLMAP, otherwise a file.

    Raises:
        UsageError: if the target exists and is not to be replaced, or the format cannot hold a camera.
        OutputError: if it cannot be written.
    """
    moving = [camera.name for camera in calibration.cameras if not camera.is_static or camera.image_size is None]
    if moving:
        raise UsageError(f"{listed(moving)} moves or has no image size", "write static cameras with image sizes")
    check_calibration_target(path, file_format, overwrite=overwrite)
    row = _written(file_format)
    if row.suffix:
        row.write(calibration, path)
        return
    with staged_folder(path, replace=overwrite) as folder:
        row.write(calibration, folder)


def _written(file_format: CalibrationFormat) -> RigFormat:
    return next(row for row in FORMATS if row.written is file_format)
