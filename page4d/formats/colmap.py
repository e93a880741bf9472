"""COLMAP models: records, and the files of a model as binary or text, read as calibrations and written.

Poses map world to camera, with OpenCV axes. Pixels have the
centre of the top-left one at (0.5, 0.5). All identifiers start at 1.

Source: COLMAP documentation, "Output format" and "Camera models"; rigs and frames as written since COLMAP 3.12.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.conventions import Scale
from page4d.errors import InputError, counted, listed, shortened
from page4d.formats import build
from page4d.formats.build import ImageCamera, ImageName
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.files import MAX_IMAGES, check_count, error_context, read_bytes, read_text, unreadable
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import matrix_from_quaternion, quaternion_from_matrix
from page4d.io.folders import write_file
from page4d.io.input_files import composed, natural_key
from page4d.io.json_records import readable

_MODEL_FOLDERS = ("sparse", "sparse/*", "colmap/sparse", "colmap/sparse/*", "*")
"""Folders that may contain models, below one that is none itself; those of COLMAP have numbers."""

_CAMERA_SENSOR = 0

_POINTS_AT_ONCE = 1 << 18

_POINT = np.dtype(
    [
        ("id", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("track_length", "<u8"),
        ("image", "<i4"), ("index", "<i4"),
    ]
)  # fmt: skip
"""A record of points3D.bin whose track has one element; a point without a track ends before `image`."""

_TRACK_BYTES = 8

_OBSERVATION = np.dtype([("xy", "<f8", 2), ("point", "<i8")])
"""A record of points2D in images.bin."""


@dataclass(frozen=True)
class CameraModel:
    """A camera model with 1 or 2 focal lengths and `num_parameters` parameters in total.

    The parameters are the focal lengths, the principal point, and distortion coefficients in OpenCV's order.
    """

    name: str
    number: int
    num_focals: int
    num_parameters: int
    is_fisheye: bool = False


_CAMERA_MODELS = (
    CameraModel("SIMPLE_PINHOLE", 0, 1, 3),
    CameraModel("PINHOLE", 1, 2, 4),
    CameraModel("SIMPLE_RADIAL", 2, 1, 4),
    CameraModel("RADIAL", 3, 1, 5),
    CameraModel("OPENCV", 4, 2, 8),
    CameraModel("OPENCV_FISHEYE", 5, 2, 8, is_fisheye=True),
    CameraModel("FULL_OPENCV", 6, 2, 12),
    CameraModel("SIMPLE_RADIAL_FISHEYE", 8, 1, 4, is_fisheye=True),
    CameraModel("RADIAL_FISHEYE", 9, 1, 5, is_fisheye=True),
)
_MODEL_BY_NAME = {model.name: model for model in _CAMERA_MODELS}
_MODEL_BY_NUMBER = {model.number: model for model in _CAMERA_MODELS}


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A camera: its size and the `parameters` of its model."""

    id: int
    model: CameraModel
    width: int
    height: int
    parameters: tuple[float, ...]

    @staticmethod
    def of(
        id: int,  # noqa: A002
        size: tuple[int, int],
        intrinsics: NDArray[np.float64],
        distortion: Distortion | None = None,
    ) -> "Camera":
        """Make a camera of images of a (height, width) from its matrix [3, 3] without skew."""
        (fx, _, cx), (_, fy, cy), _ = intrinsics.tolist()
        name, coefficients = _lens(distortion)
        parameters = (fx, fy, cx, cy, *coefficients)
        return Camera(id=id, model=_MODEL_BY_NAME[name], width=size[1], height=size[0], parameters=parameters)


def _lens(distortion: Distortion | None) -> tuple[str, tuple[float, ...]]:
    """Return the smallest camera model that holds a distortion, and its coefficients."""
    if distortion is None:
        return "PINHOLE", ()
    coefficients = distortion.coefficients
    if distortion.model is LensModel.FISHEYE:
        return "OPENCV_FISHEYE", coefficients
    if any(coefficients[4:]):
        return "FULL_OPENCV", coefficients + (0.0,) * (8 - len(coefficients))
    return "OPENCV", coefficients[:4]


Pose = tuple[float, ...]
"""A rigid transform in the order of the files: unit quaternion (wxyz), and translation."""


def make_poses(matrices: NDArray[np.float64]) -> list[Pose]:
    """Convert rigid matrices [N, 4, 4]."""
    rotations = torch.from_numpy(np.ascontiguousarray(matrices[:, :3, :3], dtype=np.float64))
    rows = np.concatenate([quaternion_from_matrix(rotations).numpy(), matrices[:, :3, 3]], axis=1)
    return [tuple(row) for row in rows.tolist()]


_NO_PIXELS, _NO_POINTS = np.empty((0, 2)), np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image: world-to-camera `pose`, its camera, and its name below the folder of images.

    `points2d` [M, 2] are pixels and `point_ids` [M] the points that they show; a model that is read has none. Text
    files cannot hold names with spaces.
    """

    id: int
    pose: Pose
    camera_id: int
    name: str
    points2d: NDArray[np.float64] = field(default_factory=lambda: _NO_PIXELS)
    point_ids: NDArray[np.int64] = field(default_factory=lambda: _NO_POINTS)


@dataclass(frozen=True, kw_only=True)
class Points3D:
    """Points [N, 3] with colours [N, 3] and tracks of at most one element; point i of 0 to N - 1 has the id i + 1.

    `track_image` [N] is the id of the image that shows a point (0: no track) and `track_index` [N] the index in its
    `points2d`; both are None if no point has a track.
    """

    xyz: NDArray[Any]
    rgb: NDArray[np.uint8]
    track_image: NDArray[np.int32] | None = None
    track_index: NDArray[np.int32] | None = None

    def chunks(self) -> Iterator[NDArray[np.void]]:
        """Yield the records of points3D.bin in order; the length of a track is 0 or 1."""
        for start in range(0, len(self.xyz), _POINTS_AT_ONCE):
            part = slice(start, start + _POINTS_AT_ONCE)
            records = np.zeros(len(self.xyz[part]), dtype=_POINT)
            records["id"] = np.arange(start + 1, start + 1 + len(records))
            records["xyz"], records["rgb"] = self.xyz[part], self.rgb[part]
            if self.track_image is not None and self.track_index is not None:
                records["image"], records["index"] = self.track_image[part], self.track_index[part]
            records["track_length"] = records["image"] != 0
            yield records


@dataclass(frozen=True, kw_only=True)
class Rig:
    """Cameras that keep their relative poses; the first is the reference, whose `sensor_from_rig` is the identity."""

    id: int
    camera_ids: tuple[int, ...]
    sensor_from_rig: tuple[Pose, ...]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The images of a rig at one instant, in the order of its cameras, and the pose of the rig."""

    id: int
    rig: Rig
    rig_from_world: Pose
    image_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model. Without rigs and frames, COLMAP makes a rig of every camera and a frame of every image."""

    cameras: Sequence[Camera]
    images: Sequence[Image]
    points: Points3D
    rigs: Sequence[Rig] = ()
    frames: Sequence[Frame] = ()


def is_folder(folder: Path) -> bool:
    """Return True if there is a COLMAP model in or below a folder."""
    return bool(_models(folder))


def read(path: Path, views: Collection[str] | None = None) -> Calibration:
    """Read the model in or below a folder, or in the folder of one of its files.

    Of several models the only one that has cameras of all `views` is read; without `views` there may be only one.
    The image `cam01/000000.png` is frame 000000 of the view cam01, `cam01.png` is the only image of the view cam01.
    The scale is arbitrary.

    Raises:
        InputError: if several models are possible, the model is damaged, or a camera is invalid.
    """
    if path.is_file():
        return _read_model(path, path.parent, path.suffix.lower()).calibration
    models = _models(path)
    if len(models) == 1:
        return _read_folder(path, models[0]).calibration
    found = [_read_folder(path, folder) for folder in models]
    kept = [
        model
        for model in found
        if views is not None and set(views) <= {composed(name) for name in model.calibration.names}
    ]
    if kept and all(model.calibration.is_same(kept[0].calibration) for model in kept):
        others = listed([str(model) for model in found if model is not kept[0]])
        notice = f"the COLMAP model {kept[0]} is used, not {others}"
        return replace(kept[0].calibration, notices=(*kept[0].calibration.notices, notice))
    fit = f"{listed([model.name for model in kept], separator=' and ')} have" if kept else "none has"
    question = "" if views is None else f"; {fit} cameras of all views"
    largest = path / max(found, key=lambda model: model.num_images).name
    raise InputError(
        f"'{path.name or path}' contains {len(found)} COLMAP models: {listed(found)}{question}",
        f"pass the folder of one of them: ⟨calibration='{largest}'⟩",
    )


@dataclass(frozen=True)
class _ReadModel:
    """A model that was read; `name` is its folder below the given one."""

    name: str
    num_images: int
    calibration: Calibration

    def __str__(self) -> str:
        return f"{self.name} ({counted(self.num_images, 'image')})"


def _models(folder: Path) -> list[Path]:
    """Return the folder if it is a model, or else the models below it."""
    if _suffixes(folder):
        return [folder]
    below = {inner for pattern in _MODEL_FOLDERS for inner in folder.glob(pattern)}
    named = (inner for inner in below if inner.name.isdecimal() or inner.name == "sparse")
    return sorted((inner for inner in named if _suffixes(inner)), key=lambda inner: natural_key(str(inner)))


def _suffixes(folder: Path) -> list[str]:
    """Return the suffixes, .bin before .txt, of the models in a folder."""
    return [
        suffix
        for suffix in (".bin", ".txt")
        if all((folder / f"{stem}{suffix}").is_file() for stem in ("cameras", "images"))
    ]


def _read_folder(path: Path, folder: Path) -> _ReadModel:
    """Read the model in a folder; binary and text files must agree if both exist."""
    models = [_read_model(path, folder, suffix) for suffix in _suffixes(folder)]
    if not models[0].calibration.is_same(models[-1].calibration):
        raise InputError(
            f"'{folder.name or folder}' contains two COLMAP models, which differ: cameras.bin and cameras.txt",
            f"pass one of them: ⟨calibration='{folder / 'cameras.txt'}'⟩ or cameras.bin",
        )
    return models[0]


def _read_model(path: Path, folder: Path, suffix: str) -> _ReadModel:
    if suffix == ".bin":
        cameras = _read_binary_cameras(folder / "cameras.bin")
        images = _read_binary_images(folder / "images.bin")
    else:
        cameras = _read_text_cameras(folder / "cameras.txt")
        images = _read_text_images(folder / "images.txt")
    check_count(folder, len(images), "images", MAX_IMAGES)
    images = sorted(images, key=lambda image: image.name)
    names = build.group_images([image.name for image in images])
    check_count(folder, len({name.view for name in names}))
    label = folder.name or str(folder)
    joined = []
    for image, name in zip(images, names, strict=True):
        with error_context(label, name.view):
            if image.camera_id not in cameras:
                raise InputError(
                    f"image {image.name} uses camera number {image.camera_id}, which is missing", CORRECTION_HINT
                )
            joined.append(_image_camera(name, cameras[image.camera_id], image))
    calibration = Calibration(path=path, scale=Scale.ARBITRARY, cameras=build.join_images(label, joined))
    below = folder.relative_to(path) if folder.is_relative_to(path) else folder
    return _ReadModel(str(below), len(images), calibration)


def _image_camera(name: ImageName, camera: Camera, image: Image) -> ImageCamera:
    num_focals = camera.model.num_focals
    focals, rest = camera.parameters[:num_focals], camera.parameters[num_focals:]
    lens = build.fisheye(rest[2:]) if camera.model.is_fisheye else build.brown_conrady(rest[2:])
    turn = matrix_from_quaternion(torch.tensor(image.pose[:4], dtype=torch.float64))
    pose = build.pose_matrix(turn, image.pose[4:])
    return ImageCamera(
        name, build.pinhole(focals[0], focals[-1], *rest[:2]), pose, (camera.height, camera.width), lens
    )


def write(calibration: Calibration, folder: Path) -> None:
    """Write static cameras as a binary model with an image `<view>.png` per view and no points."""
    cameras, images = [], []
    for number, camera in enumerate(calibration.cameras, start=1):
        assert camera.image_size is not None
        cameras.append(Camera.of(number, camera.image_size, camera.intrinsics.numpy(), camera.distortion))
        (pose,) = make_poses(camera.world_to_camera[None].numpy())
        images.append(Image(id=number, pose=pose, camera_id=number, name=f"{readable(camera.name)}.png"))
    none = Points3D(xyz=np.empty((0, 3)), rgb=np.empty((0, 3), dtype=np.uint8))
    write_model(folder, Model(cameras=cameras, images=images, points=none))


def model_of_views(
    names: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    intrinsics: NDArray[np.float64],
    world_to_camera: NDArray[np.float64],
    points: Points3D,
) -> Model:
    """Return a model with a pinhole camera and an image, which has a name, of each of V views."""
    ids = range(1, len(names) + 1)
    images = zip(ids, make_poses(world_to_camera), names, strict=True)
    return Model(
        cameras=[Camera.of(*row) for row in zip(ids, sizes, intrinsics, strict=True)],
        images=[Image(id=number, pose=pose, camera_id=number, name=name) for number, pose, name in images],
        points=points,
    )


def write_model(folder: Path, model: Model, *, text: bool = False) -> None:
    """Write the files of a model as .bin or .txt: cameras, images and points3D, and rigs and frames if it has any.

    Raises:
        OutputError: if a file cannot be written.
    """
    suffix = ".txt" if text else ".bin"
    for stem, encoders in _ENCODERS.items():
        records = getattr(model, stem)
        if records or stem not in ("rigs", "frames"):
            name = "points3D" if stem == "points" else stem
            write_file(folder / f"{name}{suffix}", b"".join(encoders[text](records)))


def _supported(path: Path, model: CameraModel | None, name: str) -> CameraModel:
    if model is None:
        raise InputError(
            f"{path.name}: the camera model {name} is not supported",
            f"undistort the images first; supported: {', '.join(_MODEL_BY_NAME)}",
        )
    return model


def _add_camera(cameras: dict[int, Camera], camera: Camera, path: Path) -> None:
    if camera.id in cameras:
        raise unreadable(path, f"camera number {camera.id} appears twice")
    cameras[camera.id] = camera


# Binary files


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


def _read_binary_cameras(path: Path) -> dict[int, Camera]:
    source = _BinaryReader(path)
    cameras: dict[int, Camera] = {}
    for _ in range(source.count(24 + 3 * 8)):
        key, number, width, height = (int(value) for value in source.take("iiQQ"))
        model = _supported(path, _MODEL_BY_NUMBER.get(number), f"number {number}")
        parameters = source.take(f"{model.num_parameters}d")
        _add_camera(cameras, Camera(id=key, model=model, width=width, height=height, parameters=parameters), path)
    return cameras


def _read_binary_images(path: Path) -> list[Image]:
    source = _BinaryReader(path)
    images = []
    for _ in range(source.count(4 + 7 * 8 + 4 + 1 + 8)):
        key, *pose, camera_id = source.take("i7di")
        images.append(Image(id=int(key), pose=tuple(pose), camera_id=int(camera_id), name=source.text()))
        source.skip(24 * source.count(24))
    return images


def _binary_cameras(cameras: Sequence[Camera]) -> Iterator[bytes]:
    yield struct.pack("<Q", len(cameras))
    for camera in cameras:
        layout = f"<iiQQ{len(camera.parameters)}d"
        yield struct.pack(layout, camera.id, camera.model.number, camera.width, camera.height, *camera.parameters)


def _binary_images(images: Sequence[Image]) -> Iterator[bytes]:
    yield struct.pack("<Q", len(images))
    for image in images:
        yield struct.pack("<i7di", image.id, *image.pose, image.camera_id) + image.name.encode() + b"\0"
        observations = np.empty(len(image.points2d), dtype=_OBSERVATION)
        observations["xy"], observations["point"] = image.points2d, image.point_ids
        yield struct.pack("<Q", len(observations)) + observations.tobytes()


def _binary_points(points: Points3D) -> Iterator[bytes]:
    yield struct.pack("<Q", len(points.xyz))
    for records in points.chunks():
        octets = records.view(np.uint8).reshape(len(records), _POINT.itemsize)
        keep = np.ones(octets.shape, dtype=bool)
        keep[records["track_length"] == 0, -_TRACK_BYTES:] = False
        yield octets[keep].tobytes()


def _binary_rigs(rigs: Sequence[Rig]) -> Iterator[bytes]:
    yield struct.pack("<Q", len(rigs))
    for rig in rigs:
        yield struct.pack("<IIiI", rig.id, len(rig.camera_ids), _CAMERA_SENSOR, rig.camera_ids[0])
        for camera_id, pose in zip(rig.camera_ids[1:], rig.sensor_from_rig[1:], strict=True):
            yield struct.pack("<iIB7d", _CAMERA_SENSOR, camera_id, 1, *pose)


def _binary_frames(frames: Sequence[Frame]) -> Iterator[bytes]:
    yield struct.pack("<Q", len(frames))
    for frame in frames:
        yield struct.pack("<II7dI", frame.id, frame.rig.id, *frame.rig_from_world, len(frame.image_ids))
        for camera_id, image_id in zip(frame.rig.camera_ids, frame.image_ids, strict=True):
            yield struct.pack("<iIQ", _CAMERA_SENSOR, camera_id, image_id)


# Text files: numbers with as many digits as double precision needs


def _text_rows(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.startswith("#"):
            yield number, line.strip()


def _read_text_cameras(path: Path) -> dict[int, Camera]:
    cameras: dict[int, Camera] = {}
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
        parameters = _numbers(path, number, words[4:])
        _add_camera(cameras, Camera(id=key, model=model, width=width, height=height, parameters=parameters), path)
    return cameras


def _read_text_images(path: Path) -> list[Image]:
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
            images.append(Image(id=int(words[0]), pose=pose, camera_id=int(words[8]), name=words[9]))
        except ValueError:
            raise unreadable(path, f"line {number}: IMAGE_ID or CAMERA_ID is not an integer") from None
        following, points = next(rows, (0, ""))
        if points and not points.rsplit(maxsplit=1)[-1].removeprefix("-").isdigit():
            raise unreadable(path, f"line {following}: expected points, or an empty line, after each image")
    return images


def _numbers(path: Path, line: int, words: list[str]) -> tuple[float, ...]:
    numbers = [build.parse_number(word) for word in words]
    known = tuple(number for number in numbers if number is not None)
    if len(known) < len(words):
        raise unreadable(path, f"line {line}: '{shortened(words[numbers.index(None)])}' is not a number")
    return known


def _line(*words: object) -> bytes:
    return (" ".join(word if isinstance(word, str) else repr(word) for word in words) + "\n").encode()


def _text_cameras(cameras: Sequence[Camera]) -> Iterator[bytes]:
    yield _line("# CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]")
    for camera in cameras:
        yield _line(camera.id, camera.model.name, camera.width, camera.height, *camera.parameters)


def _text_images(images: Sequence[Image]) -> Iterator[bytes]:
    yield _line("# IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME")
    yield _line("# POINTS2D[] as (X, Y, POINT3D_ID)")
    for image in images:
        yield _line(image.id, *image.pose, image.camera_id, image.name)
        columns = [*image.points2d.T.tolist(), image.point_ids.tolist()]
        yield _rows("%r %r %d ", columns) + b"\n"


def _text_points(points: Points3D) -> Iterator[bytes]:
    yield _line("# POINT3D_ID, X, Y, Z, R, G, B, ERROR, TRACK[] as (IMAGE_ID, POINT2D_IDX)")
    for records in points.chunks():
        names = ("id", "xyz", "rgb", "error", "image", "index")
        columns = [column.tolist() for name in names for column in np.atleast_2d(records[name].T)]
        rows = _rows("%d %r %r %r %d %d %d %r %d %d\n", columns)
        yield rows.replace(b" 0 0\n", b"\n")  # no image has the id 0: these are the points without a track


def _text_rigs(rigs: Sequence[Rig]) -> Iterator[bytes]:
    yield _line("# RIG_ID, NUM_SENSORS, REF_SENSOR_TYPE, REF_SENSOR_ID, SENSORS[] as (TYPE, ID, HAS_POSE, POSE)")
    for rig in rigs:
        others: list[object] = []
        for camera_id, pose in zip(rig.camera_ids[1:], rig.sensor_from_rig[1:], strict=True):
            others += ["CAMERA", camera_id, 1, *pose]
        yield _line(rig.id, len(rig.camera_ids), "CAMERA", rig.camera_ids[0], *others)


def _text_frames(frames: Sequence[Frame]) -> Iterator[bytes]:
    yield _line("# FRAME_ID, RIG_ID, RIG_FROM_WORLD, NUM_DATA_IDS, DATA_IDS[] as (SENSOR_TYPE, SENSOR_ID, DATA_ID)")
    for frame in frames:
        data: list[object] = []
        for camera_id, image_id in zip(frame.rig.camera_ids, frame.image_ids, strict=True):
            data += ["CAMERA", camera_id, image_id]
        yield _line(frame.id, frame.rig.id, *frame.rig_from_world, len(frame.image_ids), *data)


def _rows(layout: str, columns: list[list[Any]]) -> bytes:
    """Format columns of equal length row by row, all at once."""
    number = len(columns[0])
    values: list[Any] = [None] * (number * len(columns))
    for place, column in enumerate(columns):
        values[place :: len(columns)] = column
    return ((layout * number) % tuple(values)).encode()


_ENCODERS: dict[str, tuple[Callable[[Any], Iterable[bytes]], Callable[[Any], Iterable[bytes]]]] = {
    "cameras": (_binary_cameras, _text_cameras),
    "images": (_binary_images, _text_images),
    "points": (_binary_points, _text_points),
    "rigs": (_binary_rigs, _text_rigs),
    "frames": (_binary_frames, _text_frames),
}
"""Encoders of the records of a model, to .bin and to .txt."""
