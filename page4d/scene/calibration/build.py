"""Construction of calibrated cameras from the numbers of a file."""

import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rigid import rigid
from page4d.geometry.rotation import matrix_from_rotation_vector, nearest_rotation, rotation_defect
from page4d.scene.calibration.files import error_context
from page4d.scene.calibration.record import MAX_SIDE_PX, ROTATION_TOLERANCE, CalibratedCamera

_MAX_ROTATION_RAD = 4 * math.pi
"""Largest length of a rotation vector; OpenCV's are shorter than half a turn, those of other optimizers vary."""


class FileSchema(BaseModel):
    """Base class of the schemas of files: numbers are finite, and neither text nor truth values are numbers."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _refuse_other_types(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number", "Input should be a valid number")
    return value


Row3: TypeAlias = Annotated[list[float], Field(min_length=3, max_length=3)]
Row4: TypeAlias = Annotated[list[float], Field(min_length=4, max_length=4)]
Matrix3: TypeAlias = Annotated[list[Row3], Field(min_length=3, max_length=3)]
Matrix4: TypeAlias = Annotated[list[Row4], Field(min_length=4, max_length=4)]
Matrix34: TypeAlias = Annotated[list[Row4], Field(min_length=3, max_length=4)]

Side: TypeAlias = Annotated[int, Field(gt=0, le=MAX_SIDE_PX, strict=False), BeforeValidator(_refuse_other_types)]
"""Side of an image in px; Pose2Sim writes it as 640.0."""


def pinhole(
    focal_x: float, focal_y: float, center_x: float, center_y: float, skew: float = 0.0
) -> Float[Tensor, "3 3"]:
    """Build an intrinsic matrix."""
    rows = [[focal_x, skew, center_x], [0.0, focal_y, center_y], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64)


def brown_conrady(coefficients: Sequence[float]) -> Distortion | None:
    """Build Brown-Conrady distortion from 0 to 14 coefficients in OpenCV's order; None if all are zero.

    Raises:
        InputError: for non-zero thin-prism or tilt terms (coefficients 9 to 14), which are not supported.
    """
    values = tuple(float(value) for value in coefficients)
    if any(values[8:]) or len(values) > 14:
        raise InputError(
            f"{len(values)} distortion coefficients; thin-prism and tilt terms are not supported",
            "calibrate with at most 8 coefficients (k1 k2 p1 p2 k3 k4 k5 k6)",
        )
    values = values[:8]
    padded = next(count for count in (4, 5, 8) if len(values) <= count)
    distortion = Distortion(model=LensModel.BROWN_CONRADY, coefficients=values + (0.0,) * (padded - len(values)))
    return None if distortion.is_identity else distortion


def fisheye(coefficients: Sequence[float]) -> Distortion:
    """Build fisheye distortion from up to four coefficients, padded with zeros."""
    values = tuple(float(value) for value in coefficients)
    return Distortion(model=LensModel.FISHEYE, coefficients=values + (0.0,) * (4 - len(values)))


def rotation_from_vector(vector: Sequence[float]) -> Float[Tensor, "3 3"]:
    """Convert a rotation vector (Rodrigues, in radians) to a matrix.

    Raises:
        InputError: if it is longer than two turns.
    """
    angle = math.hypot(*vector)
    if angle > _MAX_ROTATION_RAD:
        raise InputError(f"the rotation vector has a length of {angle:.6g} rad", "give it in radians, not in degrees")
    return matrix_from_rotation_vector(torch.tensor(list(vector), dtype=torch.float64))


def parse_number(text: str) -> float | None:
    """Parse a number of a text format; None for other text, also for `1_6` and digits that Python alone accepts."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def is_rotation(matrix: Float[Tensor, "*F 3 3"]) -> bool:
    """Return True if all matrices are rotations within `ROTATION_TOLERANCE`."""
    return bool(torch.isfinite(matrix).all()) and bool((rotation_defect(matrix) <= ROTATION_TOLERANCE).all())


def orthonormalized(world_to_camera: Float[Tensor, "*F 4 4"]) -> Float[Tensor, "*F 4 4"]:
    """Replace rounded rotations by the nearest exact ones; transforms with other matrices are returned unchanged."""
    rotation = world_to_camera[..., :3, :3]
    if not is_rotation(rotation):
        return world_to_camera
    upper = torch.cat([nearest_rotation(rotation), world_to_camera[..., :3, 3:]], dim=-1)
    return torch.cat([upper, world_to_camera[..., 3:, :]], dim=-2)


def make_camera(
    label: str,
    name: str,
    *,
    intrinsics: Float[Tensor, "3 3"],
    world_to_camera: Float[Tensor, "*F 4 4"],
    image_size: tuple[int, int] | None,
    distortion: Distortion | None = None,
    frames: tuple[str, ...] | None = None,
    times: tuple[float, ...] | None = None,
    pixel_center: float = PIXEL_CENTER,
) -> CalibratedCamera:
    """Build a camera from the matrices of a file whose top-left pixel centre is at `pixel_center`.

    Raises:
        InputError: with the file (`label`) and the name of the camera.
    """
    with error_context(label, name):
        return CalibratedCamera(
            name=name,
            image_size=image_size,
            intrinsics=move_pixel_center(intrinsics, pixel_center),
            world_to_camera=orthonormalized(world_to_camera),
            distortion=distortion,
            frames=frames,
            times=times,
        )


def pose_matrix(rotation: Float[Tensor, "*F 3 3"], translation: Sequence[float]) -> Float[Tensor, "*F 4 4"]:
    """Build `world_to_camera` from its rotation and translation."""
    return rigid(rotation, torch.tensor(list(translation), dtype=torch.float64))
