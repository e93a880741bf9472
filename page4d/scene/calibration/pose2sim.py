"""Calibrations of Pose2Sim and Anipose: a TOML table for each camera.

The files do not state their unit: Pose2Sim writes metres, Anipose usually millimetres. Metres are assumed.

Source: the calibration files that both projects document (Pose2Sim and Anipose user guides); formats.md section 2.
"""

import tomllib
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field

from page4d.conventions import INTEGER_PIXEL_CENTER, Scale
from page4d.scene.calibration.build import (
    Matrix3,
    Row3,
    Side,
    brown_conrady,
    fisheye,
    make_camera,
    pose,
    rotation_from_vector,
)
from page4d.scene.calibration.files import blame, read_text, unreadable, validated
from page4d.scene.calibration.record import CalibratedCamera, Calibration

CAMERA_KEYS = frozenset({"matrix", "rotation", "translation"})


class _CameraTable(BaseModel):
    """One camera: OpenCV's intrinsics and coefficients, `rotation` as a Rodrigues vector, world to camera."""

    name: str | None = None
    size: Annotated[list[Side], Field(min_length=2, max_length=2)]
    matrix: Matrix3
    distortions: list[float] = []
    rotation: Row3
    translation: Row3
    fisheye: bool = False


def read_pose2sim(path: Path) -> Calibration:
    """Read the TOML file of Pose2Sim or Anipose. Tables without camera keys (`[metadata]`) are passed over.

    Raises:
        InputError: if it is not such a file, or a camera in it cannot be used.
    """
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise unreadable(path, str(error)) from None
    except (ValueError, RecursionError):
        raise unreadable(path, "a number or a nesting in it is too long") from None
    tables = {key: table for key, table in content.items() if isinstance(table, dict) and CAMERA_KEYS & set(table)}
    if not tables:
        raise unreadable(path, "no table in it describes a camera")
    cameras = tuple(_camera(path.name, key, table) for key, table in tables.items())
    return Calibration(path=path, format="Pose2Sim/Anipose TOML", scale=Scale.METRIC, cameras=cameras)


def _camera(label: str, key: str, content: dict[str, object]) -> CalibratedCamera:
    table = validated(_CameraTable, content, label, key)
    name = key if table.name is None else table.name
    with blame(label, name):
        distortion = fisheye(table.distortions) if table.fisheye else brown_conrady(table.distortions)
    return make_camera(
        label,
        name,
        intrinsics=torch.tensor(table.matrix, dtype=torch.float64),
        world_to_camera=pose(rotation_from_vector(table.rotation), table.translation),
        image_size=(table.size[1], table.size[0]),
        distortion=distortion,
        pixel_center=INTEGER_PIXEL_CENTER,
    )
