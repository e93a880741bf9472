"""Calibrated cameras from the content of a file: schemas, matrices, lenses, and cameras of single images.

Formats that calibrate each image (COLMAP, nerfstudio) name images, not views: `group_images` divides the names into
views and frames, and `join_images` makes one camera of the images of a view.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from page4d.conventions import PIXEL_CENTER
from page4d.errors import InputError
from page4d.formats.camera_model import CORRECTION_HINT, MAX_SIDE_PX, ROTATION_TOLERANCE, CalibratedCamera
from page4d.formats.files import error_context
from page4d.geometry.camera import move_pixel_center
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import matrix_from_rotation_vector, nearest_rotation, rotation_defect
from page4d.geometry.transforms import rigid
from page4d.io.input_files import (
    CAMERA_IN_NAME,
    CAMERA_NAME,
    CAMERA_WORD,
    VIDEO_SUFFIXES,
    camera_in_name,
    natural_key,
)

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
"""Side of an image in px; some tools write it as 640.0."""

WidthHeight: TypeAlias = Annotated[list[Side], Field(min_length=2, max_length=2)]


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
    """Build fisheye distortion from up to four coefficients, padded with zeros; Anipose writes a fifth, zero."""
    values = tuple(float(value) for value in coefficients)
    values = values if any(values[4:]) else values[:4]
    return Distortion(model=LensModel.FISHEYE, coefficients=values + (0.0,) * (4 - len(values)))


def rotation_of(values: Sequence[float] | Sequence[Sequence[float]]) -> Float[Tensor, "3 3"]:
    """Return a rotation given as a matrix, or as a rotation vector (Rodrigues, in radians).

    Raises:
        InputError: if a vector is longer than two turns.
    """
    given = torch.tensor(values, dtype=torch.float64)
    if given.shape == (3, 3):
        return given
    angle = math.hypot(*given.flatten().tolist())
    if angle > _MAX_ROTATION_RAD:
        raise InputError(f"the rotation vector has a length of {angle:.6g} rad", "give it in radians, not in degrees")
    return matrix_from_rotation_vector(given.flatten())


def parse_number(text: str) -> float | None:
    """Parse a number of a text format; None for other text, also for `1_6` and digits that Python alone accepts."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def number_of(value: object, key: str) -> float:
    """Return a number of a file, which YAML and XML hold as text; `key` names it in the error.

    Raises:
        InputError: if it is missing, or no number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # JSON
    if not isinstance(value, str):
        found = "is missing" if value is None else "contains a value that is not a number"
        raise InputError(f"{key} {found}", CORRECTION_HINT)
    # OpenCV writes .Nan, .Inf and -.Inf, as YAML does.
    number = parse_number(value.replace(".Nan", "nan").replace(".Inf", "inf"))
    if number is None:
        raise InputError(f"{key} contains '{value[:20]}', which is not a number", CORRECTION_HINT)
    return number


def whole_size(height: float, width: float) -> tuple[int, int]:
    """Return (height, width) of an image in whole pixels.

    Raises:
        InputError: if a side is not a positive whole number.
    """
    check_size(height, width, is_valid=height % 1 == width % 1 == 0)
    return int(height), int(width)


def check_size(height: float, width: float, *, is_valid: bool = True) -> None:
    """Refuse sides of an image in px that are not positive, not plausible, or not valid for another reason.

    Raises:
        InputError: if they are.
    """
    if not (is_valid and 0 < height < 1e9 and 0 < width < 1e9):
        raise InputError(f"the image size is {width:g}x{height:g}", CORRECTION_HINT)


def is_rotation(matrix: Float[Tensor, "*F 3 3"]) -> bool:
    """Return True if all matrices are rotations within `ROTATION_TOLERANCE`."""
    return bool(torch.isfinite(matrix).all()) and bool((rotation_defect(matrix) <= ROTATION_TOLERANCE).all())


def orthonormalized(world_to_camera: Float[Tensor, "*F 4 4"]) -> Float[Tensor, "*F 4 4"]:
    """Replace rounded rotations by the nearest exact ones.

    Rotations that are exact in double precision and transforms with other matrices are returned unchanged.
    """
    rotation = world_to_camera[..., :3, :3]
    if not is_rotation(rotation):
        return world_to_camera
    is_exact = (rotation_defect(rotation) < _EXACT)[..., None, None]
    upper = torch.cat(
        [torch.where(is_exact, rotation, nearest_rotation(rotation)), world_to_camera[..., :3, 3:]], dim=-1
    )
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
    nominal_width: float | None = None,
) -> CalibratedCamera:
    """Build a camera from its fields, as in a file whose top-left pixel centre is at `pixel_center`.

    Rounded rotations become exact.

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
            nominal_width=nominal_width,
        )


def pose_matrix(rotation: Float[Tensor, "*F 3 3"], translation: Sequence[float]) -> Float[Tensor, "*F 4 4"]:
    """Build `world_to_camera` from its rotation and translation."""
    return rigid(rotation, torch.tensor(list(translation), dtype=torch.float64))


_IMAGE_SUFFIXES = frozenset(".png .jpg .jpeg .webp .bmp .tif .tiff .exr .heic .heif .gif .ppm .pgm".split())

_EXACT = 4e-15
"""Defect of a rotation that is rounded to double precision."""

_EQUAL_TOLERANCE = 1e-6
"""Difference of equal poses, and of equal intrinsics relative to their magnitude."""

_ONE_CAMERA_HINT = "calibrate with one camera per view (COLMAP: --ImageReader.single_camera_per_folder 1)"

_COLLECTION_FOLDER = re.compile(r"images?(_\d+)?|rgb|input|frames|photos", re.IGNORECASE)
"""Names of folders that contain the images of all views, not of one view."""

_NUMBER = re.compile(r"/[ _.-]+\d{3,}|\d{3,}[ _.-]+/")
"""Name of a frame whose only camera is replaced by a slash."""


@dataclass(frozen=True)
class ImageName:
    """View and frame of an image; `frame` is None if the view has a single image."""

    view: str
    frame: str | None


def group_images(names: Sequence[str], *, one_moving_camera: bool = False) -> list[ImageName]:
    """Split image names (`cam01/000000.png`) into view and frame.

    With several folders, each folder is a view, named by the part of its path that differs, unless they are instants
    with images of cameras (`000000/cam01.png`). A single folder is one view, unless its images have the names of
    several with the same padded numbers (`cam01_000000.png`), it has a collective name such as `images`, or the names
    have no folder: then each image is a separate view (`cam01.png`), or with `one_moving_camera` a frame of one
    camera. A video is a view.
    """
    paths = [PurePosixPath(name.replace("\\", "/")) for name in names]
    folders = [tuple(part for part in path.parts[:-1] if part not in ("/", ".")) for path in paths]
    suffixes = _IMAGE_SUFFIXES | VIDEO_SUFFIXES
    stems = [path.stem if path.suffix.lower() in suffixes else path.name for path in paths]
    distinct = sorted(set(folders))
    are_videos = all(path.suffix.lower() in VIDEO_SUFFIXES - _IMAGE_SUFFIXES for path in paths)
    # With one video in each of several folders, the folders are the views.
    are_videos = are_videos and len(set(stems)) == len(stems) and not 1 < len(distinct) == len(paths)
    if len(distinct) > 1 and not are_videos:
        view_of = _folder_names(distinct)
        if _are_instants(view_of.values(), stems):
            return [ImageName(stem, view_of[folder]) for folder, stem in zip(folders, stems, strict=True)]
        return [
            ImageName(view_of[folder], stem) if folder else ImageName(stem, None)
            for folder, stem in zip(folders, stems, strict=True)
        ]
    if _are_frames_of_cameras(stems) and not one_moving_camera:
        return [ImageName(str(camera_in_name(stem)), stem) for stem in stems]
    name = distinct[0][-1] if distinct and distinct[0] and not are_videos else ""
    if one_moving_camera or (name and not _COLLECTION_FOLDER.fullmatch(name)):
        return [ImageName(name or "camera", stem) for stem in stems]
    return [ImageName(stem, None) for stem in stems]


def _are_instants(folders: Collection[str], stems: Sequence[str]) -> bool:
    """Return whether folders are numbered instants with images named after cameras, as in `000000/cam01.png`."""
    are_cameras = all(map(CAMERA_NAME.fullmatch, stems)) and len(set(stems)) < len(stems)
    return are_cameras and all(
        re.search(r"\d", folder) and not re.match(CAMERA_WORD, folder, re.IGNORECASE) for folder in folders
    )


def _are_frames_of_cameras(stems: Sequence[str]) -> bool:
    """Return whether names are those of several cameras at the same padded numbers, as in `cam01_000000`."""
    cameras = {camera_in_name(stem) for stem in stems}
    numbers = {CAMERA_IN_NAME.sub("/", stem) for stem in stems}
    is_grid = min(len(cameras), len(numbers)) > 1 and len(cameras) * len(numbers) == len(stems) == len({*stems})
    return is_grid and all(map(_NUMBER.fullmatch, numbers)) and min(numbers).lstrip("/ _.-").startswith("0")


def _folder_names(folders: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Name each folder by its last part, or by the parts that are not common to all if the last is not unique."""
    last = {folder: folder[-1] if folder else "" for folder in folders}
    if len(set(last.values())) == len(folders):
        return last
    shortest = min(len(folder) for folder in folders)
    lead = tail = 0
    while lead < shortest and len({folder[lead] for folder in folders}) == 1:
        lead += 1
    while tail < shortest - lead and len({folder[-tail - 1] for folder in folders}) == 1:
        tail += 1
    return {folder: "/".join(folder[lead : len(folder) - tail]) or "/".join(folder) for folder in folders}


@dataclass(frozen=True)
class ImageCamera:
    """The camera of a single image."""

    name: ImageName
    intrinsics: Float[Tensor, "3 3"]
    world_to_camera: Float[Tensor, "4 4"]
    image_size: tuple[int, int] | None
    distortion: Distortion | None = None
    nominal_width: float | None = None


def join_images(label: str, images: Sequence[ImageCamera]) -> tuple[CalibratedCamera, ...]:
    """Merge the images of each view into one camera: static if their poses are equal up to rounding, else moving.

    Raises:
        InputError: if a view has a frame twice, or its intrinsics, distortion or image size change between frames.
    """
    views: dict[str, list[ImageCamera]] = {}
    for image in images:
        views.setdefault(image.name.view, []).append(image)
    return tuple(_join_view(label, name, members) for name, members in views.items())


def _join_view(label: str, name: str, images: list[ImageCamera]) -> CalibratedCamera:
    with error_context(label, name):
        images = sorted(images, key=lambda image: natural_key(image.name.frame or ""))
        frames = tuple(image.name.frame or "" for image in images)
        _check_frames(frames)
        _check_one_camera(images)
    poses = torch.stack([image.world_to_camera for image in images])
    is_static = bool(((poses - poses[0]).abs() <= _EQUAL_TOLERANCE).all()) or len(images) == 1
    return make_camera(
        label,
        name,
        intrinsics=images[0].intrinsics,
        world_to_camera=poses[0] if is_static else poses,
        image_size=images[0].image_size,
        distortion=images[0].distortion,
        nominal_width=images[0].nominal_width,
        frames=None if is_static else frames,
    )


def _check_frames(frames: tuple[str, ...]) -> None:
    repeated = next((frame for frame, following in pairwise(sorted(frames)) if frame == following), None)
    if repeated is not None:
        raise InputError(
            f"frame {repeated} appears twice" if repeated else "two images have this name",
            "give each image of a view its own name",
        )


def _check_one_camera(images: list[ImageCamera]) -> None:
    first = images[0]
    for image in images[1:]:
        change = float((image.intrinsics - first.intrinsics).abs().max())
        if change > _EQUAL_TOLERANCE * (1 + float(first.intrinsics.abs().max())):
            raise InputError(f"the intrinsics change by {change:.3g} px between frames", _ONE_CAMERA_HINT)
        if image.distortion != first.distortion or image.image_size != first.image_size:
            raise InputError("the distortion or the image size changes between frames", _ONE_CAMERA_HINT)


def matrix_of(value: object, key: str) -> Tensor:
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
    matrix = matrix_of(value, key)
    if matrix.shape != (rows, columns):
        raise InputError(f"{key} has shape {tuple(matrix.shape)}, expected {(rows, columns)}", CORRECTION_HINT)
    return matrix
