"""Reading of calibrations of all formats: the table of formats, recognition by name and content, and units."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from page4d.choices import LengthUnit
from page4d.conventions import Scale
from page4d.errors import UsageError, listed
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.formats.cameras_json import read_page4d_json
from page4d.formats.colmap import find_colmap, read_colmap
from page4d.formats.files import check_exists, read_bytes, read_json, unreadable
from page4d.formats.nerfstudio import read_nerfstudio
from page4d.formats.opencv_yaml import has_opencv_yaml, read_opencv_yaml
from page4d.formats.qualisys import read_qualisys
from page4d.formats.toml_rig import read_pose2sim
from page4d.geometry.transforms import camera_centers


@dataclass(frozen=True, kw_only=True)
class CalibrationReader:
    """A calibration format: how its files are recognized, and its reader.

    `file_names` are patterns of lower-case file names. JSON files are recognized by one of the `json_keys` instead,
    and their reader takes the parsed content, too; files with other names are recognized by `signature` at their
    beginning. `is_folder` recognizes a format that spans a folder.
    """

    name: str
    read: Callable[..., Calibration]
    file_names: tuple[str, ...]
    is_folder: Callable[[Path], bool] | None = None
    json_keys: frozenset[str] = frozenset()
    signature: re.Pattern[bytes] | None = None


FORMATS = (
    CalibrationReader(
        name="COLMAP",
        read=read_colmap,
        file_names=("cameras.bin", "cameras.txt", "images.bin", "images.txt"),
        is_folder=lambda folder: find_colmap(folder) is not None,
    ),
    CalibrationReader(
        name="OpenCV YAML",
        read=read_opencv_yaml,
        file_names=("*.yml", "*.yaml"),
        is_folder=has_opencv_yaml,
    ),
    CalibrationReader(
        name="nerfstudio",
        read=read_nerfstudio,
        file_names=("transforms.json",),
        json_keys=frozenset({"frames"}),
    ),
    CalibrationReader(
        name="cameras.json",
        read=read_page4d_json,
        file_names=("cameras.json",),
        json_keys=frozenset({"views", "cameras"}),
    ),
    CalibrationReader(
        name="Qualisys",
        read=read_qualisys,
        file_names=("*.qca.txt", "*.qca"),
        signature=re.compile(rb"<(.*<)?calibration", re.DOTALL),
    ),
    CalibrationReader(
        name="Pose2Sim/Anipose TOML",
        read=read_pose2sim,
        file_names=("*.toml",),
        signature=re.compile(rb"\[.*matrix", re.DOTALL),
    ),
)
"""Supported formats. A folder is searched for formats that span it, then for JSON files, each in this order, and
finally for a single file of any other format."""

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
    calibration = replace(found.read(), format=found.name)
    return _with_distance_notice(calibration) if unit is None else _in_metres(calibration, unit)


def read_lenses(path: Path) -> Calibration:
    """Read a calibration of any supported format for its intrinsics alone: OpenCV YAML then needs no `extri.yml`.

    Raises:
        InputError: if the file is missing, damaged or of an unknown format, or contains an invalid camera.
    """
    found = _find(path)
    if found.read.func is read_opencv_yaml:
        return replace(found.read(needs_poses=False), format=found.name)
    return _with_distance_notice(replace(found.read(), format=found.name))


def is_calibration_name(path: Path) -> bool:
    """Return True if a file has a name of a calibration format."""
    return _format_of_name(path) is not None


class _Found(NamedTuple):
    """The format of a calibration, and its reader with the arguments."""

    name: str
    read: partial[Calibration]


def _find(path: Path) -> _Found:
    check_exists(path)
    if path.is_dir():
        return _find_in_folder(path)
    if path.name.lower().endswith(".json"):
        return _find_json(path)
    row = _format_of_name(path)
    return _find_by_content(path) if row is None else _Found(row.name, partial(row.read, path))


def _find_in_folder(folder: Path) -> _Found:
    for row in FORMATS:
        if row.is_folder is not None and row.is_folder(folder):
            return _Found(row.name, partial(row.read, folder))
    for name in (name for row in FORMATS if row.json_keys for name in row.file_names):
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


def _is_single_file(format_: CalibrationReader | None) -> bool:
    return format_ is not None and format_.is_folder is None and not format_.json_keys


def _format_of_name(path: Path) -> CalibrationReader | None:
    name = path.name.lower()
    return next((row for row in FORMATS if any(fnmatchcase(name, pattern) for pattern in row.file_names)), None)


def _find_json(path: Path) -> _Found:
    content = read_json(path)
    for row in FORMATS:
        if row.json_keys & content.keys():
            return _Found(row.name, partial(row.read, path, content))
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
            return _Found(row.name, partial(row.read, path))
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
