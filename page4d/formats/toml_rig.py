"""Pose2Sim and Anipose TOML, read and written: one table per camera.

The files declare no unit: Pose2Sim writes metres, Anipose usually millimetres. Metres are assumed, except in files of
page4d, which state the unit under `[metadata]`.

Source: user guides of Pose2Sim and Anipose, "calibration".
"""

import json
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.formats.build import (
    FileSchema,
    Matrix3,
    Row3,
    Side,
    brown_conrady,
    fisheye,
    make_camera,
    pose_matrix,
    rotation_from_vector,
)
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.formats.files import check_count, error_context, parsing, read_text, unreadable, validated
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import LensModel
from page4d.geometry.rotation import rotation_vector_from_matrix
from page4d.io.atomic import write_bytes_atomic
from page4d.io.documents import MAX_TEXT_BYTES, parse_toml
from page4d.io.json_records import readable

_ANIPOSE_COEFFICIENTS = 5
"""Coefficients k1 k2 p1 p2 k3 that Anipose reads; more are written only where they are not zero."""

_CAMERA_KEYS = frozenset({"matrix", "rotation", "translation"})


class _CameraTable(FileSchema):
    """One camera: intrinsics and coefficients of OpenCV, `rotation` as a Rodrigues vector, world to camera."""

    name: str | None = None
    size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    matrix: Matrix3
    distortions: list[float] = Field(default=[])
    rotation: Row3
    translation: Row3
    fisheye: bool = False


def read(path: Path) -> Calibration:
    """Read a TOML file; tables without camera keys, such as `[metadata]`, are ignored.

    Raises:
        InputError: if the file is damaged or a camera is invalid.
    """
    with parsing(path):
        content = parse_toml(read_text(path, MAX_TEXT_BYTES))
    tables = {key: table for key, table in content.items() if isinstance(table, dict) and _CAMERA_KEYS & set(table)}
    if not tables:
        raise unreadable(path, "it contains no camera table")
    check_count(path, len(tables))
    cameras = tuple(_camera(path.name, key, table) for key, table in tables.items())
    metadata = content.get("metadata")
    is_arbitrary = isinstance(metadata, dict) and metadata.get("unit") == Scale.ARBITRARY.unit
    return Calibration(path=path, scale=Scale.ARBITRARY if is_arbitrary else Scale.METRIC, cameras=cameras)


def _camera(label: str, key: str, content: dict[str, object]) -> CalibratedCamera:
    table = validated(_CameraTable, content, label, key)
    name = key if table.name is None else table.name
    with error_context(label, name):
        distortion = fisheye(table.distortions) if table.fisheye else brown_conrady(table.distortions)
        rotation = rotation_from_vector(table.rotation)
    return make_camera(
        label,
        name,
        intrinsics=torch.tensor(table.matrix, dtype=torch.float64),
        world_to_camera=pose_matrix(rotation, table.translation),
        image_size=(table.size[1], table.size[0]),
        distortion=distortion,
        pixel_center=INTEGER_PIXEL_CENTER,
    )


def write(calibration: Calibration, path: Path) -> None:
    """Write static cameras atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    tables = []
    for index, camera in enumerate(calibration.cameras):
        assert camera.image_size is not None
        height, width = camera.image_size
        matrix = move_pixel_center(camera.intrinsics, PIXEL_CENTER, INTEGER_PIXEL_CENTER)
        lens = camera.distortion
        is_fisheye = lens is not None and lens.model is LensModel.FISHEYE
        coefficients = [] if lens is None else list(lens.coefficients)
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
    text = "\n\n".join("\n".join(table) for table in lines) + "\n"
    write_bytes_atomic(path, text.encode())
