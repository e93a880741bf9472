"""JSON of multical, and the cameras of trainers: 3D Gaussian Splatting, Dynamic 3D Gaussians.

Source: multical, `io/export_calib.py`, `io/import_calib.py` and `tables.initialise_poses` (camera @ rig @ board); 3D
Gaussian Splatting, `utils/camera_utils.py`, `camera_to_JSON`; Dynamic 3D Gaussians, `train.py`, `get_dataset`.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from page4d.conventions import Scale
from page4d.errors import InputError, listed
from page4d.formats.build import (
    Coefficients,
    Column3,
    FileSchema,
    ImageCamera,
    Matrix3,
    Matrix4,
    Row3,
    Side,
    WidthHeight,
    brown_conrady,
    fisheye,
    flat,
    group_images,
    join_images,
    opencv_camera,
    pinhole,
    pose_matrix,
    rotation_of,
)
from page4d.formats.camera_model import Calibration
from page4d.formats.files import MAX_IMAGES, check_count, error_context, unreadable, validated
from page4d.geometry.transforms import invert_rigid


class _MulticalCamera(FileSchema):
    """Intrinsics; `model` is standard, rational, thin_prism, tilted or fisheye."""

    model: str = "standard"
    image_size: WidthHeight
    K: Matrix3
    dist: Coefficients = Field(default=[])


class _MulticalPose(FileSchema):
    """Rig to camera."""

    R: Matrix3
    T: Column3 | Row3


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
    cameras = []
    for name in known:
        camera = validated(_MulticalCamera, given[name], path.name, name)
        pose = None
        if poses:
            rigid = validated(_MulticalPose, pose_of[name], path.name, name)
            pose = pose_matrix(rotation_of(rigid.R), flat(rigid.T))
        with error_context(path.name, name):
            distortion = (fisheye if camera.model == "fisheye" else brown_conrady)(flat(camera.dist))
        size = (camera.image_size[1], camera.image_size[0])
        cameras.append(opencv_camera(path, name, camera.K, size, pose, distortion))
    left_out = [name for name in given if name not in known]
    notices = (f"{path.name}: {listed(left_out)} left out: without a pose",) if left_out else ()
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=tuple(cameras), notices=notices)


class _Gaussians(FileSchema):
    """Matrices [instant][camera], and the pictures; the centre of the top-left pixel is at (0.5, 0.5)."""

    w: Side
    h: Side
    k: list[list[Matrix3]]
    w2c: list[list[Matrix4]]
    fn: list[list[str]]


def read_gaussians(path: Path, content: dict[str, Any]) -> Calibration:
    """Read `train_meta.json` of Dynamic 3D Gaussians: a camera per instant and view, named by its picture.

    Raises:
        InputError: if a camera is invalid, or the lists have other lengths.
    """
    given = validated(_Gaussians, content, path.name)
    lenses, poses = ([torch.tensor(matrix, dtype=torch.float64) for row in rows for matrix in row] for rows in
                     (given.k, given.w2c))  # fmt: skip
    names = group_images([name for row in given.fn for name in row])
    check_count(path, len(names), "images", MAX_IMAGES)
    if not len(names) == len(lenses) == len(poses):
        raise unreadable(path, f"fn, k and w2c have {len(names)}, {len(lenses)} and {len(poses)} entries")
    size = (given.h, given.w)
    images = [ImageCamera(name, lens, pose, size) for name, lens, pose in zip(names, lenses, poses, strict=True)]
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=join_images(path.name, images))


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
    """Read `cameras.json` of 3D Gaussian Splatting: a list of images.

    Raises:
        InputError: if a camera is invalid.
    """
    check_count(path, len(content), "images", MAX_IMAGES)
    given = [validated(_TrainerCamera, raw, path.name, f"number {index + 1}") for index, raw in enumerate(content)]
    names = group_images([camera.img_name for camera in given])
    check_count(path, len({name.view for name in names}))
    images = []
    for camera, name in zip(given, names, strict=True):
        lens = pinhole(camera.fx, camera.fy, camera.width / 2, camera.height / 2)
        pose = invert_rigid(pose_matrix(rotation_of(camera.rotation), camera.position))
        images.append(ImageCamera(name, lens, pose, (camera.height, camera.width)))
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=join_images(path.name, images))
