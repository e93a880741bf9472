"""Tables of matrices, as tools on OpenCV write them: Kalibr, MC-Calib, multical, stereo pairs, cameras one by one.

They are documents of YAML, JSON or NPZ; readers of TOML and MAT files make such tables.

Pixels have the centre of the top-left one at (0, 0), as in OpenCV. Kalibr measures in metres, CMU Panoptic Studio in
centimetres; most other files do not state their unit.

Source: Kalibr wiki, "Yaml formats"; MC-Calib, `saveCamerasParams` and "Output explanation"; ROS,
`camera_calibration_parsers` and `sensor_msgs/distortion_models.hpp`; JARVIS-HybridNet, `calib_params`; OpenCV,
`stereoCalibrate`, `calibrateCamera` and samples/cpp/stereo_calib.cpp; Panoptic Studio toolbox,
`demo_3Dkeypoints_reprojection_hd.ipynb`; `calibration_full.json` of AvatarReX; AIST++, `aist_plusplus/loader.py`;
WILDTRACK, `calibrations/` (`intr_CVLab1.xml`, `extr_CVLab1.xml`); multical, `io/export_calib.py` and
`io/import_calib.py`; XRPrimer, `data_structure/camera`; InterHand2.6M, README; NeuS, README, "Data Convention".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from page4d.conventions import Scale
from page4d.errors import InputError, listed
from page4d.formats.build import numbers_of
from page4d.formats.camera_model import CORRECTION_HINT, METRES, Calibration
from page4d.formats.camera_table import (
    DISTORTION,
    LENS_WORD,
    MATRIX_WORD,
    MOST_NUMBERS,
    OF_LENS,
    PLACE_WORD,
    PROPERTY,
    ROTATION,
    TRANSLATION,
    coefficients_of,
    facts_of,
    find_value,
    has_pose,
    joined_table,
    lens_numbers,
    table_camera,
    unit_of,
)
from page4d.formats.files import check_count, error_context, partner_of, read_document, undistorted, unreadable
from page4d.formats.table import CAMERA_MATRIX
from page4d.geometry.transforms import invert_rigid
from page4d.io.input_files import natural_key


def read_kalibr(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read a camera chain; the world is the first camera, or the IMU where the file has poses to it alone.

    `T_cn_cnm1` maps the previous camera to a camera, `T_cam_imu` the IMU to it, `T_imu_cam` of OpenVINS the reverse.
    """
    tables = [
        (str(key), table) for key, table in content.items() if isinstance(table, dict) and "camera_model" in table
    ]
    if all(re.fullmatch(r"\D*\d+", key) for key, _ in tables):  # Kalibr sorts names as text: cam10 precedes cam2
        tables.sort(key=lambda item: natural_key(item[0]))
    has_imu_alone = all({"T_cam_imu", "T_imu_cam"} & {*table} and "T_cn_cnm1" not in table for _, table in tables)
    placed: dict[str, dict[str, Any]] = {}
    pose = torch.eye(4, dtype=torch.float64)
    for key, table in tables:
        with error_context(path.name, key):
            if "T_cn_cnm1" in table:
                pose = numbers_of(table["T_cn_cnm1"], "T_cn_cnm1", 4, 4) @ pose
            elif has_imu_alone and "T_cam_imu" in table:
                pose = numbers_of(table["T_cam_imu"], "T_cam_imu", 4, 4)
            elif has_imu_alone:
                pose = invert_rigid(numbers_of(table["T_imu_cam"], "T_imu_cam", 4, 4))
            elif placed and poses:
                raise InputError("T_cn_cnm1 is missing", "calibrate the cameras together, or pass ⟨intrinsics⟩")
        placed[key] = {"distortion_model": "none", **table, "w2c": pose.tolist()}
    return replace(read_tables(path, placed, poses), scale=Scale.METRIC, notices=())


def read_multical(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read `calibration.json`; the pose `cam2_to_cam1` maps the rig, which is then cam1, to cam2.

    Cameras without a pose are left out with a notice.
    """
    given, placed = content.get("cameras"), content.get("camera_poses", {})
    if not isinstance(given, dict) or not isinstance(placed, dict):
        raise unreadable(path, "its cameras or camera_poses are not an object")
    check_count(path, len(given))
    pose_of = {key.partition("_to_")[0] if key not in given else key: value for key, value in placed.items()}
    masters = {key.partition("_to_")[2] for key in placed if key not in given}
    if len(masters) > 1:
        raise unreadable(path, f"its poses are relative to {len(masters)} cameras: {listed(sorted(masters))}")
    known = [name for name in given if name in pose_of or not poses]
    if not known:
        raise InputError(f"'{path.name}' has no camera_poses", "pass it as ⟨intrinsics⟩")
    parts = [(given[name], pose_of[name] if poses else {}) for name in known]
    if not all(isinstance(part, dict) for pair in parts for part in pair):
        raise unreadable(path, "a camera or its pose is not an object")
    tables = {
        name: {**lens, **pose, "distortion_model": "fisheye" if lens.get("model") == "fisheye" else "none"}
        for name, (lens, pose) in zip(known, parts, strict=True)
    }
    left_out = [name for name in given if name not in known]
    notices = (f"{path.name}: {listed(left_out)} left out: without a pose",) if left_out else ()
    return replace(read_tables(path, tables, poses), notices=notices)


def read_single_cameras(
    path: Path, content: dict[str, Any] | list[tuple[Path, dict[str, Any]]], poses: bool = True
) -> Calibration:
    """Read a camera, or several files of one each, of ROS, OpenCV's calibration sample, EuRoC, OpenPose or JARVIS.

    Poses are R and T: x_camera = R x + T, also in a second file (`intr_1.xml`, `extr_1.xml`). Without `camera_name`,
    or if several files have the same one, as ROS writes them, cameras have the names of files.
    """
    if isinstance(content, dict):
        if _number_of_matrices(content) or _are_placed(by_property(content), poses):
            return read_tables(path, content, poses)
        pair = {key: table for key, table in content.items() if isinstance(table, dict) and re.fullmatch(_SIDE, key)}
        if len(pair) == 2:
            flat = {f"{side}_{key}": value for side, table in pair.items() for key, value in table.items()}
            return read_stereo(path, content | flat, poses)
    files = content if isinstance(content, list) else [(path, content)]
    check_count(path, len(files))
    files = [(file, table if _is_whole(table, poses) else _with_partner(file, table)) for file, table in files]
    first = files[0][1]
    if _sides(first, _STEREO_LENS):  # `extrinsics.yml`
        return read_stereo(path, first, poses)
    if "Intrinsics" in first and all(table.get("CameraMatrix") == first.get("CameraMatrix") for _, table in files):
        files = [(file, {**table, "CameraMatrix": None}) for file, table in files]  # poses that were not calibrated
    given = [str(table.get("camera_name") or "") for _, table in files]
    is_below = len({file.name for file, _ in files}) < len(files)  # cam0/sensor.yaml, cam1/sensor.yaml
    own = _own_parts([_HALF.sub("", file.parent.name if is_below else file.name) for file, _ in files])
    names = [name if name and given.count(name) == 1 else part for name, part in zip(given, own, strict=True)]
    cameras = tuple(table_camera(file, name, table, poses) for name, (file, table) in zip(names, files, strict=True))
    plain = [camera.name for camera, (_, table) in zip(cameras, files, strict=True) if not coefficients_of(table)]
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=cameras, notices=undistorted(path.name, plain))


def _is_whole(table: Mapping[str, Any], poses: bool) -> bool:
    return lens_numbers(table) is not None and (not poses or has_pose(table))


def _with_partner(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Add the content of the other file of a pair `intri`, `extri`, if there is one."""
    partner = partner_of(path)
    other = read_document(partner) if partner != path and partner.is_file() else None
    return other | table if isinstance(other, dict) else table


_HALF = re.compile(
    r"(?i)^(in|ex)tri?(nsics?)?[ _.-]+|[ _.-]+(in|ex)tri?(nsics?)?(?=\.\w+$)|^rot_trans_|(_rot_trans|_cam)(?=\.)"
)
"""The part of a file name that is not common to lenses and poses."""


def read_tables(path: Path, content: dict[str, Any] | list[Any], poses: bool = True) -> Calibration:
    """Read a table per camera, in a list or by name, at the top or below `cameras`, or arrays of all cameras.

    Poses are R and T, or a matrix named as that of the world to the camera, or the reverse. Unit and convention
    may be stated for all cameras; CMU Panoptic Studio, with `panel` and `node`, has centimetres. Cameras of a list
    without names are in the order of the views.
    """
    given = _by_camera(content) if isinstance(content, dict) else content
    facts = facts_of(content) if isinstance(content, dict) else {}
    pairs = given.items() if isinstance(given, dict) else enumerate(given, start=1)
    items = [(str(key), table) for key, table in pairs if isinstance(table, dict)]
    check_count(path, len(items))
    tables: dict[str, dict[str, Any]] = {}
    for key, table in items:
        with error_context(path.name, key):
            tables[key] = facts | joined_table(table)
    if isinstance(given, dict):  # others describe no camera
        tables = {key: table for key, table in tables.items() if lens_numbers(table) is not None or has_pose(table)}
    names, unnamed = [*tables], False
    if isinstance(given, list):
        own = _own_names([*tables.values()])
        unnamed = not own or {*own} in ({*map(str, range(n, n + len(own)))} for n in (0, 1))
        if own and unnamed:
            tables = {name: tables[names[own.index(name)]] for name in sorted(own, key=int)}
        names = [str(n + 1) for n in range(len(tables))] if unnamed else own
    groups = {str(table.get("camera_group")) for table in tables.values()}
    if poses and len(groups) > 1:  # of MC-Calib
        raise unreadable(path, f"its cameras form {len(groups)} groups without common poses")
    units = {"cm" if {"panel", "node"} <= {*table} else unit_of(table) for table in tables.values()}
    if poses and len(stated := sorted(filter(None, units))) > 1:
        raise InputError(f"{path.name}: its cameras have different units: {listed(stated)}", CORRECTION_HINT)
    unit = units.pop() if len(units) == 1 else None
    cameras = tuple(
        table_camera(path, name, table, poses, METRES[unit] if unit else 1.0)
        for name, table in zip(names, tables.values(), strict=True)
    )
    if not cameras and isinstance(content, dict) and lens_numbers(content) is not None:
        return read_single_cameras(path, content, poses)
    if not cameras:
        raise unreadable(path, "none of its tables has a camera matrix")
    plain = [name for name, table in zip(names, tables.values(), strict=True) if not coefficients_of(table)]
    return Calibration(
        path=path,
        scale=Scale.METRIC if unit else Scale.ARBITRARY,
        cameras=cameras,
        file_unit=unit,
        unnamed=unnamed,
        notices=undistorted(path.name, plain),
    )


def _by_camera(content: dict[str, Any]) -> dict[str, Any] | list[Any]:
    """Return the tables of a document; properties may also be those of all cameras, by name or stacked in arrays."""
    given = content.get("cameras")
    given = given if isinstance(given, dict | list) else content
    if isinstance(given, dict) and (tables := by_property(given)):
        return dict(tables)
    number = _number_of_matrices(content)
    if not number:
        return given if isinstance(given, list) else dict(given)
    # What is not one array per camera, such as a size, is common.
    stacked = {
        key: value
        for key, value in content.items()
        if isinstance(value, list) and len(value) == number and (isinstance(value[0], list) or key.lower() in _IDS)
    }
    common = {key: value for key, value in content.items() if key not in stacked}
    rows = [{key: value[place] for key, value in stacked.items()} for place in range(number)]
    names = [next((str(value) for key, value in row.items() if key.lower() in _IDS), None) for row in rows]
    return [common | row | ({} if name is None else {"name": name}) for name, row in zip(names, rows, strict=True)]


def by_property(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a table per camera of properties by camera: `{"K": {"cam1": ...}}`, `K_cam1` or `cam1_K`.

    Every table has a lens, which may be common to all, as distortion and size may be. {} for other documents.
    """
    of_cameras = {
        key: value
        for key, value in content.items()
        if isinstance(value, dict)
        and PROPERTY.fullmatch(key)
        and all(isinstance(one, dict | list) and not PROPERTY.fullmatch(name) for name, one in value.items())
    }
    common = {key: value for key, value in content.items() if key not in of_cameras and OF_LENS.fullmatch(key)}
    tables: dict[str, dict[str, Any]] = {}
    if of_cameras:
        for key, value in of_cameras.items():
            for camera, one in value.items():
                tables.setdefault(camera, {})[key] = one
    elif not any(map(LENS_WORD.fullmatch, common)) and find_value(content, ROTATION) is None:
        # Otherwise a pair, whose R_left is that of a rectification.
        names = [
            key
            for key, value in content.items()
            if not PROPERTY.fullmatch(key) and (not isinstance(value, dict) or "data" in value)
        ]
        # A camera may have the name of a property (K_P, R_P), and P_rect_01 may be given next to K_01.
        for lens, is_first in ((MATRIX_WORD, True), (MATRIX_WORD, False), (LENS_WORD, True), (LENS_WORD, False)):
            cuts = [(key, *cut) for key in names for cut in _cuts(key, is_first)]
            tables = {camera: {} for _, word, camera in cuts if lens.fullmatch(word)}
            for key, word, camera in cuts:
                is_value = isinstance(content[key], dict | list) or word.lower() in ("h", "w", "height", "width")
                if camera in tables and PROPERTY.fullmatch(word) and is_value:
                    tables[camera][word] = content[key]
            if tables:
                break
    tables = {camera: common | table for camera, table in tables.items()}
    return {camera: table for camera, table in tables.items() if any(map(LENS_WORD.fullmatch, table))}


def _cuts(key: str, is_first: bool) -> Iterator[tuple[str, str]]:
    """Yield the words before (`is_first`) or after every underscore of a key, and the rest of it."""
    for match in re.finditer("_", key[:MOST_NUMBERS]):
        left, right = key[: match.start()], key[match.end() :]
        yield (left, right) if is_first else (right, left)


def _are_placed(tables: Mapping[str, Mapping[str, Any]], poses: bool) -> bool:
    """Return whether there are several cameras, all placed if poses are needed; R alone may be a rectification."""
    return len(tables) > 1 and all(not poses or any(map(PLACE_WORD.fullmatch, table)) for table in tables.values())


_IDS = frozenset({"ids", "names", "camera_ids", "camera_names", "cam_ids", "cam_names"})


def _number_of_matrices(content: Mapping[str, Any]) -> int:
    """Return the number of camera matrices of an array [N, 3, 3]; 0 for a single one."""
    given = lens_numbers(content)
    is_stack = isinstance(given, list) and all(isinstance(item, list) and len(item) == 3 for item in given)
    return len(given) if is_stack and all(isinstance(row, list) for item in given for row in item) else 0


_NAME = re.compile(r"(cam(era)?_?)?(name|label|id|uid|serial(_?(no|number))?)")


def _own_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of cameras, or else their identities or serial numbers; none if these are not distinct."""
    for key in sorted(filter(_NAME.fullmatch, tables[0] if tables else ()), key=lambda key: "name" not in key):
        own = [str(table[key]) for table in tables if key in table]
        if len({*own}) == len(tables):
            return own
    return []


def _own_parts(names: Sequence[str]) -> list[str]:
    """Return the first part between dots that all names of files have and that differs, or whole names."""
    parts = zip(*(name.split(".") for name in names), strict=False)  # names may have several dots
    return list(next((part for part in parts if len({*part}) == len(names)), names))


def read_stereo(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read a stereo pair: M1 D1 M2 D2 R T in one file, or in two as `intrinsics.yml` and `extrinsics.yml`.

    The file names no cameras, the world is the first one: x2 = R x1 + T.
    """
    if _are_placed(by_property(content), True):
        return read_tables(path, content, poses)
    is_half = not _sides(content, _STEREO_LENS) or find_value(content, ROTATION) is None
    table = _with_partner(path, content) if is_half else content
    matrices, coefficients = (_sides(table, pattern) for pattern in (_STEREO_LENS, _STEREO_DISTORTION))
    for side in (0, 1):
        if side not in matrices or (coefficients and side not in coefficients):
            what = "distortion D" if side in matrices else "camera matrix M"
            raise InputError(f"{path.name}: camera {side + 1}: the {what}{side + 1} is missing", CORRECTION_HINT)
    pose = {key: value for key, value in table.items() if ROTATION.fullmatch(key) or TRANSLATION.fullmatch(key)}
    first = {"R": torch.eye(3).tolist(), "T": [0.0, 0.0, 0.0]}
    tables = [
        facts_of(table) | {"K": matrices[side], "D": coefficients.get(side, [])} | each
        for side, each in enumerate((first, pose))
    ]
    return read_tables(path, tables, poses)


_SIDE = "(?i:(0|1|2|l|r|left|right))"
_STEREO_LENS, _STEREO_DISTORTION = (
    re.compile(rf"(?:{word})_?{_SIDE}|{_SIDE}[_.]?(?:{word})")
    for word in (f"[MK]|{CAMERA_MATRIX}", DISTORTION.pattern)
)


def _sides(table: Mapping[str, object], pattern: re.Pattern[str]) -> dict[int, object]:
    """Return the values of the first (0) and the second camera (1), which are numbered from 0 or 1."""
    matches = ((pattern.fullmatch(key), value) for key, value in table.items())
    found = {(match[1] or match[2]).lower(): value for match, value in matches if match is not None}
    first = 0 if "0" in found else 1
    names = {str(first): 0, "l": 0, "left": 0, str(first + 1): 1, "r": 1, "right": 1}
    return {names[side]: value for side, value in found.items() if side in names}
