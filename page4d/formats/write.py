"""Writers of calibrations for other programs: `cameras.json` of page4d, COLMAP and Anipose.

Source: COLMAP documentation, "Output format" and "Camera models"; user guide of Anipose, "calibration".
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import page4d
from page4d.choices import CalibrationFormat
from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER
from page4d.errors import UsageError, listed
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import LensModel
from page4d.geometry.rotation import quaternion_from_matrix, rotation_vector_from_matrix
from page4d.io.atomic import check_file, write_bytes_atomic
from page4d.io.folders import check_replaceable, staged_folder, write_file
from page4d.io.json_records import format_json, readable

_COLMAP_FILES = ("cameras.bin", "images.bin", "points3D.bin")
_PINHOLE, _OPENCV, _OPENCV_FISHEYE, _FULL_OPENCV = 1, 4, 5, 6
"""Numbers of COLMAP's camera models."""

_ANIPOSE_COEFFICIENTS = 5
"""Coefficients k1 k2 p1 p2 k3 that Anipose reads; more are written only where they are not zero."""


def choose_format(path: Path, given: CalibrationFormat | None) -> CalibrationFormat:
    """Return the given format, or that of the name: `.toml` is Anipose, `.json` is page4d, no suffix a COLMAP folder.

    Raises:
        UsageError: if the name has another suffix.
    """
    by_suffix = {".json": CalibrationFormat.PAGE4D, ".toml": CalibrationFormat.ANIPOSE, "": CalibrationFormat.COLMAP}
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
    if file_format is CalibrationFormat.COLMAP:
        check_replaceable(path, _COLMAP_FILES[0], overwrite=overwrite)
        return
    check_file(path)
    if path.exists() and not overwrite:
        raise UsageError(f"'{path}' exists", "use ⟨overwrite=True⟩ or another name")


def write_calibration(
    calibration: Calibration, path: Path, file_format: CalibrationFormat, *, overwrite: bool = False
) -> None:
    """Write the static cameras of a calibration atomically; `path` is a folder for COLMAP, otherwise a file.

    A COLMAP model has one image per view, called `<view>.png`, and no points.

    Raises:
        UsageError: if the target exists and is not to be replaced, or the format cannot hold a camera.
        OutputError: if it cannot be written.
    """
    moving = [camera.name for camera in calibration.cameras if not camera.is_static or camera.image_size is None]
    if moving:
        raise UsageError(f"{listed(moving)} moves or has no image size", "write static cameras with image sizes")
    check_calibration_target(path, file_format, overwrite=overwrite)
    if file_format is CalibrationFormat.COLMAP:
        with staged_folder(path, replace=overwrite) as folder:
            for name, data in zip(_COLMAP_FILES, _colmap(calibration), strict=True):
                write_file(folder / name, data)
        return
    encode: dict[CalibrationFormat, Callable[[Calibration], str]] = {
        CalibrationFormat.PAGE4D: _page4d_json,
        CalibrationFormat.ANIPOSE: _anipose_toml,
    }
    write_bytes_atomic(path, encode[file_format](calibration).encode())


def _page4d_json(calibration: Calibration) -> str:
    cameras = {}
    for camera in calibration.cameras:
        height, width = _size(camera)
        content: dict[str, object] = {
            "width": width,
            "height": height,
            "intrinsics": camera.intrinsics.tolist(),
            "world_to_camera": camera.world_to_camera.tolist(),
        }
        if camera.distortion is not None:
            coefficients = list(camera.distortion.coefficients)
            content["distortion"] = {"model": camera.distortion.model.value, "coefficients": coefficients}
        cameras[readable(camera.name)] = content
    head = {"page4d": page4d.__version__, "pixel_center": PIXEL_CENTER, "scale": calibration.scale.value}
    return format_json({**head, "unit": calibration.scale.unit, "cameras": cameras}) + "\n"


def _anipose_toml(calibration: Calibration) -> str:
    tables = []
    for index, camera in enumerate(calibration.cameras):
        height, width = _size(camera)
        matrix = move_pixel_center(camera.intrinsics, PIXEL_CENTER, INTEGER_PIXEL_CENTER)
        is_fisheye = camera.distortion is not None and camera.distortion.model is LensModel.FISHEYE
        coefficients = list(_coefficients(camera))
        if not is_fisheye:
            count = _ANIPOSE_COEFFICIENTS if not any(coefficients[_ANIPOSE_COEFFICIENTS:]) else 8
            coefficients = (coefficients + [0.0] * count)[:count]
        fields = {
            "name": readable(camera.name),
            "size": [width, height],
            "matrix": matrix.tolist(),
            "distortions": coefficients,
            "rotation": rotation_vector_from_matrix(camera.world_to_camera[:3, :3]).tolist(),
            "translation": camera.world_to_camera[:3, 3].tolist(),
            "fisheye": is_fisheye,
        }
        tables.append((f"cam_{index}", fields))
    tables.append(("metadata", {"adjusted": True, "error": 0.0, "unit": calibration.scale.unit}))
    # Lists, numbers, truth values and strings without surrogates have the same form in TOML and JSON.
    lines = [
        [f"[{name}]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())]
        for name, fields in tables
    ]
    return "\n\n".join("\n".join(table) for table in lines) + "\n"


def _colmap(calibration: Calibration) -> tuple[bytes, bytes, bytes]:
    """Return the content of cameras.bin, images.bin and points3D.bin."""
    count = struct.pack("<Q", len(calibration.cameras))
    cameras, images = [count], [count]
    for number, camera in enumerate(calibration.cameras, start=1):
        if float(camera.intrinsics[0, 1]) != 0:
            raise UsageError(f"{camera.name} has a skew, which COLMAP's cameras lack", "use ⟨format=page4d⟩")
        (height, width), (model, coefficients) = _size(camera), _colmap_model(camera)
        (fx, _, cx), (_, fy, cy), _ = camera.intrinsics.tolist()
        parameters = (fx, fy, cx, cy, *coefficients)
        cameras.append(struct.pack(f"<iiQQ{len(parameters)}d", number, model, width, height, *parameters))
        pose = quaternion_from_matrix(camera.world_to_camera[:3, :3]).tolist()
        pose += camera.world_to_camera[:3, 3].tolist()
        name = f"{readable(camera.name)}.png".encode()
        images.append(struct.pack("<i7di", number, *pose, number) + name + b"\0" + struct.pack("<Q", 0))
    return b"".join(cameras), b"".join(images), struct.pack("<Q", 0)


def _colmap_model(camera: CalibratedCamera) -> tuple[int, tuple[float, ...]]:
    """Return the number of COLMAP's camera model and its coefficients."""
    coefficients = _coefficients(camera)
    if not coefficients:
        return _PINHOLE, ()
    if camera.distortion is not None and camera.distortion.model is LensModel.FISHEYE:
        return _OPENCV_FISHEYE, coefficients
    if any(coefficients[4:]):
        return _FULL_OPENCV, coefficients + (0.0,) * (8 - len(coefficients))
    return _OPENCV, coefficients[:4]


def _coefficients(camera: CalibratedCamera) -> tuple[float, ...]:
    return () if camera.distortion is None else camera.distortion.coefficients


def _size(camera: CalibratedCamera) -> tuple[int, int]:
    assert camera.image_size is not None
    return camera.image_size
