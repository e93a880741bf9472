"""One camera as a table of keys: the words of many programs for its lens, pose, size and conventions.

Pixels have the centre of the top-left one at (0, 0), as in OpenCV, unless a table has another `pixel_center`.

Source: ROS, `sensor_msgs/distortion_models.hpp`; OpenCV, `calibrateCamera`; XRPrimer, `data_structure/camera`; NeuS,
README, "Data Convention".
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.linalg
import torch
from torch import Tensor

from page4d.conventions import INTEGER_PIXEL_CENTER, OPENGL_AXES, PIXEL_CENTER
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
from page4d.formats.camera_model import CORRECTION_HINT, METRES, CalibratedCamera
from page4d.formats.files import error_context
from page4d.formats.table import CAMERA_MATRIX
from page4d.geometry.distortion import Distortion
from page4d.geometry.rotation import matrix_from_quaternion
from page4d.geometry.transforms import invert_rigid

_FISHEYE_MODELS = frozenset("equidistant equi fisheye opencvfisheye kannalabrandt kannalabrandtk kb".split())
_NAMED_BROWN = frozenset("radtan radialtangential plumbbob brown brownconrady opencv fullopencv".split())
_RADIAL_MODELS = frozenset("polynomial simpleradial radial".split())
_BROWN_CONRADY_MODELS = _NAMED_BROWN.union(
    _RADIAL_MODELS, "rationalpolynomial rational standard none pinhole simplepinhole".split()
)
_OTHER_MODELS = frozenset(
    "omni omnidirectional mei ds doublesphere eucm ucm unified fov division ocam scaramuzza ftheta spherical "
    "equirectangular thinprismfisheye inversebrownconrady modifiedbrownconrady".split()
)
"""Names of lens models, without punctuation and numbers."""

_MODEL_HINT = "calibrate with a pinhole camera and radial-tangential or equidistant (fisheye) distortion"


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
        table = joined_table(content)
        if {"k", "p"} <= {*table} and ("fx" in table or {"f", "c"} <= {*table}):
            raise InputError(
                "it has f, k and p, as files of Human3.6M have, whose T is the position of the camera",
                "write K, distCoeffs, R and T of x = R X + T",
            )
        given, model = lens_numbers(table), _model(table)
        if model is not None and _plain(model) in _OTHER_MODELS:
            _lens(coefficients_of(table), model)
        if given is None:
            raise InputError("camera_matrix is missing", CORRECTION_HINT)
        numbers = _flat(given, "camera_matrix")
        if len(numbers) in (12, 16):
            if any(numbers[3:12:4]):
                raise InputError("the fourth column of camera_matrix is not zero", "name a projection matrix P")
            numbers = [number for row in range(3) for number in numbers[4 * row : 4 * row + 3]]
        is_matrix = isinstance(given, dict) or any(isinstance(row, list) for row in given)
        is_lens = len(numbers) == 4 and not is_matrix
        matrix = pinhole(*numbers) if is_lens else numbers_of(numbers, "camera_matrix", 3, 3)
        center = number_of(table.get("pixel_center", INTEGER_PIXEL_CENTER), "pixel_center")
        if center not in (INTEGER_PIXEL_CENTER, PIXEL_CENTER):
            raise InputError(f"pixel_center is {center:g}, expected 0 or 0.5", CORRECTION_HINT)
        # JARVIS multiplies rows, as MATLAB does: x_camera = x R + T, and its matrices are transposed.
        is_transposed = bool(matrix[2, :2].any()) and not matrix[:2, 2].any()
        if is_transposed and not is_matrix and poses and find_value(table, ROTATION) is not None:
            raise InputError(*_TRANSPOSED)
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
    shift = find_value(table, TRANSLATION)
    convention = next((re.sub("[ -]", "_", str(table[key]).lower()) for key in _CONVENTIONS if key in table), "")
    is_inverse = (
        _CAMERA_TO_WORLD.search(convention) is not None
        or table.get("world2cam") is False
        or table.get("cam2world") is True
    )
    for key, value in table.items():
        if not isinstance(value, dict | list | str):
            continue
        if ROTATION.fullmatch(key) and shift is not None:
            place = numbers_of(_flat(shift, "T"), "T", 1, 3)[0].tolist()
            turn = _flat(value, "R")
            if is_transposed and len(turn) == 3:
                raise InputError(*_TRANSPOSED)
            rotation = _rotation(turn)
            pose = pose_matrix(rotation.T if is_transposed else rotation, place)
        elif _WORLD_TO_CAMERA.fullmatch(key) or _CAMERA_TO_WORLD.fullmatch(key):
            numbers = _flat(value, "the pose")
            if len(numbers) not in (12, 16):
                raise InputError(f"the pose has {len(numbers)} numbers, expected 3x4 or 4x4", CORRECTION_HINT)
            given = torch.tensor([*numbers, *_LAST_ROW][:16], dtype=torch.float64).reshape(4, 4)
            last = given.new_tensor(_LAST_ROW)
            by_rows, by_columns = (bool(((end - last).abs() < 1e-6).all()) for end in (given[3], given[:, 3]))
            if by_columns and (not by_rows or (is_transposed and len(numbers) == 16)):
                given = given.T  # as Open3D writes it
            elif not by_rows:
                raise InputError("the last row of the pose is not 0 0 0 1", CORRECTION_HINT)
            pose = pose_matrix(given[:3, :3], given[:3, 3].tolist())
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
    flip = torch.tensor(OPENGL_AXES, dtype=torch.float64)[:, None]
    return found[first] * (flip if _OPENGL.search(convention) else 1)


_SAME_POSE = 2e-3
_LAST_ROW = [0.0, 0.0, 0.0, 1.0]
_TRANSPOSED = ("camera_matrix is transposed, but R may not be", "write the principal point in its last column")
_OPENGL, _FOREIGN = re.compile(r"opengl|blender|nerf(studio)?\b|arkit"), re.compile("unity|unreal|pytorch3d|directx")


def _rotation(turn: Sequence[float]) -> Tensor:
    if len(turn) == 4:
        raise InputError("R is a quaternion of an unknown order", "write R as a matrix or a rotation vector")
    if len(turn) not in (3, 9):
        raise InputError(f"R has {len(turn)} numbers, expected 3 or 9", CORRECTION_HINT)
    return rotation_of(turn if len(turn) == 3 else [turn[:3], turn[3:6], turn[6:]])


_LENS = re.compile(f"{CAMERA_MATRIX}|(?i:ks?)")
_COLOR = re.compile("(?i)colou?r|rgb")
_OTHER_SENSOR = re.compile("(?i)depth|infra|ir|thermal|tof")
DISTORTION = re.compile(r"(?i:d|kc|coeffs|(?:lens_?|cam(?:era)?_?)?dist(?!ance|\w*(?:model|type))\w*?)")
_RADIAL, _TANGENTIAL = (
    re.compile(f"(?i:{kind}(?:_?dist(?:ortion)?)?(?:_?coeff?(?:icient)?s)?)") for kind in ("radial", "tangential")
)
_NAMED_DISTORTION = re.compile(rf"{_RADIAL.pattern}|{_TANGENTIAL.pattern}|(?i:(lens_?)?distortions?)")
ROTATION = re.compile("(?i:(extrinsics?_)?(r|rot(ation)?(_?(matrix|mat|vector|vec))?|rmat|rvec))")
TRANSLATION = re.compile("(?i:(extrinsics?_)?(t|trans(lation)?(_?(matrix|vector|vec))?|tvec))")

_WORLD_TO_CAMERA, _CAMERA_TO_WORLD = (
    re.compile(f"(?i:{words})(?i:_?(?:mat|matrix))?")
    for words in (
        "rt|extrinsics?|w2c|world_?(?:to|2)_?cam(?:era)?|t_c(?:am(?:era)?)?_?w(?:orld)?|c(?:am(?:era)?)?_t_w(?:orld)?",
        "c2w|camera_pose_matrix|cam(?:era)?_?(?:to|2)_?world|t_w(?:orld)?_?c(?:am(?:era)?)?|w(?:orld)?_t_c(?:am(?:era)?)?|t_bs",
    )
)
MATRIX_WORD = re.compile(f"{_LENS.pattern}|(?i:intrinsics?|focal)")
LENS_WORD = re.compile(f"{MATRIX_WORD.pattern}|(?i:p|world_mat|projection(_matrix)?)")
OF_LENS = re.compile(
    f"{LENS_WORD.pattern}|(?i:d|dist(ortion)?(_?coeff?(s|icients)?)?|image_size|size|height|width|h|w)"
)
PLACE_WORD = re.compile(f"{TRANSLATION.pattern}|{_WORLD_TO_CAMERA.pattern}|{_CAMERA_TO_WORLD.pattern}|(?i:campos)")
PROPERTY = re.compile(f"{OF_LENS.pattern}|{ROTATION.pattern}|{PLACE_WORD.pattern}|(?i:princpt|camrot)")
"""What is stated of a camera."""


def has_pose(table: Mapping[str, Any]) -> bool:
    """Return whether a table has a rotation, or a matrix of rotation and translation."""
    return any(find_value(table, pattern) is not None for pattern in (ROTATION, _WORLD_TO_CAMERA, _CAMERA_TO_WORLD))


def lens_numbers(table: Mapping[str, Any]) -> Any:
    """Return the camera matrix, or fx fy cx cy as EuRoC writes them; None if there is neither."""
    table = _lowered(table)
    separate = next(([table[key] for key in keys] for keys in _FOUR if {*keys} <= {*table}), None)
    focal, center = table.get("focal_length"), table.get("principal_point")
    if isinstance(focal, list) and isinstance(center, list):
        separate = [*focal, *center]
    given = table.get("intrinsics", table.get("intrinsic", find_value(table, _LENS)))  # the first also of OpenPose
    return separate if given is None else given


_FOUR = (("fx", "fy", "cx", "cy"), ("fx", "fy", "ppx", "ppy"))


def joined_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with lower-case keys, joined with those of tables in it (`intrinsics`, `extrinsics`)."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict) and "data" not in value}
    if any(_COLOR.match(key) for key in inner):
        inner = {key: value for key, value in inner.items() if not _OTHER_SENSOR.match(key)}
    lenses = [key for key, value in inner.items() if lens_numbers(joined_table(value)) is not None]
    if len(lenses) > 1:
        raise InputError(f"it has {len(lenses)} lenses: {listed(lenses)}", "keep that of the video")
    parts = [
        _translated({key: value for key, value in table.items() if not isinstance(value, dict) or "data" in value}),
        *map(joined_table, inner.values()),
    ]
    joined = {key: value for part in reversed(parts) for key, value in part.items()}
    given = next((joined[key] for key in _PROJECTIONS if isinstance(joined.get(key), dict | list)), None)
    if given is None or lens_numbers(joined) is not None:
        return joined
    return joined | _parts_of_projection(_flat(given, "the projection matrix"))


def unit_of(table: Mapping[str, Any]) -> str | None:
    """Return the unit of lengths that a table states, if it is a metric one."""
    text = next((str(table[key]).lower() for key in _UNITS if key in table), "").removesuffix("s")
    for word, short in (("meter", "metre"), ("millimetre", "mm"), ("centimetre", "cm"), ("metre", "m")):
        text = text.replace(word, short)
    return text if text in METRES else None


_UNITS = ("unit", "units", "length_unit", "length_units")
_CONVENTIONS = ("convention", "camera_convention", "pose_convention")


def find_value(table: Mapping[str, Any], pattern: re.Pattern[str], default: Any = None) -> Any:
    """Return the value of the first key that matches, which is no number or flag."""
    values = (value for key, value in table.items() if pattern.fullmatch(key))
    return next((value for value in values if isinstance(value, dict | list | str)), default)


def _lowered(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in table.items()}


def coefficients_of(given: Mapping[str, Any]) -> list[float]:
    """Return the distortion in OpenCV's order, also of radial and tangential parts, or of single keys `k1`, `p1`."""
    table = joined_table(given)
    if (whole := find_value(table, DISTORTION)) is not None:
        return _flat(whole, "the distortion")
    for key, value in table.items():  # 0 and 1 may be flags
        if _NAMED_DISTORTION.fullmatch(key) and isinstance(value, int | float) and float(value) not in (0.0, 1.0):
            raise InputError(f"{key} is not a list of numbers", CORRECTION_HINT)
    radial, tangential = (_flat(find_value(table, part, []), "the distortion") for part in (_RADIAL, _TANGENTIAL))
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
    rows = [row if isinstance(row, list) else [row] for row in value[:MOST_NUMBERS]]
    return [number_of(number, key) for row in rows for number in row[:MOST_NUMBERS]]


MOST_NUMBERS = 64
_SIDE_LENGTHS = (("image_height", "image_width"), ("img_height", "img_width"), ("height", "width"), ("h", "w"))
_SIZES = ("image_size", "imagesize", "img_size", "imgsize", "size", "resolution", "camera_resolution")
_FACTS = frozenset({"world2cam", "coordinate_system"}).union(
    _UNITS, _CONVENTIONS, _SIZES, _MODELS, _DECLARED, _FLAGGED, *_SIDE_LENGTHS
)


def facts_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file states for all cameras."""
    return {key: value for key, value in _lowered(content).items() if key in _FACTS}
