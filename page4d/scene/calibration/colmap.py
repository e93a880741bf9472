"""COLMAP models: the files `cameras` and `images`, as text or binary.

Source: COLMAP documentation, "Output format" and "Camera models".
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from page4d.conventions import Scale
from page4d.errors import InputError, shortened
from page4d.geometry.rotation import matrix_from_quaternion
from page4d.scene.calibration.build import brown_conrady, fisheye, parse_number, pinhole, pose_matrix
from page4d.scene.calibration.files import (
    MAX_IMAGES,
    check_count,
    check_exists,
    error_context,
    read_bytes,
    read_text,
    unreadable,
)
from page4d.scene.calibration.grouping import ImageCamera, group_images, join_images
from page4d.scene.calibration.record import CORRECTION_HINT, Calibration

_MODEL_FOLDERS = (".", "sparse/0", "sparse", "colmap/sparse/0")
"""Folders that may contain the model, below the given one and in search order."""


@dataclass(frozen=True)
class _Model:
    """A camera model with 1 or 2 focal lengths and `num_parameters` parameters in total.

    The parameters are the focal lengths, the principal point, and distortion coefficients in OpenCV's order.
    """

    name: str
    number: int
    num_focals: int
    num_parameters: int
    is_fisheye: bool = False


_MODELS = (
    _Model("SIMPLE_PINHOLE", 0, 1, 3),
    _Model("PINHOLE", 1, 2, 4),
    _Model("SIMPLE_RADIAL", 2, 1, 4),
    _Model("RADIAL", 3, 1, 5),
    _Model("OPENCV", 4, 2, 8),
    _Model("OPENCV_FISHEYE", 5, 2, 8, is_fisheye=True),
    _Model("FULL_OPENCV", 6, 2, 12),
    _Model("SIMPLE_RADIAL_FISHEYE", 8, 1, 4, is_fisheye=True),
    _Model("RADIAL_FISHEYE", 9, 1, 5, is_fisheye=True),
)
_MODEL_BY_NAME = {model.name: model for model in _MODELS}
_MODEL_BY_NUMBER = {model.number: model for model in _MODELS}


@dataclass(frozen=True)
class _Camera:
    """A row of the file `cameras`."""

    model: _Model
    width: int
    height: int
    parameters: tuple[float, ...]


@dataclass(frozen=True)
class _Image:
    """A row of the file `images`: name, camera number and world-to-camera pose (wxyz, then translation)."""

    name: str
    camera: int
    pose: tuple[float, ...]


def find_colmap(folder: Path) -> Path | None:
    """Return the folder of the COLMAP model in or below `folder`, or None."""
    for subfolder in _MODEL_FOLDERS:
        for suffix in (".bin", ".txt"):
            if all((folder / subfolder / f"{stem}{suffix}").is_file() for stem in ("cameras", "images")):
                return folder / subfolder
    return None


def read_colmap(path: Path) -> Calibration:
    """Read the model in a folder, in `sparse/0` below it, or in the folder of one of its files; binary before text.

    The image `cam01/000000.png` is frame 000000 of the view cam01, `cam01.png` is the only image of the view cam01.
    The scale is arbitrary.

    Raises:
        InputError: if there is no model, it is damaged, or a camera is invalid.
    """
    check_exists(path)
    folder = find_colmap(path if path.is_dir() else path.parent)
    if folder is None:
        raise unreadable(path, "it contains no COLMAP model (cameras and images, .bin or .txt)")
    if path.suffix != ".txt" and all((folder / f"{stem}.bin").is_file() for stem in ("cameras", "images")):
        cameras = _read_binary_cameras(folder / "cameras.bin")
        images = _read_binary_images(folder / "images.bin")
    else:
        cameras = _read_text_cameras(folder / "cameras.txt")
        images = _read_text_images(folder / "images.txt")
    check_count(folder, len(images), "images", MAX_IMAGES)
    images = sorted(images, key=lambda image: image.name)
    names = group_images([image.name for image in images])
    check_count(folder, len({name.view for name in names}))
    label = folder.name or str(folder)
    joined = []
    for image, name in zip(images, names, strict=True):
        with error_context(label, name.view):
            if image.camera not in cameras:
                raise InputError(
                    f"image {image.name} uses camera number {image.camera}, which is missing", CORRECTION_HINT
                )
            joined.append(_image_camera(name.view, name.frame, cameras[image.camera], image))
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=join_images(label, joined))


def _image_camera(view: str, frame: str | None, camera: _Camera, image: _Image) -> ImageCamera:
    quaternion = torch.tensor(image.pose[:4], dtype=torch.float64)
    num_focals = camera.model.num_focals
    focals, rest = camera.parameters[:num_focals], camera.parameters[num_focals:]
    return ImageCamera(
        view=view,
        frame=frame,
        intrinsics=pinhole(focals[0], focals[-1], *rest[:2]),
        world_to_camera=pose_matrix(matrix_from_quaternion(quaternion), image.pose[4:]),
        image_size=(camera.height, camera.width),
        distortion=fisheye(rest[2:]) if camera.model.is_fisheye else brown_conrady(rest[2:]),
    )


def _supported(path: Path, model: _Model | None, name: str) -> _Model:
    if model is None:
        raise InputError(
            f"{path.name}: the camera model {name} is not supported",
            f"undistort the images first; supported: {', '.join(_MODEL_BY_NAME)}",
        )
    return model


def _text_rows(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.startswith("#"):
            yield number, line.strip()


def _read_text_cameras(path: Path) -> dict[int, _Camera]:
    cameras: dict[int, _Camera] = {}
    for number, line in _text_rows(path):
        if not line:
            continue
        words = line.split()
        try:
            key, name, width, height = int(words[0]), words[1], int(words[2]), int(words[3])
        except (ValueError, IndexError):
            raise unreadable(path, f"line {number}: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS") from None
        model = _supported(path, _MODEL_BY_NAME.get(name), name[:40])
        if len(words) != 4 + model.num_parameters:
            raise unreadable(
                path, f"line {number}: {len(words) - 4} parameters, {model.name} has {model.num_parameters}"
            )
        _add_camera(cameras, key, _Camera(model, width, height, _numbers(path, number, words[4:])), path)
    return cameras


def _read_text_images(path: Path) -> list[_Image]:
    """Read every other line: the line after an image lists its points and may be empty."""
    images = []
    rows = _text_rows(path)
    for number, line in rows:
        if not line:
            continue
        words = line.split(maxsplit=9)
        if len(words) < 10:
            raise unreadable(path, f"line {number}: expected IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME")
        pose = _numbers(path, number, words[1:8])
        try:
            images.append(_Image(words[9], int(words[8]), pose))
        except ValueError:
            raise unreadable(path, f"line {number}: CAMERA_ID is not an integer") from None
        next(rows, None)
    return images


def _numbers(path: Path, line: int, words: list[str]) -> tuple[float, ...]:
    numbers = [parse_number(word) for word in words]
    known = tuple(number for number in numbers if number is not None)
    if len(known) < len(words):
        raise unreadable(path, f"line {line}: '{shortened(words[numbers.index(None)])}' is not a number")
    return known


def _add_camera(cameras: dict[int, _Camera], key: int, camera: _Camera, path: Path) -> None:
    if key in cameras:
        raise unreadable(path, f"camera number {key} appears twice")
    cameras[key] = camera


class _BinaryReader:
    """Sequential reader of a binary file; reading past the end raises InputError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_bytes(path)
        self._offset = 0

    def take(self, layout: str) -> tuple[float, ...]:
        """Read little-endian numbers."""
        size = struct.calcsize(f"<{layout}")
        self._need(size)
        numbers = struct.unpack_from(f"<{layout}", self._content, self._offset)
        self._offset += size
        return numbers

    def count(self, record_bytes: int) -> int:
        """Read the number of records that follow, each of at least `record_bytes`."""
        number = int(self.take("Q")[0])
        self._need(number * record_bytes)
        return number

    def skip(self, size: int) -> None:
        """Skip bytes that `count` has checked."""
        self._offset += size

    def text(self) -> str:
        """Read a zero-terminated string."""
        end = self._content.find(b"\0", self._offset)
        if end < 0:
            raise unreadable(self._path, "a name is not terminated")
        raw, self._offset = self._content[self._offset : end], end + 1
        return raw.decode("utf-8", errors="replace")

    def _need(self, size: int) -> None:
        missing = self._offset + size - len(self._content)
        if missing > 0:
            raise unreadable(self._path, f"it is incomplete: {missing} bytes are missing")


def _read_binary_cameras(path: Path) -> dict[int, _Camera]:
    source = _BinaryReader(path)
    cameras: dict[int, _Camera] = {}
    for _ in range(source.count(24 + 3 * 8)):
        key, number, width, height = (int(value) for value in source.take("iiQQ"))
        model = _supported(path, _MODEL_BY_NUMBER.get(number), f"number {number}")
        _add_camera(cameras, key, _Camera(model, width, height, source.take(f"{model.num_parameters}d")), path)
    return cameras


def _read_binary_images(path: Path) -> list[_Image]:
    source = _BinaryReader(path)
    images = []
    for _ in range(source.count(4 + 7 * 8 + 4 + 1 + 8)):
        source.take("i")
        pose = source.take("7d")
        camera = int(source.take("i")[0])
        images.append(_Image(source.text(), camera, pose))
        source.skip(24 * source.count(24))
    return images
