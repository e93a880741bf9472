"""OpenCV files of EasyMocap and EasyVolcap, read and written: `intri.yml` and `extri.yml`, or both in one file.

The files declare no unit of length, so the scale is arbitrary.

Source: EasyMocap documentation, "camera parameters"; OpenCV documentation, "XML/YAML/JSON file storages".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError, UsageError, listed
from page4d.formats.build import (
    brown_conrady,
    is_rotation,
    make_camera,
    number_of,
    pose_matrix,
    rotation_of,
    whole_size,
)
from page4d.formats.camera_model import CORRECTION_HINT, CalibratedCamera, Calibration
from page4d.formats.files import check_count, error_context, read_document, unreadable
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import LensModel
from page4d.geometry.rotation import rotation_angle, rotation_vector_from_matrix
from page4d.io.atomic import write_bytes_atomic

_MAX_ROTATION_DIFFERENCE_RAD = 1e-3
"""Accepted difference of `R_` and `Rot_` of a camera, which are often written with few digits."""

_SUFFIXES = (".yml", ".yaml", ".json", ".xml")

_LENSES = "K_<camera>"
_POSES = "R_<camera> and T_<camera>"

Storage = dict[str, float | NDArray[np.float64] | Sequence[str]]
"""Entries of a file to write: numbers, matrices, and lists of names."""


@dataclass(frozen=True)
class _File:
    """A file that was read: its name and its top-level mapping."""

    name: str
    content: dict[str, object]

    @staticmethod
    def of(path: Path, content: object) -> "_File":
        """Make the record of a parsed document."""
        if not isinstance(content, dict):
            raise unreadable(path, "it is not a mapping")
        return _File(path.name, {str(key): value for key, value in content.items()})

    def matrix(self, keys: tuple[str, ...]) -> Tensor | None:
        """Return the matrix of the first key that exists, or None."""
        found = next((key for key in keys if key in self.content), None)
        return None if found is None else _matrix(self.content[found], found)

    def required(self, keys: tuple[str, ...]) -> Tensor:
        """Return the matrix of the first key that exists; raise InputError if none does."""
        matrix = self.matrix(keys)
        if matrix is None:
            raise InputError(f"{' or '.join(keys)} is missing in {self.name}", CORRECTION_HINT)
        return matrix


def lens_file(path: Path) -> Path:
    """Return the file of lenses that belongs to one of poses (`extri.yml`, `rot_trans_c0.dat`), else `path`."""
    if match := re.fullmatch(r"rot_trans_(.+)\.dat|(.+)_rot_trans\.dat", path.name):
        files = [path.with_name(f"{match[1] or match[2]}{end}.dat") for end in ("", "_intrinsics")]
        return next((file for file in files if file.is_file()), files[0])
    return _renamed(path, "extr", "intr")


def partner_of(path: Path) -> Path:
    """Return the other file of a pair `intri`, `extri`, which may not exist, or `path`."""
    lenses = lens_file(path)
    return lenses if lenses != path else _renamed(path, "intr", "extr")


def _renamed(path: Path, word: str, other: str) -> Path:
    """Replace a word in the name of a file by one of the same length; each letter keeps its case.

    If there is no such file, but one with another suffix, or in the only sibling folder whose name begins with the
    other word (`intrinsic/intr_1.xml`, `extrinsic/extr_1.xml`), that is returned.
    """

    def replaced(found: re.Match[str]) -> str:
        return "".join(new.upper() if old.isupper() else new for old, new in zip(found[0], other, strict=True))

    name = re.sub(rf"{word}(?=i|[^a-z])", replaced, path.name, flags=re.IGNORECASE)
    if name == path.name:
        return path
    files = [path.with_name(name), *(path.with_name(name).with_suffix(suffix) for suffix in _SUFFIXES)]
    if path.parent.name.lower().startswith(word):
        beside = [folder / name for folder in path.parent.parent.glob(f"{other}*") if (folder / name).is_file()]
        files += beside if len(beside) == 1 else []
    return next((file for file in files if file.is_file()), files[0])


def read(path: Path, content: object, poses: bool = True) -> Calibration:
    """Read a file with lenses and poses, or a pair of files whose names differ in `intri` and `extri`.

    Without `poses`, which are then the identity, a file of lenses is read alone.

    Raises:
        InputError: if a file is missing or damaged, or a camera is invalid.
    """
    named = _File.of(path, content)
    has_lenses = any(key.startswith("K_") for key in named.content)
    intrinsic = named if has_lenses else _partner(path, lens_file(path), _POSES, _LENSES)
    if not poses:
        return _calibration(path, intrinsic, None)
    has_poses = any(re.fullmatch(r"(R|Rot|T)_.+", key) for key in named.content)
    extrinsic = named if has_poses else _partner(path, _renamed(path, "intr", "extr"), _LENSES, _POSES)
    return _calibration(path, intrinsic, extrinsic)


def _partner(path: Path, partner: Path, has: str, lacks: str) -> _File:
    """Load the other file of a pair."""
    if partner == path:
        hint = "add them, or pass it as ⟨intrinsics⟩" if has == _LENSES else "add them"
        raise InputError(f"cannot read calibration '{path.name}': it has {has}, but not {lacks}", hint)
    if not partner.is_file():
        raise unreadable(path, f"{partner.name} is missing ({path.name} and {partner.name} belong together)")
    return _File.of(partner, read_document(partner))


def write(calibration: Calibration, path: Path) -> None:
    """Write the lenses and poses of static cameras in one file, which serves as `intri.yml` and as `extri.yml`.

    Raises:
        UsageError: if the format cannot hold a camera.
        OutputError: if the file cannot be written.
    """
    entries: Storage = {"names": [camera.name for camera in calibration.cameras]}
    for camera in calibration.cameras:
        name, lens, pose = camera.name, camera.distortion, camera.world_to_camera.numpy()
        assert camera.image_size is not None
        reason = "a name" if not re.fullmatch(r"[A-Za-z0-9_ -]+", name) else ""
        reason = reason or ("a fisheye lens" if lens is not None and lens.model is LensModel.FISHEYE else "")
        reason = reason or ("a skew" if float(camera.intrinsics[0, 1]) != 0 else "")
        if reason:
            raise UsageError(f"{name} has {reason} that OpenCV YAML cannot hold", "use ⟨format=page4d⟩")
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


def _calibration(path: Path, intrinsic: _File, extrinsic: _File | None) -> Calibration:
    files = [file for file in (intrinsic, extrinsic) if file is not None]
    label = "/".join(dict.fromkeys(file.name for file in files))
    names = _names(path, files)
    check_count(path, len(names))
    cameras = tuple(_camera(label, name, intrinsic, extrinsic) for name in names)
    notices = undistorted(intrinsic.name, [name for name in names if not _coefficients(name, intrinsic)])
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=cameras, notices=notices)


def undistorted(label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the notice for cameras of a file without distortion coefficients, which may lack for a reason."""
    return (f"{label} has no distortion of {listed(names)}: undistorted images are assumed",) if names else ()


def _names(path: Path, files: Sequence[_File]) -> list[str]:
    intrinsic, *_ = files
    for storage in files:
        listed = storage.content.get("names")
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            return [str(name) for name in listed]
    names = [key.removeprefix("K_") for key in intrinsic.content if key.startswith("K_")]
    if not names:
        raise unreadable(path, f"{intrinsic.name} has neither 'names' nor matrices K_<camera>")
    return names


def _camera(label: str, name: str, intrinsic: _File, extrinsic: _File | None) -> CalibratedCamera:
    with error_context(label, name):
        pose = torch.eye(4, dtype=torch.float64) if extrinsic is None else _pose(name, extrinsic)
        if f"K_{name}" not in intrinsic.content:
            raise InputError(f"K_{name} is missing in {intrinsic.name}", CORRECTION_HINT)
        return make_camera(
            label,
            name,
            intrinsics=numbers_of(intrinsic.content[f"K_{name}"], f"K_{name}", 3, 3),
            world_to_camera=pose,
            image_size=_image_size(name, intrinsic),
            distortion=brown_conrady(_coefficients(name, intrinsic)),
            pixel_center=_pixel_center(intrinsic),
        )


def _pose(name: str, extrinsic: _File) -> Tensor:
    translation = extrinsic.required((f"T_{name}",)).flatten().tolist()
    if len(translation) != 3:
        raise InputError(f"T_{name} has {len(translation)} numbers, expected 3", CORRECTION_HINT)
    return pose_matrix(_rotation(name, extrinsic), translation)


def _coefficients(name: str, intrinsic: _File) -> list[float]:
    """Return the distortion coefficients; none if the matrix is missing or, as OpenCV writes an absent one, empty."""
    key = next((key for key in intrinsic.content if re.fullmatch(_DISTORTION + re.escape(name), key)), "")
    given = intrinsic.content.get(key)
    if isinstance(given, dict) and given.get("data", []) == []:
        return []
    lens = intrinsic.matrix((key,))
    return [] if lens is None else [float(value) for value in lens.flatten()]


_DISTORTION = "(?i:d|dist(ortion)?(_?coeff?(s|icients)?)?)_"


def _rotation(name: str, extrinsic: _File) -> Tensor:
    """Return `Rot_` (a matrix) or `R_` (a Rodrigues vector, sometimes a matrix), which must agree if both exist."""
    found = []
    for key in (f"Rot_{name}", f"R_{name}"):
        value = extrinsic.matrix((key,))
        if value is None:
            continue
        if value.shape != (3, 3) and value.numel() != 3:
            raise InputError(f"{key} has shape {tuple(value.shape)}, expected (3, 3) or (3, 1)", CORRECTION_HINT)
        found.append(rotation_of(value.tolist()))
    if not found:
        raise InputError(f"R_{name} or Rot_{name} is missing in {extrinsic.name}", CORRECTION_HINT)
    # Invalid rotations are reported by the checks of CalibratedCamera.
    angle = float(rotation_angle(found[0], found[-1])) if is_rotation(found[0]) else 0.0
    if angle > _MAX_ROTATION_DIFFERENCE_RAD:
        raise InputError(f"R_{name} and Rot_{name} differ by {angle:.3g} rad", CORRECTION_HINT)
    return found[0]


def _image_size(name: str, intrinsic: _File) -> tuple[int, int] | None:
    keys = tuple(f"{letter}_{name}" for letter in "HW")
    missing = [key for key in keys if key not in intrinsic.content]
    if len(missing) == len(keys):
        return None
    if missing:
        raise InputError(f"{missing[0]} is missing in {intrinsic.name}", "give both sides of the image, or neither")
    return whole_size(*(number_of(intrinsic.content[key], key) for key in keys))


def _pixel_center(intrinsic: _File) -> float:
    """Return the coordinate of the top-left pixel's centre, which exports of page4d state: EasyVolcap's is 0.5."""
    center = number_of(intrinsic.content.get("pixel_center", str(INTEGER_PIXEL_CENTER)), "pixel_center")
    if center not in (INTEGER_PIXEL_CENTER, PIXEL_CENTER):
        raise InputError(f"pixel_center is {center:g}, expected 0 or 0.5", CORRECTION_HINT)
    return center


def _matrix(value: object, key: str) -> Tensor:
    """Build the matrix of an `!!opencv-matrix` node: rows, cols and row-major data."""
    if not isinstance(value, dict):
        raise InputError(f"{key} is not a matrix", CORRECTION_HINT)
    data = value.get("data")
    if not isinstance(data, list):
        raise InputError(f"{key} has no data", CORRECTION_HINT)
    numbers = torch.tensor([number_of(number, key) for number in data], dtype=torch.float64)
    rows, columns = (number_of(value.get(side), f"{key}.{side}") for side in ("rows", "cols"))
    if not (0 < rows <= len(data) and 0 < columns <= len(data) and int(rows) * int(columns) == len(data)):
        raise InputError(f"{key} has {len(data)} numbers for {rows:g}x{columns:g}", CORRECTION_HINT)
    return numbers.reshape(int(rows), int(columns))


def numbers_of(value: object, key: str, rows: int, columns: int) -> Tensor:
    """Build a matrix of known size from an `!!opencv-matrix` node, a list of numbers, or a list of rows."""
    if isinstance(value, list):
        flat = [number for row in value[: rows * columns + 1] for number in (row if isinstance(row, list) else [row])]
        value = {"rows": rows, "cols": columns, "data": flat}
    matrix = _matrix(value, key)
    if matrix.shape != (rows, columns):
        raise InputError(f"{key} has shape {tuple(matrix.shape)}, expected {(rows, columns)}", CORRECTION_HINT)
    return matrix
