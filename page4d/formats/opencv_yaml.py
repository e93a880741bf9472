"""OpenCV files of EasyMocap and EasyVolcap, read and written: `intri.yml` and `extri.yml`, or both in one file.

The files declare no unit of length, so the scale is arbitrary.

Source: EasyMocap documentation, "camera parameters"; OpenCV documentation, "XML/YAML/JSON file storages".
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError
from page4d.formats import files
from page4d.formats.build import matrix_of
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.camera_table import coefficients_of, table_camera
from page4d.formats.opencv_rigs import by_property
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.rotation import rotation_vector_from_matrix
from page4d.io.atomic import write_bytes_atomic

_LENSES, _POSES = "K_<camera>", "R_<camera> and T_<camera>"

Storage = dict[str, float | NDArray[np.float64] | Sequence[str]]
"""Entries of a file to write: numbers, matrices, and lists of names."""


def read(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read K_<camera>, R_<camera>, T_<camera> and more of a file, or of a pair whose names have intri and extri."""
    found, label = {str(key): value for key, value in content.items()}, path
    is_first = any(re.fullmatch("(K|R|Rot|T|world_mat)_.+", key) for key in found)
    lens, pose = ("(K|world_mat)_.+", "(R|Rot|T|world_mat)_.+") if is_first else (".+_K", ".+_(R|Rt|T)")
    halves = {_LENSES: lens, _POSES: pose}
    lacks = [what for what, keys in halves.items() if not any(re.fullmatch(keys, key) for key in found)]
    if lacks and (poses or lacks != [_POSES]):
        partner, has = files.partner_of(path), next((what for what in halves if what not in lacks), lacks[0])
        if partner == path:
            hint = "add them, or pass it as ⟨intrinsics⟩" if has == _LENSES else "add them"
            raise InputError(f"cannot read calibration '{path.name}': it has {has}, but not {lacks[0]}", hint)
        if not partner.is_file():
            raise files.unreadable(
                path, f"{partner.name} is missing ({path.name} and {partner.name} belong together)"
            )
        other = files.read_document(partner)
        other = {str(key): value for key, value in other.items()} if isinstance(other, dict) else {}
        lenses, placed = (other, found) if _LENSES in lacks else (found, other)
        found = lenses | placed | lenses  # in the order of the lenses
        label = path.with_name(" and ".join(sorted((path.name, partner.name), key=str.lower, reverse=True)))
    tables = by_property(found)
    listed_names = found.get("names")
    is_list = isinstance(listed_names, list) and all(isinstance(name, str) for name in listed_names)
    names = listed_names if is_list else [*tables]
    if not names:
        raise files.unreadable(path, "it has neither 'names' nor matrices K_<camera>")
    files.check_count(path, len(names))
    facts = {"distortion_model": "none", "pixel_center": found.get("pixel_center", 0)}
    cameras, plain = [], []
    for name in names:
        table = tables.get(name, {})
        with files.error_context(label.name, name):
            for key, value in table.items():
                if isinstance(value, dict) and value.get("data"):
                    table[key] = matrix_of(value, f"{key}_{name}").tolist()
            if not table:
                raise InputError(f"K_{name} is missing", CORRECTION_HINT)
        cameras.append(table_camera(label, name, facts | table, poses))
        plain += [] if coefficients_of(table) else [name]
    notices = files.undistorted(files.lens_file(path).name, plain)
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=tuple(cameras), notices=notices)


def write(calibration: Calibration, path: Path) -> None:
    """Write the lenses and poses of static cameras in one file, which serves as `intri.yml` and as `extri.yml`."""
    entries: Storage = {"names": [camera.name for camera in calibration.cameras]}
    for camera in calibration.cameras:
        name, lens, pose = camera.name, camera.distortion, camera.world_to_camera.numpy()
        assert camera.image_size is not None
        coefficients = () if lens is None else lens.coefficients
        entries |= {
            f"K_{name}": move_pixel_center(camera.intrinsics, PIXEL_CENTER, INTEGER_PIXEL_CENTER).numpy(),
            f"dist_{name}": np.array([*coefficients, *[0.0] * (5 - len(coefficients))]).reshape(-1, 1),
            f"H_{name}": camera.image_size[0],
            f"W_{name}": camera.image_size[1],
            f"R_{name}": rotation_vector_from_matrix(camera.world_to_camera[:3, :3]).numpy().reshape(3, 1),
            f"Rot_{name}": pose[:3, :3],
            f"T_{name}": pose[:3, 3:],
        }
    write_bytes_atomic(path, encode_storage(entries))


def encode_storage(entries: Storage) -> bytes:
    """Return the content of a file, with the shortest numbers that read back exactly."""
    return ("%YAML:1.0\n---\n" + "".join(_node(key, value) for key, value in entries.items())).encode()


def _node(key: str, value: float | NDArray[np.float64] | Sequence[str]) -> str:
    if isinstance(value, np.ndarray):
        rows, columns = value.shape
        data = ", ".join(repr(float(number)) for number in value.reshape(-1))
        return f"{key}: !!opencv-matrix\n  rows: {rows}\n  cols: {columns}\n  dt: d\n  data: [{data}]\n"
    if isinstance(value, Sequence):
        return f"{key}:\n" + "".join(f'  - "{name}"\n' for name in value)
    return f"{key}: {float(value)!r}\n"
