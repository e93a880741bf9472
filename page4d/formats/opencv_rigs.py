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

import scipy.linalg
import torch
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER, PIXEL_CENTER, Scale
from page4d.errors import InputError, listed, shortened
from page4d.formats.build import (
    brown_conrady,
    fisheye,
    is_rotation,
    make_camera,
    number_of,
    numbers_of,
    pinhole,
    pose_matrix,
    rotation_of,
    whole_size,
)
from page4d.formats.camera_model import CORRECTION_HINT, CalibratedCamera, Calibration
from page4d.formats.files import check_count, error_context, partner_of, read_document, undistorted, unreadable
from page4d.formats.table import CAMERA_MATRIX
from page4d.geometry.distortion import Distortion
from page4d.geometry.rotation import matrix_from_quaternion
from page4d.geometry.transforms import invert_rigid
from page4d.io.input_files import natural_key

_FISHEYE_MODELS = frozenset("equidistant equi fisheye opencvfisheye kannalabrandt kannalabrandtk kb".split())
_NAMED_BROWN = frozenset("radtan radialtangential plumbbob brown brownconrady opencv fullopencv".split())
_RADIAL_MODELS = frozenset("polynomial simpleradial radial".split())
_BROWN_CONRADY_MODELS = (
    _NAMED_BROWN
    | _RADIAL_MODELS
    | frozenset("rationalpolynomial rational standard none pinhole simplepinhole".split())
)
_OTHER_MODELS = frozenset(
    "omni omnidirectional mei ds doublesphere eucm ucm unified fov division ocam scaramuzza ftheta spherical "
    "equirectangular thinprismfisheye inversebrownconrady modifiedbrownconrady".split()
)
"""Names of lens models, without punctuation and numbers."""

_MODEL_HINT = "calibrate with a pinhole camera and radial-tangential or equidistant (fisheye) distortion"


def read_kalibr(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read a camera chain; the world is the first camera, or the IMU where the file has poses to it alone.

    `T_cn_cnm1` maps the previous camera to a camera, `T_cam_imu` the IMU to it, `T_imu_cam` of OpenVINS the reverse.

    Raises:
        InputError: if a camera is invalid, of a model that is not supported, or without a pose.
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

    Raises:
        InputError: if a camera is invalid, none has a pose, or poses are relative to different cameras.
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

    Raises:
        InputError: if a camera is invalid, or has no pose and `poses` are needed.
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
    own = _own_parts([_HALF.sub("", file.name) for file, _ in files])
    names = [name if name and given.count(name) == 1 else part for name, part in zip(given, own, strict=True)]
    cameras = tuple(table_camera(file, name, table, poses) for name, (file, table) in zip(names, files, strict=True))
    plain = [camera.name for camera, (_, table) in zip(cameras, files, strict=True) if not coefficients_of(table)]
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=cameras, notices=undistorted(path.name, plain))


def _is_whole(table: Mapping[str, Any], poses: bool) -> bool:
    return _lens_numbers(_lowered(table)) is not None and (not poses or _has_pose(table))


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

    Raises:
        InputError: if a camera is invalid, or has no pose and `poses` are needed.
    """
    given = _by_camera(content) if isinstance(content, dict) else content
    facts = _lowered(content if isinstance(content, dict) else {})
    facts = {key: value for key, value in facts.items() if key in _FACTS}
    pairs = given.items() if isinstance(given, dict) else enumerate(given, start=1)
    items = [(str(key), table) for key, table in pairs if isinstance(table, dict)]
    check_count(path, len(items))
    tables: dict[str, dict[str, Any]] = {}
    for key, table in items:
        with error_context(path.name, key):
            tables[key] = facts | _joined(table)
    if isinstance(given, dict):  # others describe no camera
        tables = {key: table for key, table in tables.items() if _lens_numbers(table) is not None or _has_pose(table)}
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
    units = {"cm" if {"panel", "node"} <= {*table} else _unit(table) for table in tables.values()}
    unit = units.pop() if len(units) == 1 else None
    cameras = tuple(
        table_camera(path, name, table, poses, _METRES[unit] if unit else 1.0)
        for name, table in zip(names, tables.values(), strict=True)
    )
    if not cameras and isinstance(content, dict) and _lens_numbers(_lowered(content)) is not None:
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
        and _PROPERTY.fullmatch(key)
        and all(isinstance(one, dict | list) and not _PROPERTY.fullmatch(name) for name, one in value.items())
    }
    common = {key: value for key, value in content.items() if key not in of_cameras and _OF_LENS.fullmatch(key)}
    tables: dict[str, dict[str, Any]] = {}
    if of_cameras:
        for key, value in of_cameras.items():
            for camera, one in value.items():
                tables.setdefault(camera, {})[key] = one
    elif not any(map(_LENS_WORD.fullmatch, common)) and _find(content, _ROTATION) is None:
        # Otherwise a pair, whose R_left is that of a rectification.
        names = [
            key
            for key, value in content.items()
            if not _PROPERTY.fullmatch(key) and (not isinstance(value, dict) or "data" in value)
        ]
        # A camera may have the name of a property (K_P, R_P), and P_rect_01 may be given next to K_01.
        for lens, is_first in ((_MATRIX_WORD, True), (_MATRIX_WORD, False), (_LENS_WORD, True), (_LENS_WORD, False)):
            cuts = [(key, *cut) for key in names for cut in _cuts(key, is_first)]
            tables = {camera: {} for _, word, camera in cuts if lens.fullmatch(word)}
            for key, word, camera in cuts:
                is_value = isinstance(content[key], dict | list) or word.lower() in ("h", "w", "height", "width")
                if camera in tables and _PROPERTY.fullmatch(word) and is_value:
                    tables[camera][word] = content[key]
            if tables:
                break
    tables = {camera: common | table for camera, table in tables.items()}
    return {camera: table for camera, table in tables.items() if any(map(_LENS_WORD.fullmatch, table))}


def _cuts(key: str, is_first: bool) -> Iterator[tuple[str, str]]:
    """Yield the words before (`is_first`) or after every underscore of a key, and the rest of it."""
    for match in re.finditer("_", key[:_MOST_NUMBERS]):
        left, right = key[: match.start()], key[match.end() :]
        yield (left, right) if is_first else (right, left)


def _are_placed(tables: Mapping[str, Mapping[str, Any]], poses: bool) -> bool:
    """Return whether there are several cameras, all placed if poses are needed; R alone may be a rectification."""
    return len(tables) > 1 and all(not poses or any(map(_PLACE_WORD.fullmatch, table)) for table in tables.values())


def _has_pose(table: Mapping[str, Any]) -> bool:
    return any(_find(table, pattern) is not None for pattern in (_ROTATION, _WORLD_TO_CAMERA, _CAMERA_TO_WORLD))


_IDS = frozenset({"ids", "names", "camera_ids", "camera_names", "cam_ids", "cam_names"})


def _number_of_matrices(content: Mapping[str, Any]) -> int:
    """Return the number of camera matrices of an array [N, 3, 3]; 0 for a single one."""
    given = _lens_numbers(_lowered(content))
    is_stack = isinstance(given, list) and all(isinstance(item, list) and len(item) == 3 for item in given)
    return len(given) if is_stack and all(isinstance(row, list) for item in given for row in item) else 0


def _unit(table: Mapping[str, Any]) -> str | None:
    """Return the unit of lengths that a table states, if it is a metric one."""
    text = next((str(table[key]).lower() for key in _UNITS if key in table), "").removesuffix("s")
    for word, short in (("meter", "metre"), ("millimetre", "mm"), ("centimetre", "cm"), ("metre", "m")):
        text = text.replace(word, short)
    return text if text in _METRES else None


_METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001}
_UNITS = ("unit", "units", "length_unit", "length_units")
_CONVENTIONS = ("convention", "camera_convention", "pose_convention")
_NAME = re.compile(r"(cam(era)?_?)?(name|label|id|uid|serial(_?(no|number))?)")


def _own_names(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of cameras, or else their identities or serial numbers; none if these are not distinct."""
    for key in sorted(filter(_NAME.fullmatch, tables[0] if tables else ()), key=lambda key: "name" not in key):
        own = [str(table[key]) for table in tables if key in table]
        if len({*own}) == len(tables):
            return own
    return []


def _joined(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with lower-case keys, joined with those of tables in it (`intrinsics`, `extrinsics`)."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict) and "data" not in value}
    if any(_COLOR.match(key) for key in inner):
        inner = {key: value for key, value in inner.items() if not _OTHER_SENSOR.match(key)}
    lenses = [key for key, value in inner.items() if _lens_numbers(_joined(value)) is not None]
    if len(lenses) > 1:
        raise InputError(f"it has {len(lenses)} lenses: {listed(lenses)}", "keep that of the video")
    parts = [
        _translated({key: value for key, value in table.items() if not isinstance(value, dict) or "data" in value}),
        *map(_joined, inner.values()),
    ]
    joined = {key: value for part in reversed(parts) for key, value in part.items()}
    given = next((joined[key] for key in _PROJECTIONS if isinstance(joined.get(key), dict | list)), None)
    if given is None or _lens_numbers(joined) is not None:
        return joined
    return joined | _parts_of_projection(_flat(given, "the projection matrix"))


def _own_parts(names: Sequence[str]) -> list[str]:
    """Return the first part between dots that all names of files have and that differs, or whole names."""
    parts = zip(*(name.split(".") for name in names), strict=False)  # names may have several dots
    return list(next((part for part in parts if len({*part}) == len(names)), names))


def _lens_numbers(table: Mapping[str, Any]) -> Any:
    """Return the camera matrix, or fx fy cx cy as EuRoC writes them; None if there is neither."""
    separate = next(([table[key] for key in keys] for keys in _FOUR if {*keys} <= {*table}), None)
    focal, center = table.get("focal_length"), table.get("principal_point")
    if isinstance(focal, list) and isinstance(center, list):
        separate = [*focal, *center]
    given = table.get("intrinsics", table.get("intrinsic", _find(table, _LENS)))  # the first one also of OpenPose
    return separate if given is None else given


_FOUR = (("fx", "fy", "cx", "cy"), ("fx", "fy", "ppx", "ppy"))


def table_camera(
    path: Path, name: str, content: dict[str, Any], poses: bool, metres: float = 1.0
) -> CalibratedCamera:
    """Build a camera from a table with a matrix, distortion, image size, R and T; of `poses` in units of `metres`.

    The centre of the top-left pixel is at (0, 0), as in OpenCV, unless the table has another `pixel_center`. A lens
    alone has the identity as pose.

    Raises:
        InputError: with the file and the name of the camera.
    """
    with error_context(path.name, name):
        table = _joined(content)
        if {"k", "p"} <= {*table} and ("fx" in table or {"f", "c"} <= {*table}):
            raise InputError(
                "it has f, k and p, as files of Human3.6M have, whose T is the position of the camera",
                "write K, distCoeffs, R and T of x = R X + T",
            )
        given, model = _lens_numbers(table), _model(table)
        if model is not None and _plain(model) in _OTHER_MODELS:
            _lens(coefficients_of(table), model)
        if given is None:
            raise InputError("camera_matrix is missing", CORRECTION_HINT)
        numbers = _flat(given, "camera_matrix")
        if len(numbers) == 16:
            numbers = [number for row in range(3) for number in numbers[4 * row : 4 * row + 3]]
        is_matrix = isinstance(given, dict) or any(isinstance(row, list) for row in given)
        is_lens = len(numbers) == 4 and not is_matrix
        matrix = pinhole(*numbers) if is_lens else numbers_of(numbers, "camera_matrix", 3, 3)
        center = number_of(table.get("pixel_center", INTEGER_PIXEL_CENTER), "pixel_center")
        if center not in (INTEGER_PIXEL_CENTER, PIXEL_CENTER):
            raise InputError(f"pixel_center is {center:g}, expected 0 or 0.5", CORRECTION_HINT)
        # JARVIS multiplies rows, as MATLAB does: x_camera = x R + T, and its matrices are transposed.
        is_transposed = bool(matrix[2, :2].any()) and not matrix[:2, 2].any()
        pose = _pose(table, is_transposed) if poses else None
        if poses and pose is None:
            hint = "pass it as ⟨intrinsics⟩, or the calibration of a rig, with poses named R and T, w2c or c2w"
            raise InputError(f"it has a lens, but no pose (R and T) among {listed(content, 8)}", hint)
        lens = _lens(coefficients_of(table), model)
        size = _size(table)
    pose = torch.eye(4, dtype=torch.float64) if pose is None else pose
    pose[:3, 3] *= metres
    return make_camera(
        path.name,
        name,
        intrinsics=matrix.T if is_transposed else matrix,
        world_to_camera=pose,
        image_size=size,
        distortion=lens,
        pixel_center=center,
    )


def _pose(table: Mapping[str, Any], is_transposed: bool = False) -> Tensor | None:
    """Return the pose of R, a matrix or a vector, and T, or of a matrix of both; None if one is missing.

    All statements of it have to agree.
    """
    found: dict[str, Tensor] = {}
    shift = _find(table, _TRANSLATION)
    convention = next((re.sub("[ -]", "_", str(table[key]).lower()) for key in _CONVENTIONS if key in table), "")
    is_inverse = (
        _CAMERA_TO_WORLD.search(convention) is not None
        or table.get("world2cam") is False
        or table.get("cam2world") is True
    )
    for key, value in table.items():
        if not isinstance(value, dict | list | str):
            continue
        if _ROTATION.fullmatch(key) and shift is not None:
            place = numbers_of(_flat(shift, "T"), "T", 1, 3)[0].tolist()
            turn = _flat(value, "R")
            if is_transposed and len(turn) == 3:
                raise InputError(
                    "camera_matrix is transposed, and R is a vector", "write the principal point in its last column"
                )
            rotation = _rotation(turn)
            pose = pose_matrix(rotation.T if is_transposed else rotation, place)
        elif _WORLD_TO_CAMERA.fullmatch(key) or _CAMERA_TO_WORLD.fullmatch(key):
            numbers = torch.tensor(_flat(value, "the pose"), dtype=torch.float64)
            if numbers.numel() not in (12, 16):
                raise InputError(f"the pose has {numbers.numel()} numbers, expected 3x4 or 4x4", CORRECTION_HINT)
            pose = pose_matrix(numbers.reshape(-1, 4)[:3, :3], numbers.reshape(-1, 4)[:3, 3].tolist())
        else:
            continue
        found[key] = invert_rigid(pose) if _CAMERA_TO_WORLD.fullmatch(key) or is_inverse else pose
    first = next(iter(found), "")
    for key, pose in found.items():
        if not is_rotation(pose[:3, :3]):
            return pose  # which is refused
        turned, moved = (pose - found[first])[:3, :3].abs().max(), (pose - found[first])[:3, 3].norm()
        if turned > _SAME_POSE or moved > _SAME_POSE * (1 + pose[:3, 3].norm()):
            raise InputError(f"{first} and {key} state different poses", "keep the one from the world to the camera")
    if not found:
        return None
    axes = str(table.get("coordinate_system", "")).lower()  # may be those of the world
    if _FOREIGN.search(convention + axes) or _OPENGL.search(axes):
        raise InputError(f"its convention is {(convention or axes)[:40]}", "write poses with the axes of OpenCV")
    return found[first] * (torch.tensor(_FLIP, dtype=torch.float64)[:, None] if _OPENGL.search(convention) else 1)


_SAME_POSE = 2e-3
_FLIP = (1, -1, -1, 1)
_OPENGL, _FOREIGN = re.compile(r"opengl|blender|nerf(studio)?\b|arkit"), re.compile("unity|unreal|pytorch3d|directx")


def _rotation(turn: Sequence[float]) -> Tensor:
    if len(turn) == 4:
        raise InputError("R is a quaternion of an unknown order", "write R as a matrix or a rotation vector")
    if len(turn) not in (3, 9):
        raise InputError(f"R has {len(turn)} numbers, expected 3 or 9", CORRECTION_HINT)
    return rotation_of(turn if len(turn) == 3 else [turn[:3], turn[3:6], turn[6:]])


def read_stereo(path: Path, content: dict[str, Any], poses: bool = True) -> Calibration:
    """Read a stereo pair: M1 D1 M2 D2 R T in one file, or in two as `intrinsics.yml` and `extrinsics.yml`.

    The file names no cameras, the world is the first one: x2 = R x1 + T.

    Raises:
        InputError: if a matrix is missing or invalid.
    """
    if _are_placed(by_property(content), True):
        return read_tables(path, content, poses)
    is_half = not _sides(content, _STEREO_LENS) or _find(content, _ROTATION) is None
    table = _with_partner(path, content) if is_half else content
    matrices, coefficients = (_sides(table, pattern) for pattern in (_STEREO_LENS, _STEREO_DISTORTION))
    for side in (0, 1):
        if side not in matrices or (coefficients and side not in coefficients):
            what = "distortion D" if side in matrices else "camera matrix M"
            raise InputError(f"{path.name}: camera {side + 1}: the {what}{side + 1} is missing", CORRECTION_HINT)
    facts = {key: value for key, value in _lowered(table).items() if key in _FACTS}
    pose = {key: value for key, value in table.items() if _ROTATION.fullmatch(key) or _TRANSLATION.fullmatch(key)}
    first = {"R": torch.eye(3).tolist(), "T": [0.0, 0.0, 0.0]}
    tables = [
        facts | {"K": matrices[side], "D": coefficients.get(side, [])} | each
        for side, each in enumerate((first, pose))
    ]
    return read_tables(path, tables, poses)


_LENS = re.compile(f"{CAMERA_MATRIX}|(?i:ks?)")
_COLOR = re.compile("(?i)colou?r|rgb")
_OTHER_SENSOR = re.compile("(?i)depth|infra|ir|thermal|tof")
_DISTORTION = re.compile(r"(?i:d|kc|coeffs|(?:lens_?|cam(?:era)?_?)?dist(?!ance|\w*(?:model|type))\w*?)")
_RADIAL, _TANGENTIAL = (
    re.compile(f"(?i:{kind}_?dist(?:ortion)?(?:_?coeff?(?:icient)?s)?)") for kind in ("radial", "tangential")
)
_NAMED_DISTORTION = re.compile(rf"{_RADIAL.pattern}|{_TANGENTIAL.pattern}|(?i:(lens_?)?distortions?)")
_ROTATION = re.compile("(?i:(extrinsics?_)?(r|rot(ation)?(_?(matrix|mat|vector|vec))?|rmat|rvec))")
_TRANSLATION = re.compile("(?i:(extrinsics?_)?(t|trans(lation)?(_?(matrix|vector|vec))?|tvec))")

_WORLD_TO_CAMERA, _CAMERA_TO_WORLD = (
    re.compile(f"(?i:{words})(?i:_?(?:mat|matrix))?")
    for words in (
        "rt|extrinsics?|w2c|world_?(?:to|2)_?cam(?:era)?|t_c(?:am(?:era)?)?_?w(?:orld)?|c(?:am(?:era)?)?_t_w(?:orld)?",
        "c2w|camera_pose_matrix|cam(?:era)?_?(?:to|2)_?world|t_w(?:orld)?_?c(?:am(?:era)?)?|w(?:orld)?_t_c(?:am(?:era)?)?",
    )
)
_MATRIX_WORD = re.compile(f"{_LENS.pattern}|(?i:intrinsics?|focal)")
_LENS_WORD = re.compile(f"{_MATRIX_WORD.pattern}|(?i:p|world_mat|projection(_matrix)?)")
_OF_LENS = re.compile(
    f"{_LENS_WORD.pattern}|(?i:d|dist(ortion)?(_?coeff?(s|icients)?)?|image_size|size|height|width|h|w)"
)
_PLACE_WORD = re.compile(f"{_TRANSLATION.pattern}|{_WORLD_TO_CAMERA.pattern}|{_CAMERA_TO_WORLD.pattern}|(?i:campos)")
_PROPERTY = re.compile(f"{_OF_LENS.pattern}|{_ROTATION.pattern}|{_PLACE_WORD.pattern}|(?i:princpt|camrot)")
"""What is stated of a camera."""

_SIDE = "(?i:(0|1|2|l|r|left|right))"
_STEREO_LENS, _STEREO_DISTORTION = (
    re.compile(rf"(?:{word})_?{_SIDE}|{_SIDE}[_.]?(?:{word})")
    for word in (f"[MK]|{CAMERA_MATRIX}", _DISTORTION.pattern)
)


def _sides(table: Mapping[str, object], pattern: re.Pattern[str]) -> dict[int, object]:
    """Return the values of the first (0) and the second camera (1), which are numbered from 0 or 1."""
    matches = ((pattern.fullmatch(key), value) for key, value in table.items())
    found = {(match[1] or match[2]).lower(): value for match, value in matches if match is not None}
    first = 0 if "0" in found else 1
    names = {str(first): 0, "l": 0, "left": 0, str(first + 1): 1, "r": 1, "right": 1}
    return {names[side]: value for side, value in found.items() if side in names}


def _find(table: Mapping[str, Any], pattern: re.Pattern[str], default: Any = None) -> Any:
    """Return the value of the first key that matches, which is no number or flag."""
    values = (value for key, value in table.items() if pattern.fullmatch(key))
    return next((value for value in values if isinstance(value, dict | list | str)), default)


def _lowered(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in table.items()}


def coefficients_of(given: Mapping[str, Any]) -> list[float]:
    """Return the distortion in OpenCV's order, also of radial and tangential parts, or of single keys `k1`, `p1`."""
    table = _joined(given)
    if (whole := _find(table, _DISTORTION)) is not None:
        return _flat(whole, "the distortion")
    for key, value in table.items():  # 0 and 1 may be flags
        if _NAMED_DISTORTION.fullmatch(key) and isinstance(value, int | float) and float(value) not in (0.0, 1.0):
            raise InputError(f"{key} is not a list of numbers", CORRECTION_HINT)
    radial, tangential = (_flat(_find(table, part, []), "the distortion") for part in (_RADIAL, _TANGENTIAL))
    single = {key: number_of(table[key], key) for key in _SINGLE if key in table}
    single |= {f"k{n}": value for n, value in enumerate(radial, 1)} | {
        f"p{n}": value for n, value in enumerate(tangential, 1)
    }
    is_radial = not {"p1", "p2"} & {*single} and (
        _is_fisheye(_model(table)) or any(single.get(key) for key in _SINGLE[5:])
    )
    order = [key for key in _SINGLE if "k" in key][:4] if is_radial else _SINGLE
    return [single.get(key, 0.0) for key in order] if single else []


_SINGLE = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


def _translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with lower-case keys; of other conventions with k, and r and t or a pose as others have them.

    Source: OpenPose, `doc/advanced/calibration_module.md`; nerfies, `camera.py`; the Immersive Light Field videos,
    `models.json`; HumanRF, `camera_data.py` of ActorsHQ; Ego-Exo4D, `gopro_calibs.csv`.
    """
    table = _lowered(given)

    def numbers(keys: str) -> list[float]:
        return [number_of(table.get(key), key) for key in keys.split()]

    if "intrinsics" in table and table.get("cameramatrix"):
        return table | {"w2c": table["cameramatrix"]}
    if {"orientation", "position", "focal_length"} <= {*table}:
        rotation = _rotation(_flat(table["orientation"], "orientation"))
        shift = -rotation @ numbers_of(table["position"], "position", 1, 3)[0]
        table = {"pixel_aspect_ratio": 1.0, "skew": 0.0} | table
        focal, aspect, skew = numbers("focal_length pixel_aspect_ratio skew")
        centre = numbers_of(table.get("principal_point"), "principal_point", 1, 2)[0] - PIXEL_CENTER
        lens = [focal, focal * aspect, *centre.tolist(), skew]
        return table | {"k": pinhole(*lens).tolist(), "r": rotation.tolist(), "t": shift.tolist()}
    if {"rx", "tx", "w", "px"} <= {*table}:
        width, height, *lens = numbers("w h fx fy px py")
        lens = [side * part for side, part in zip((width, height) * 2, lens, strict=True)]
        lens[2:] = [part - PIXEL_CENTER for part in lens[2:]]
        pose = pose_matrix(rotation_of(numbers("rx ry rz")), numbers("tx ty tz"))
        size = {"width": width, "height": height}
        return table | size | {"k": lens, "c2w": pose[:3].tolist()}
    if {"tx_world_cam", "intrinsics_0"} <= {*table}:
        lens = numbers(" ".join(f"intrinsics_{n}" for n in range(8)))
        turn = torch.tensor(numbers(" ".join(f"q{axis}_world_cam" for axis in "wxyz")), dtype=torch.float64)
        pose = pose_matrix(matrix_from_quaternion(turn), numbers("tx_world_cam ty_world_cam tz_world_cam"))
        model = {"distortion_model": table.get("intrinsics_type"), "dist": lens[4:]}
        return table | model | {"k": lens[:4], "c2w": pose[:3].tolist()}
    if {"campos", "camrot", "focal", "princpt"} <= {*table}:
        rotation = _rotation(_flat(table["camrot"], "camrot"))
        shift = -rotation @ numbers_of(table["campos"], "campos", 1, 3)[0]
        lens = _flat(table["focal"], "focal") + _flat(table["princpt"], "princpt")
        return table | {"k": lens, "r": rotation.tolist(), "t": shift.tolist()}
    for key, parts in _SEPARATE.items():
        if {*parts.split()} <= {*table}:
            table = table | {key: numbers(parts)}
    if "q" in table and "r" not in table and {*_SEPARATE["q"].split()} <= {*table}:
        table = table | {"r": matrix_from_quaternion(torch.tensor(table["q"], dtype=torch.float64)).tolist()}
    return table


_SEPARATE = {"r": "r11 r12 r13 r21 r22 r23 r31 r32 r33", "t": "tx ty tz", "q": "qw qx qy qz"}
_PROJECTIONS = ("p", "projection", "projection_matrix", "world_mat")


def _parts_of_projection(numbers: Sequence[float]) -> dict[str, Any]:
    """Return K, R and T of a projection matrix, which is known up to a factor.

    Source: Hartley & Zisserman (2004), section 6.2.4.
    """
    matrix = torch.tensor(numbers, dtype=torch.float64)
    if len(matrix) not in (12, 16) or not bool(torch.isfinite(matrix).all()):
        raise InputError(f"the projection matrix has {len(matrix)} numbers, expected 3x4 or 4x4", CORRECTION_HINT)
    matrix = matrix.reshape(-1, 4)[:3]
    lens, turn = (torch.from_numpy(part) for part in scipy.linalg.rq(matrix[:, :3].numpy()))
    signs = lens.diagonal().sign()
    if not bool(signs.all()):
        raise InputError("the projection matrix is singular", CORRECTION_HINT)
    lens, turn = lens * signs, signs[:, None] * turn
    pose = torch.linalg.det(turn).sign() * torch.cat([turn, torch.linalg.solve(lens, matrix[:, 3:])], dim=1)
    return {"k": (lens / lens[2, 2]).triu().tolist(), "w2c": pose.tolist()}


def _model(table: Mapping[str, object]) -> str | None:
    """Return the distortion model that a file declares."""
    others = [*(str(table.get(key)) for key in _MODELS), *(["omnidirectional"] if table.get("xi") else [])]
    if other := next((model for model in others if _plain(model) in _OTHER_MODELS), None):
        return other
    flag = next((table[key] for key in _FLAGGED if key in table), None)
    if flag is not None:
        if (text := str(flag).lower()) not in _FLAGS:
            raise InputError(f"fisheye is '{shortened(str(flag))}', expected true or false", CORRECTION_HINT)
        return "fisheye" if _FLAGS[text] else "none"
    if (declared := next((table[key] for key in _DECLARED if table.get(key) is not None), None)) is not None:
        return {"": "none", "0": "none", "1": "fisheye"}.get(str(declared), str(declared))  # numbers of MC-Calib
    return next((model for model in others if _plain(model) in _FISHEYE_MODELS | _NAMED_BROWN), None)


_MODELS = ("camera_model", "lens_model", "model_type", "projection_type", "model")
_DECLARED = ("distortion_model", "distortion_type")
_FLAGGED = ("fisheye_model", "fisheye", "is_fisheye")
_FLAGS = dict.fromkeys(("1", "1.0", "true", "yes"), True) | dict.fromkeys(("0", "0.0", "false", "no"), False)


def _plain(model: str) -> str:
    """Return the name of a lens model as in the sets of models."""
    return re.sub(r"^distortion\.|[^a-z]", "", model.lower())


def _is_fisheye(model: str | None) -> bool:
    return model is not None and _plain(model) in _FISHEYE_MODELS


def _lens(coefficients: Sequence[float], model: str | None) -> Distortion | None:
    """Build the distortion; four coefficients of an undeclared model may be either one."""
    if _is_fisheye(model):
        return fisheye(coefficients)
    if model is None and len(coefficients) == 4 and any(coefficients):
        raise InputError(
            "4 distortion coefficients are k1 k2 p1 p2, or k1 k2 k3 k4 of a fisheye lens",
            "add 'fisheye_model: 0' or 'fisheye_model: 1' to the file",
        )
    is_zero = not any(coefficients) and model is not None and "brownconrady" in _plain(model)  # those of RealSense
    if model is not None and _plain(model) not in _BROWN_CONRADY_MODELS and not is_zero:
        raise InputError(f"the distortion model {model[:40]} is not supported", _MODEL_HINT)
    if len(coefficients) == 3 and model is not None and _plain(model) in _RADIAL_MODELS:
        coefficients = [*coefficients[:2], 0.0, 0.0, coefficients[2]]
    return brown_conrady(coefficients)


def _size(table: Mapping[str, object]) -> tuple[int, int] | None:
    """Return (height, width), if the file states them."""
    for names in _SIDE_LENGTHS:
        # An H may also be a homography.
        stated = [name for name in names if name in table and not isinstance(table[name], dict | list)]
        if names == ("h", "w") and len(stated) == 1:
            raise InputError("the image has a height or a width alone", "give both sides of the image, or neither")
        if len(stated) == 2:
            height, width = (number_of(table[name], name) for name in names)
            break
    else:
        pair = next((table[key] for key in _SIZES if key in table), None)
        if not isinstance(pair, list) or len(pair) != 2:
            return None
        width, height = (number_of(value, "image_size") for value in pair)
    return whole_size(height, width) if height or width else None


def _flat(value: object, key: str) -> list[float]:
    """Return the numbers of a matrix of OpenCV, which may be empty, or of nested lists."""
    if isinstance(value, dict):
        value = value.get("data", [])
    value = value.split() if isinstance(value, str) else value
    if not isinstance(value, list):
        raise InputError(f"{key} is not a list of numbers", CORRECTION_HINT)
    rows = [row if isinstance(row, list) else [row] for row in value[:_MOST_NUMBERS]]
    return [number_of(number, key) for row in rows for number in row[:_MOST_NUMBERS]]


_MOST_NUMBERS = 64
_SIDE_LENGTHS = (("image_height", "image_width"), ("img_height", "img_width"), ("height", "width"), ("h", "w"))
_SIZES = ("image_size", "imagesize", "img_size", "imgsize", "size", "resolution", "camera_resolution")
_FACTS = frozenset(
    (
        *_UNITS,
        *_CONVENTIONS,
        *_SIZES,
        *_MODELS,
        *_DECLARED,
        *_FLAGGED,
        *(key for pair in _SIDE_LENGTHS for key in pair),
    )
) | {"world2cam", "coordinate_system"}
"""What a file may state for all cameras."""
