"""TOML of Pose2Sim, Anipose and Caliscope: one table per camera.

The files declare no unit: Pose2Sim writes metres, Anipose usually millimetres. Metres are assumed, except in files of
page4d, which state the unit under `[metadata]`. The quarter turns `rotation_count` of Caliscope apply to its
display alone.

Source: user guides of Pose2Sim and Anipose, "calibration"; Caliscope, `cameras/camera_array.py`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError, listed
from page4d.formats.camera_model import CalibratedCamera, Calibration
from page4d.formats.camera_table import table_camera
from page4d.formats.files import check_count
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import LensModel
from page4d.geometry.rotation import rotation_vector_from_matrix
from page4d.io.atomic import write_bytes_atomic
from page4d.io.json_records import readable

_COEFFICIENTS = 5
"""Coefficients k1 k2 p1 p2 k3 that Anipose and Caliscope read; more are written only where they are not zero."""

_CAMERA_KEYS = frozenset({"matrix", "rotation", "translation"})


def read(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read a parsed file; tables without camera keys, such as `[metadata]`, are ignored.

    The tables of a Caliscope file are below `[cameras]`. Cameras without a lens, without a pose or with `ignore` are
    left out with a notice.
    """
    nested = content.get("cameras")
    # Caliscope numbers its cameras, and calls their videos cam_0.
    named = {f"cam_{key}": table for key, table in nested.items()} if isinstance(nested, dict) else content
    tables = {
        # Caliscope writes "null" for values that it does not know.
        key: {name: value for name, value in table.items() if value != "null"}
        for key, table in named.items()
        if isinstance(table, dict) and _CAMERA_KEYS & set(table)
    }
    check_count(path, len(tables))
    needed = _CAMERA_KEYS if poses else {"matrix"}
    known = {key: table for key, table in tables.items() if needed <= set(table) and table.get("ignore") is not True}
    if not known:
        hint = "finish the calibration, or pass the file as ⟨intrinsics⟩" if poses else "calibrate the cameras"
        raise InputError(
            f"cannot read calibration '{path.name}': no camera has all of {listed(sorted(needed))}", hint
        )
    cameras = []
    for key, table in known.items():
        name = str(table.get("name", key))
        cameras.append(table_camera(path, name, {"fisheye": False, **table}, poses))
    left_out = [key for key in tables if key not in known]
    notice = f"{path.name}: {listed(left_out)} left out: not calibrated completely, or marked with 'ignore'"
    metadata = content.get("metadata")
    unit = metadata.get("unit") if isinstance(metadata, dict) else None
    return Calibration(
        path=path,
        scale=Scale.ARBITRARY if unit == Scale.ARBITRARY.unit else Scale.METRIC,
        file_unit="m" if unit == Scale.METRIC.unit else None,
        cameras=tuple(cameras),
        notices=(notice,) if left_out else (),
    )


def write(calibration: Calibration, path: Path) -> None:
    """Write static cameras as Anipose's TOML atomically."""
    tables = [(f"cam_{index}", _table_of(camera)) for index, camera in enumerate(calibration.cameras)]
    tables.append(("metadata", {"adjusted": True, "error": 0.0, "unit": calibration.scale.unit}))
    _write_tables(path, tables)


def write_caliscope(calibration: Calibration, path: Path) -> None:
    """Write static cameras as Caliscope's `camera_array.toml` atomically.

    Caliscope numbers its cameras: cameras whose names are `cam_<number>` keep their numbers, others are counted.
    """
    named = [re.fullmatch(r"cam_(0|[1-9]\d*)", camera.name) for camera in calibration.cameras]
    numbers = [int(found[1]) for found in named if found is not None]
    if len(numbers) < len(named):
        numbers = list(range(len(named)))
    tables = [
        (f"cameras.{number}", {"cam_id": number, "rotation_count": 0, "ignore": False, **_table_of(camera)})
        for number, camera in zip(numbers, calibration.cameras, strict=True)
    ]
    _write_tables(path, [*tables, ("metadata", {"unit": calibration.scale.unit})])


def _table_of(camera: CalibratedCamera) -> dict[str, object]:
    assert camera.image_size is not None
    height, width = camera.image_size
    lens = camera.distortion
    is_fisheye = lens is not None and lens.model is LensModel.FISHEYE
    coefficients = [] if lens is None else list(lens.coefficients)
    if not is_fisheye:
        count = _COEFFICIENTS if not any(coefficients[_COEFFICIENTS:]) else 8
        coefficients = (coefficients + [0.0] * count)[:count]
    return {
        "name": readable(camera.name),
        "size": [width, height],
        "matrix": move_pixel_center(camera.intrinsics, PIXEL_CENTER, INTEGER_PIXEL_CENTER).tolist(),
        "distortions": coefficients,
        "rotation": rotation_vector_from_matrix(camera.world_to_camera[:3, :3]).tolist(),
        "translation": camera.world_to_camera[:3, 3].tolist(),
        "fisheye": is_fisheye,
    }


def _write_tables(path: Path, tables: Sequence[tuple[str, dict[str, object]]]) -> None:
    # Lists, numbers, truth values and strings without surrogates have the same form in TOML and JSON.
    lines = [
        [f"[{name}]", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())]
        for name, fields in tables
    ]
    text = "\n\n".join("\n".join(table) for table in lines) + "\n"
    write_bytes_atomic(path, text.encode())
