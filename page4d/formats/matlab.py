"""MAT files of MATLAB: cameras of Label3D and DANNCE, of MATLAB's calibrators and of Bouguet's toolbox.

MATLAB multiplies rows: x_camera = x R + t and x_image = x_camera K, and the centre of its top-left pixel is (1, 1).
Bouguet's toolbox has the conventions of OpenCV.

Source: MathWorks documentation of `cameraParameters`, `stereoParameters` and `toStruct`; DANNCE, `engine/ops.py` and
`utils/convertCalibration.m`, and its demo files; Bouguet, "Description of the calibration parameters".
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from page4d.errors import InputError
from page4d.formats.build import numbers_of
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.files import error_context
from page4d.formats.opencv_rigs import read_single_cameras, read_stereo, read_tables

_Table = Mapping[str, Any]


def read(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read cameras of Label3D (`params`, `camnames`), or a stereo pair, also one below the name of a variable."""
    if "params" in content:
        given, names = content["params"], content.get("camnames")
        names = names if isinstance(names, list) and len(names) == len(given) else [None] * len(given)
        tables = [
            _of_matlab(path, str(name or number), table) | ({"name": name} if isinstance(name, str) else {})
            for number, (name, table) in enumerate(zip(names, given, strict=True), start=1)
        ]
        return read_tables(path, tables, poses)
    if "fc_left" in content:
        pair = [_of_bouguet(path, end, content) for end in ("_left", "_right")]
        turn, shift = content.get("R", content.get("om")), content.get("T")
    else:
        pair_of = next(table for table in (content, *content.values()) if "CameraParameters1" in table)
        pair = [_of_matlab(path, str(side), pair_of.get(f"CameraParameters{side}")) for side in (1, 2)]
        turn = pair_of.get("RotationOfCamera2")
        turn, shift = _transposed(turn, "RotationOfCamera2") if turn else None, pair_of.get("TranslationOfCamera2")
    table = {
        f"{key}{side}": one[old] for side, one in enumerate(pair, start=1) for key, old in (("M", "K"), ("D", "D"))
    }
    poses_found = {key: value for key, value in (("R", turn), ("T", shift)) if value is not None}
    return read_stereo(path, pair[0] | table | poses_found, poses)


def read_lenses(
    path: Path, content: dict[str, Any] | list[tuple[Path, dict[str, Any]]], poses: bool = True
) -> Calibration:
    """Read a camera, or several files of one each: K, r, t of DANNCE, `cameraParameters`, or `Calib_Results.mat`."""
    files = content if isinstance(content, list) else [(path, content)]
    read_files = []
    for file, variables in files:
        table = next(
            (one for one in (variables, *variables.values()) if isinstance(one, dict) and _RADIAL & {*one}), variables
        )
        is_bouguet = "kc" in table
        read_files.append((file, _of_bouguet(file, "", table) if is_bouguet else _of_matlab(file, file.stem, table)))
    return read_single_cameras(path, read_files, poses)


_RADIAL = frozenset({"RDistort", "RadialDistortion"})


def _of_matlab(path: Path, name: str, table: Any) -> dict[str, Any]:
    """Return a camera as that of OpenCV: matrices for columns, integer pixel centres."""
    with error_context(path.name, name):
        if not isinstance(table, dict):
            raise InputError("it is not a struct", CORRECTION_HINT)
        given = table.get("IntrinsicMatrix", table.get("K"))
        matrix = numbers_of(given, "K", 3, 3)
        if matrix[2, :2].any():
            matrix = matrix.T.clone()
        elif "RDistort" in table:  # r has the form of K
            raise InputError("K is not that of MATLAB, with the principal point in its last row", CORRECTION_HINT)
        matrix[:2, 2] -= 1
        radial, tangential = (
            _numbers(table.get(first, table.get(second))) for first, second in
            (("RDistort", "RadialDistortion"), ("TDistort", "TangentialDistortion"))
        )  # fmt: skip
        camera: dict[str, Any] = {
            "K": matrix.tolist(),
            "D": [*(radial + [0.0] * 2)[:2], *(tangential + [0.0] * 2)[:2]],
        }
        camera["D"] += radial[2:] or [0.0]
        if {"r", "t"} <= {*table}:
            camera |= {"R": _transposed(table["r"], "r"), "T": table["t"]}
        size = _numbers(table.get("ImageSize"))
        return camera | ({"image_size": size[1::-1]} if len(size) >= 2 else {})


def _of_bouguet(path: Path, end: str, table: _Table) -> dict[str, Any]:
    with error_context(path.name, end.strip("_") or path.stem):
        (fx, fy), (cx, cy) = (
            numbers_of(table.get(f"{key}{end}"), f"{key}{end}", 1, 2)[0].tolist() for key in ("fc", "cc")
        )
        skew = _numbers(table.get(f"alpha_c{end}")) or [0.0]
        camera = {"K": [[fx, skew[0] * fx, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]], "D": _numbers(table.get(f"kc{end}"))}
        return camera | ({"image_size": [table["nx"], table["ny"]]} if {"nx", "ny"} <= {*table} else {})


def _transposed(value: object, key: str) -> list[list[float]]:
    return numbers_of(value, key, 3, 3).T.tolist()


def _numbers(value: object) -> list[float]:
    """Return the numbers of a vector or a scalar; none for what is no array of numbers."""
    return value if isinstance(value, list) else [value] if isinstance(value, float) else []
