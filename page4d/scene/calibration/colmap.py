"""COLMAP models: `cameras` and `images`, as text or binary.

Source: COLMAP documentation, "Output format" and "Camera models"; formats.md section 2.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from page4d.conventions import Scale
from page4d.errors import InputError
from page4d.geometry.distortion import Distortion
from page4d.geometry.rotation import matrix_from_quaternion
from page4d.scene.calibration.build import brown_conrady, fisheye, pinhole, pose
from page4d.scene.calibration.files import blame, check_exists, read_bytes, read_text, unreadable
from page4d.scene.calibration.grouping import ImageCamera, group_images, join_images
from page4d.scene.calibration.record import CORRECT_THE_FILE, Calibration

PLACES = (".", "sparse/0", "sparse", "colmap/sparse/0")
"""Where a model may lie below the given folder, in the order of looking."""


@dataclass(frozen=True)
class _Model:
    """A camera model: `focals` is 1 or 2; `lens` puts the parameters after the centre into OpenCV's order."""

    name: str
    number: int
    focals: int
    parameters: int
    is_fisheye: bool = False


MODELS = (
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
"""Parameters: the focal lengths, the centre, then the coefficients in OpenCV's order for that lens."""

BY_NAME = {model.name: model for model in MODELS}
BY_NUMBER = {model.number: model for model in MODELS}


@dataclass(frozen=True)
class _Lens:
    model: _Model
    width: int
    height: int
    parameters: tuple[float, ...]


@dataclass(frozen=True)
class _Posed:
    """An image's name, lens number and world-to-camera pose (wxyz, then translation)."""

    name: str
    lens: int
    numbers: tuple[float, ...]


def find_colmap(folder: Path) -> Path | None:
    """Return where in or below `folder` a COLMAP model lies, or None."""
    for place in PLACES:
        for ending in (".bin", ".txt"):
            if all((folder / place / f"{stem}{ending}").is_file() for stem in ("cameras", "images")):
                return folder / place
    return None


def read_colmap(path: Path) -> Calibration:
    """Read the model in a folder, in `sparse/0` below it, or beside one of its files; binary before text.

    An image `cam01/000000.png` is frame 000000 of the view cam01, and `cam01.png` is all of the view cam01.
    The scale is arbitrary.

    Raises:
        InputError: if there is no model, it is damaged, or a camera in it cannot be used.
    """
    check_exists(path)
    folder = find_colmap(path if path.is_dir() else path.parent)
    if folder is None:
        raise unreadable(path, "it holds no COLMAP model (cameras and images, .bin or .txt)")
    if path.suffix != ".txt" and all((folder / f"{stem}.bin").is_file() for stem in ("cameras", "images")):
        lenses = _read_binary_lenses(folder / "cameras.bin")
        images = _read_binary_images(folder / "images.bin")
    else:
        lenses = _read_text_lenses(folder / "cameras.txt")
        images = _read_text_images(folder / "images.txt")
    images = sorted(images, key=lambda image: image.name)
    names = group_images([image.name for image in images])
    label = folder.name or str(folder)
    joined = []
    for image, name in zip(images, names, strict=True):
        with blame(label, name.view):
            if image.lens not in lenses:
                raise InputError(
                    f"image {image.name} uses camera number {image.lens}, which is missing", CORRECT_THE_FILE
                )
            joined.append(_image_camera(name.view, name.frame, lenses[image.lens], image))
    return Calibration(path=path, format="COLMAP", scale=Scale.ARBITRARY, cameras=join_images(label, joined))


def _image_camera(view: str, frame: str | None, lens: _Lens, image: _Posed) -> ImageCamera:
    quaternion = torch.tensor(image.numbers[:4], dtype=torch.float64)
    focals, rest = lens.parameters[: lens.model.focals], lens.parameters[lens.model.focals :]
    return ImageCamera(
        view=view,
        frame=frame,
        intrinsics=pinhole(focals[0], focals[-1], *rest[:2]),
        world_to_camera=pose(matrix_from_quaternion(quaternion), image.numbers[4:]),
        image_size=(lens.height, lens.width),
        distortion=_distortion(lens.model, rest[2:]),
    )


def _distortion(model: _Model, values: Sequence[float]) -> Distortion | None:
    return fisheye(values) if model.is_fisheye else brown_conrady(values)


def _model(path: Path, found: _Model | None, called: object) -> _Model:
    if found is None:
        names = ", ".join(BY_NAME)
        raise InputError(
            f"{path.name}: the camera model {called} is not supported", f"undistort first; known: {names}"
        )
    return found


def _text_rows(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers and lines without the comments."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.startswith("#"):
            yield number, line.strip()


def _read_text_lenses(path: Path) -> dict[int, _Lens]:
    lenses = {}
    for number, line in _text_rows(path):
        if not line:
            continue
        words = line.split()
        if len(words) < 4:
            raise unreadable(path, f"line {number}: not CAMERA_ID MODEL WIDTH HEIGHT PARAMS")
        try:
            key, width, height = int(words[0]), int(words[2]), int(words[3])
        except ValueError:
            raise unreadable(path, f"line {number}: not CAMERA_ID MODEL WIDTH HEIGHT PARAMS") from None
        model = _model(path, BY_NAME.get(words[1]), words[1][:40])
        if len(words) != 4 + model.parameters:
            raise unreadable(path, f"line {number}: {len(words) - 4} parameters, {model.name} has {model.parameters}")
        try:
            lenses[key] = _Lens(model, width, height, tuple(float(word) for word in words[4:]))
        except ValueError:
            raise unreadable(path, f"line {number}: a word is not a number") from None
    return lenses


def _read_text_images(path: Path) -> list[_Posed]:
    """Read every other line: after an image's line comes that of its points, which may be empty."""
    images = []
    rows = _text_rows(path)
    for number, line in rows:
        if not line:
            continue
        words = line.split(maxsplit=9)
        if len(words) < 10:
            raise unreadable(path, f"line {number}: not IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME")
        try:
            images.append(_Posed(words[9], int(words[8]), tuple(float(word) for word in words[1:8])))
        except ValueError:
            raise unreadable(path, f"line {number}: a word is not a number") from None
        next(rows, None)
    return images


class _Bytes:
    """A binary file read from front to back; going past its end is an InputError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_bytes(path)
        self._place = 0

    def take(self, layout: str) -> tuple[float, ...]:
        """Read little-endian numbers."""
        size = struct.calcsize(f"<{layout}")
        self._need(size)
        numbers = struct.unpack_from(f"<{layout}", self._content, self._place)
        self._place += size
        return numbers

    def count(self, record_bytes: int) -> int:
        """Read how many records follow, each of at least `record_bytes`."""
        number = int(self.take("Q")[0])
        self._need(number * record_bytes)
        return number

    def skip(self, size: int) -> None:
        """Pass over bytes that the file was checked to have."""
        self._place += size

    def text(self) -> str:
        """Read up to and including a zero byte."""
        end = self._content.find(b"\0", self._place)
        if end < 0:
            raise unreadable(self._path, "a name in it has no end")
        raw, self._place = self._content[self._place : end], end + 1
        return raw.decode("utf-8", errors="replace")

    def _need(self, size: int) -> None:
        missing = self._place + size - len(self._content)
        if missing > 0:
            raise unreadable(self._path, f"it is incomplete: {missing} bytes are missing")


def _read_binary_lenses(path: Path) -> dict[int, _Lens]:
    source = _Bytes(path)
    lenses = {}
    for _ in range(source.count(24 + 3 * 8)):
        key, number, width, height = (int(value) for value in source.take("iiQQ"))
        model = _model(path, BY_NUMBER.get(number), f"number {number}")
        lenses[key] = _Lens(model, width, height, source.take(f"{model.parameters}d"))
    return lenses


def _read_binary_images(path: Path) -> list[_Posed]:
    source = _Bytes(path)
    images = []
    for _ in range(source.count(4 + 7 * 8 + 4 + 1 + 8)):
        source.take("i")
        numbers = source.take("7d")
        lens = int(source.take("i")[0])
        images.append(_Posed(source.text(), lens, numbers))
        source.skip(24 * source.count(24))
    return images
