"""One entry for all calibration formats: what a path holds is told from its name and its content.

Order of looking, for a folder: a COLMAP model (also in `sparse/0`), `intri.yml` with `extri.yml`, `transforms.json`,
`cameras.json`, then the only `.qca.txt` or `.toml` file. For a file, its name: `.qca.txt`, `.toml`, `.yml`, COLMAP's
`cameras` and `images`; a `.json` by its keys; any other name by the first characters of the content.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.rigid import camera_centers
from page4d.scene.calibration.colmap import find_colmap, read_colmap
from page4d.scene.calibration.files import check_exists, read_bytes, read_json, unreadable
from page4d.scene.calibration.nerfstudio import read_nerfstudio
from page4d.scene.calibration.opencv_yaml import ENDINGS, read_opencv_yaml
from page4d.scene.calibration.page4d_json import read_own
from page4d.scene.calibration.pose2sim import read_pose2sim
from page4d.scene.calibration.qualisys import read_qualisys
from page4d.scene.calibration.record import CalibratedCamera, Calibration

METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001}

SUSPICIOUS_DISTANCE_M = 100.0
"""Cameras further apart than this are more likely in millimetres."""

LARGEST_RIG = 1000
"""Cameras whose distances are looked at."""

Reader = Callable[[Path], Calibration]


def read_calibration(path: Path, unit: str | None = None) -> Calibration:
    """Read a calibration of any known format.

    `unit` ("m", "cm" or "mm") is the unit of a file that does not state its own; the result is then metric.

    Raises:
        InputError: if the file is missing, damaged, of an unknown format, or holds a camera that cannot be used.
        UsageError: if `unit` is unknown or contradicts the file.
    """
    if unit is not None and unit not in METRES:
        raise UsageError(f"--calibration-unit {unit}", f"known: {', '.join(METRES)}")
    check_exists(path)
    reader, found = _find_in_folder(path) if path.is_dir() else (_reader_of_file(path), path)
    calibration = reader(found)
    if unit is not None:
        return _in_metres(calibration, unit)
    notice = _distance_notice(calibration)
    return calibration if notice is None else replace(calibration, notices=(*calibration.notices, notice))


def _find_in_folder(folder: Path) -> tuple[Reader, Path]:
    if find_colmap(folder) is not None:
        return read_colmap, folder
    if any((folder / f"{stem}{ending}").is_file() for stem in ("intri", "extri") for ending in ENDINGS):
        return read_opencv_yaml, folder
    for name in ("transforms.json", "cameras.json"):
        if (folder / name).is_file():
            return _reader_of_file(folder / name), folder / name
    try:
        files = sorted(path for path in folder.iterdir() if path.name.lower().endswith((".qca.txt", ".toml")))
    except OSError as error:
        raise unreadable(folder, (error.strerror or "it cannot be opened").lower()) from None
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:5])
        raise unreadable(folder, f"it holds {len(files)} calibrations ({names}); give one of them")
    if not files:
        raise unreadable(folder, "it holds no calibration file of a known name")
    return _reader_of_file(files[0]), files[0]


def _reader_of_file(path: Path) -> Reader:
    name = path.name.lower()
    if name.endswith((".qca.txt", ".qca")):
        return read_qualisys
    if name.endswith(".toml"):
        return read_pose2sim
    if name.endswith(ENDINGS):
        return read_opencv_yaml
    if name in {f"{stem}{ending}" for stem in ("cameras", "images") for ending in (".txt", ".bin")}:
        return read_colmap
    return _reader_of_json(path) if name.endswith(".json") else _reader_of_content(path)


def _reader_of_json(path: Path) -> Reader:
    keys = read_json(path).keys()
    if "frames" in keys:
        return read_nerfstudio
    if "views" in keys or "cameras" in keys:
        return read_own
    raise unreadable(path, "it has none of the keys 'frames', 'views', 'cameras'")


def _reader_of_content(path: Path) -> Reader:
    start = read_bytes(path).removeprefix(b"\xef\xbb\xbf")[:4096].lstrip()
    if start.startswith(b"<") and b"<calibration" in start:
        return read_qualisys
    if start.startswith(b"{"):
        return _reader_of_json(path)
    if start.startswith(b"[") and b"matrix" in start:
        return read_pose2sim
    if not start:
        raise unreadable(path, "it is empty")
    raise unreadable(path, "neither its name nor its content is of a known format")


def _in_metres(calibration: Calibration, unit: str) -> Calibration:
    """Scale the cameras to metres, or check the unit where the file states its own."""
    if calibration.file_unit is not None:
        if unit != calibration.file_unit:
            raise UsageError(
                f"--calibration-unit {unit}, but '{calibration.path.name}' is in {calibration.file_unit}",
                "leave --calibration-unit out",
            )
        return calibration
    cameras = tuple(_scaled(camera, METRES[unit]) for camera in calibration.cameras)
    return replace(calibration, scale=Scale.METRIC, cameras=cameras)


def _scaled(camera: CalibratedCamera, factor: float) -> CalibratedCamera:
    scale = torch.ones(4, 4, dtype=torch.float64)
    scale[:3, 3] = factor
    return replace(camera, world_to_camera=camera.world_to_camera * scale)


def _distance_notice(calibration: Calibration) -> str | None:
    """Return a text if cameras that are taken to be in metres stand suspiciously far apart."""
    if calibration.scale is not Scale.METRIC or calibration.file_unit is not None:
        return None
    starts = [camera_centers(camera.world_to_camera).reshape(-1, 3)[0] for camera in calibration.cameras]
    centers = torch.stack(starts[:LARGEST_RIG])
    distance = float(torch.cdist(centers, centers).max())
    if distance <= SUSPICIOUS_DISTANCE_M:
        return None
    return (
        f"cameras of {calibration.path.name} are up to {distance:.0f} m apart; "
        "if the file is in millimetres, pass --calibration-unit mm"
    )
