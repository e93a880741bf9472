"""nerfstudio `transforms.json`, read and written; also written by Instant-NGP and for the synthetic NeRF scenes.

`transform_matrix` is camera-to-world with OpenGL camera axes (x right, y up, z backwards). `applied_transform` and
`applied_scale`, which nerfstudio applies after the reconstruction, are inverted: a COLMAP model and the
transforms.json exported from it give the same cameras.

Cameras of trainers are read, too: `cameras.json` of 3D Gaussian Splatting, `train_meta.json` of Dynamic 3D Gaussians.

Source: nerfstudio documentation, "Data conventions"; 3D Gaussian Splatting, `camera_to_JSON`;
Dynamic 3D Gaussians, `train.py`, `get_dataset`.
"""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from page4d.conventions import OPENGL_AXES, Scale
from page4d.errors import InputError
from page4d.formats import build
from page4d.formats.build import FileSchema, ImageCamera, Matrix3, Matrix4, Matrix34, Row3, Side
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.files import MAX_IMAGES, check_count, error_context, unreadable, validated
from page4d.geometry.distortion import Distortion
from page4d.geometry.transforms import invert_rigid, rigid

_MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE")
"""Camera models. As in nerfstudio, all but the last have those coefficients of OPENCV that the file states."""

_NOMINAL_WIDTH_PX = 1000


class _Intrinsics(FileSchema):
    """Keys at the top level of the file, or in a frame, where they override the top level.

    `is_fisheye` is that of Instant-NGP, which names no model.
    """

    camera_model: str | None = None
    is_fisheye: bool = False
    fl_x: float | None = None
    fl_y: float | None = None
    cx: float | None = None
    cy: float | None = None
    w: Side | None = None
    h: Side | None = None
    camera_angle_x: float | None = None
    camera_angle_y: float | None = None
    k1: float = 0.0
    k2: float = 0.0
    k3: float = 0.0
    k4: float = 0.0
    p1: float = 0.0
    p2: float = 0.0


class _Frame(FileSchema):
    file_path: str
    transform_matrix: Matrix4 | Matrix34
    time: float | None = None


class _Transforms(FileSchema):
    frames: Annotated[list[dict[str, object]], Field(min_length=1)]
    applied_transform: Matrix34 | Matrix4 | None = None
    applied_scale: Annotated[float, Field(gt=0)] = 1.0


def read(path: Path, content: dict[str, object]) -> Calibration:
    """Read the content of a `transforms.json`; its scale is arbitrary.

    `group_images` groups frames into views. Frames in one folder with different `time` values are those of one moving
    camera.
    """
    transforms = validated(_Transforms, content, path.name)
    check_count(path, len(transforms.frames), "images", MAX_IMAGES)
    shared = {key: value for key, value in content.items() if key in _Intrinsics.model_fields}
    frames = [validated(_Frame, frame, path.name, str(frame.get("file_path", index))) for index, frame in
              enumerate(transforms.frames)]  # fmt: skip
    times = {frame.time for frame in frames}
    names = build.group_images([frame.file_path for frame in frames], one_moving_camera=len(times) > 1)
    check_count(path, len({name.view for name in names}))
    undo = _inverse_applied_transform(path.name, transforms)
    images = []
    for raw, frame, name in zip(transforms.frames, frames, names, strict=True):
        with error_context(path.name, name.view):
            intrinsics = validated(_Intrinsics, shared | raw, path.name, name.view)
            has_pixels = (intrinsics.w, intrinsics.fl_x, intrinsics.cx) != (None, None, None)
            nominal = None if has_pixels or intrinsics.camera_angle_x is None else _NOMINAL_WIDTH_PX
            # The height is unknown: pixels are square, whatever camera_angle_y is.
            assumed = {} if nominal is None else {"w": nominal, "h": nominal, "camera_angle_y": None}
            given = intrinsics.model_copy(update=assumed)
            matrix, lens = _intrinsic_matrix(given), _distortion(intrinsics)
            pose = _world_to_camera(frame, undo, transforms.applied_scale)
            size = None if intrinsics.w is None or intrinsics.h is None else (intrinsics.h, intrinsics.w)
            images.append(ImageCamera(name, matrix, pose, size, lens, nominal))
    cameras = build.join_images(path.name, images)
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=cameras)


class _Gaussians(FileSchema):
    """Matrices [instant][camera], and the pictures; the centre of the top-left pixel is at (0.5, 0.5)."""

    w: Side
    h: Side
    k: list[list[Matrix3]]
    w2c: list[list[Matrix4]]
    fn: list[list[str]]


def read_gaussians(path: Path, content: dict[str, Any]) -> Calibration:
    """Read `train_meta.json` of Dynamic 3D Gaussians: a camera per instant and view, named by its picture."""
    given = validated(_Gaussians, content, path.name)
    lenses, poses = ([torch.tensor(matrix, dtype=torch.float64) for row in rows for matrix in row] for rows in
                     (given.k, given.w2c))  # fmt: skip
    names = build.group_images([name for row in given.fn for name in row])
    check_count(path, len(names), "images", MAX_IMAGES)
    if not len(names) == len(lenses) == len(poses):
        raise unreadable(path, f"fn, k and w2c have {len(names)}, {len(lenses)} and {len(poses)} entries")
    size = (given.h, given.w)
    images = [ImageCamera(name, lens, pose, size) for name, lens, pose in zip(names, lenses, poses, strict=True)]
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=build.join_images(path.name, images))


class _TrainerCamera(FileSchema):
    """Camera to world, OpenCV axes; the principal point is the centre of the image."""

    img_name: str
    width: Side
    height: Side
    position: Row3
    rotation: Matrix3
    fx: float
    fy: float


def read_trainer(path: Path, content: list[Any]) -> Calibration:
    """Read `cameras.json` of 3D Gaussian Splatting: a list of images."""
    check_count(path, len(content), "images", MAX_IMAGES)
    given = [validated(_TrainerCamera, raw, path.name, f"number {index + 1}") for index, raw in enumerate(content)]
    names = build.group_images([camera.img_name for camera in given])
    check_count(path, len({name.view for name in names}))
    images = []
    for camera, name in zip(given, names, strict=True):
        lens = build.pinhole(camera.fx, camera.fy, camera.width / 2, camera.height / 2)
        pose = invert_rigid(build.pose_matrix(build.rotation_of(camera.rotation), camera.position))
        images.append(ImageCamera(name, lens, pose, (camera.height, camera.width)))
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=build.join_images(path.name, images))


def frame_camera(
    camera_to_world: NDArray[np.float64], intrinsics: NDArray[np.float64], size: tuple[int, int]
) -> dict[str, Any]:
    """Return the keys of a frame that describe its camera, for images of a (height, width).

    `camera_to_world` [4, 4] has OpenGL camera axes. Intrinsics are those of a frame, because views differ.
    """
    (fl_x, _, cx), (_, fl_y, cy), _ = intrinsics.tolist()
    lens = {"fl_x": fl_x, "fl_y": fl_y, "cx": cx, "cy": cy, "w": size[1], "h": size[0]}
    return {"transform_matrix": camera_to_world.tolist(), **lens}


def _inverse_applied_transform(label: str, transforms: _Transforms) -> Float[Tensor, "4 4"]:
    """Return the inverse of `applied_transform`."""
    rows = transforms.applied_transform or torch.eye(4).tolist()
    matrix = torch.tensor(rows, dtype=torch.float64)
    if not build.is_rotation(matrix[:3, :3]):
        raise InputError(f"{label}: applied_transform is not a rotation and a translation", CORRECTION_HINT)
    return invert_rigid(build.orthonormalized(rigid(matrix[:3, :3], matrix[:3, 3])))


def _world_to_camera(frame: _Frame, undo: Float[Tensor, "4 4"], applied_scale: float) -> Float[Tensor, "4 4"]:
    given = torch.tensor(frame.transform_matrix, dtype=torch.float64)
    if len(given) == 4 and given[3].tolist() != [0, 0, 0, 1]:
        raise InputError("the last row of transform_matrix is not 0 0 0 1", CORRECTION_HINT)
    opencv = build.orthonormalized(
        rigid(given[:3, :3], given[:3, 3] / applied_scale) * torch.tensor(OPENGL_AXES, dtype=given.dtype)
    )
    return invert_rigid(undo @ opencv)


def _intrinsic_matrix(given: _Intrinsics) -> Float[Tensor, "3 3"]:
    focal_x = given.fl_x if given.fl_x is not None else _focal(given.w, given.camera_angle_x)
    focal_y = given.fl_y if given.fl_y is not None else _focal(given.h, given.camera_angle_y)
    focal_x = focal_y if focal_x is None else focal_x
    if focal_x is None:
        raise InputError("it has neither fl_x nor camera_angle_x with w", CORRECTION_HINT)
    center_x = given.cx if given.cx is not None else _half(given.w)
    center_y = given.cy if given.cy is not None else _half(given.h)
    if center_x is None or center_y is None:
        raise InputError("it has neither cx, cy nor w, h", CORRECTION_HINT)
    return build.pinhole(focal_x, focal_x if focal_y is None else focal_y, center_x, center_y)


def _half(side: int | None) -> float | None:
    return None if side is None else side / 2


def _focal(side: int | None, angle: float | None) -> float | None:
    """Return the focal length in px of a field of view in radians."""
    if side is None or angle is None:
        return None
    if not 0 < angle < math.pi:
        raise InputError(f"the field of view is {angle:g} rad", CORRECTION_HINT)
    return side / 2 / math.tan(angle / 2)


def _distortion(given: _Intrinsics) -> Distortion | None:
    model = given.camera_model or ("OPENCV_FISHEYE" if given.is_fisheye else "OPENCV")
    if model not in _MODELS:
        raise InputError(
            f"the camera model {model[:40]} is not supported",
            f"undistort the images first; supported: {', '.join(_MODELS)}",
        )
    if model == "OPENCV_FISHEYE":
        return build.fisheye((given.k1, given.k2, given.k3, given.k4))
    if given.k4:
        raise InputError("k4 of the OPENCV model (eighth power of the radius) is not supported", CORRECTION_HINT)
    return build.brown_conrady((given.k1, given.k2, given.p1, given.p2, given.k3))
