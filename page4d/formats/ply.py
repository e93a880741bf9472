"""Point clouds as PLY files: that of one instant, and those that readers of 4D Gaussian trainers expect.

`open3d.write_cloud` writes the files of a run; this writer is for what Open3D cannot write: clouds without points,
and any cloud on machines without Open3D. The bytes of the vertices are the same, but for the order of the properties
of velocities.

Source: `fetchPly` and `storePly` of 3D Gaussian Splatting, which 4DGaussians and 4D Gaussian splatting (Fudan) share.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, ShapeError

_COLORS = ("red", "green", "blue")
COLUMNS = {
    "xyz": ("x", "y", "z"),
    "normals": ("nx", "ny", "nz"),
    "rgb": _COLORS,
    "confidence": ("confidence",),
    "view": ("view",),
    "dynamic": ("dynamic",),
    "velocity": ("vx", "vy", "vz"),
    "velocity_sigma": ("vsigma",),
}
"""Vertex properties of the arrays of a cloud, in the order of the file: 21 bytes per point without optional ones."""

_BYTES = ("rgb", "view", "dynamic")
_VELOCITY = {"velocity", "velocity_sigma"}
_OPTIONAL = {"normals", *_VELOCITY}

_KINDS = {"f4": "float", "f8": "double", "u1": "uchar"}
"""Types of PLY by those of NumPy, of arrays that are written."""

_NUMPY_TYPES = {
    name: kind
    for names, kind in (
        *(("char int8", "i1"), ("uchar uint8", "u1"), ("short int16", "<i2"), ("ushort uint16", "<u2")),
        *(("int int32", "<i4"), ("uint uint32", "<u4"), ("float float32", "<f4"), ("double float64", "<f8")),
    )
    for name in names.split()
}
_LONGEST_HEADER = 65536


@dataclass(frozen=True, kw_only=True)
class PointCloud:
    """Points [N, 3] in the world with colours [N, 3], confidence in [0, 1], index of the view, and 1 where moving.

    `normals` [N, 3] are unit vectors, or None. `velocity` [N, 3] is in units of the scene per second, exactly 0 where
    a point stands still, and `velocity_sigma` the standard deviation of its error; both are 0 where it is unknown,
    and None in clouds without velocities.
    """

    xyz: NDArray[np.float32]
    rgb: NDArray[np.uint8]
    confidence: NDArray[np.float32]
    view: NDArray[np.uint8]
    dynamic: NDArray[np.uint8]
    normals: NDArray[np.float32] | None = None
    velocity: NDArray[np.float32] | None = None
    velocity_sigma: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        for name, value in self._fields().items():
            sides, kind = COLUMNS[name], np.dtype("u1" if name in _BYTES else "f4")
            shape = (len(self.xyz),) if len(sides) == 1 else (len(self.xyz), len(sides))
            if value.shape != shape or value.dtype != kind:
                raise ShapeError(f"point cloud: {name} is {value.dtype} {value.shape}", f"give {kind} {shape}")
        if (self.velocity is None) != (self.velocity_sigma is None):
            raise ShapeError("point cloud: velocity without velocity_sigma, or the reverse", "give both")

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return len(self.xyz)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Values [N] of the vertex properties, in the order of the file."""
        return {
            name: values
            for field, array in self._fields().items()
            for name, values in zip(COLUMNS[field], np.atleast_2d(array.T), strict=True)
        }

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """Vertex properties of the file as (name, type)."""
        return _properties(self.columns)

    @property
    def num_bytes(self) -> int:
        """Size of the vertices in the file."""
        return self.num_points * _layout(self.properties).itemsize

    def __getitem__(self, index: NDArray[Any]) -> "PointCloud":
        """Select points by a mask or by their indices."""
        chosen = np.flatnonzero(index) if index.dtype == bool else index  # once, and `take` is faster than brackets
        return PointCloud(**{name: value.take(chosen, axis=0) for name, value in self._fields().items()})

    def _fields(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are not None, in the order of their properties in the file."""
        return {name: array for name in COLUMNS if (array := getattr(self, name)) is not None}


def join_clouds(clouds: Sequence[PointCloud]) -> PointCloud:
    """Concatenate clouds of one world; if some have velocities, those of the others are unknown (0)."""
    parts = [cloud._fields() for cloud in clouds]
    if any("velocity" in part for part in parts):
        for part in parts:
            if "velocity" not in part:
                part.update(velocity=np.zeros_like(part["xyz"]), velocity_sigma=np.zeros_like(part["confidence"]))
    return PointCloud(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _layout(properties: Sequence[tuple[str, str]]) -> np.dtype[np.void]:
    return np.dtype([(name, _NUMPY_TYPES[kind]) for name, kind in properties])


def _properties(columns: Mapping[str, NDArray[Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _KINDS[values.dtype.str[1:]]) for name, values in columns.items())


def encode_ply(
    columns: Mapping[str, NDArray[Any]], comments: Sequence[str] = (), others: Sequence[str] = ()
) -> bytes:
    """Return a file of vertices: binary, little endian, the same bytes on every machine.

    `columns` are the properties [N], float32, float64 or uint8, by their names; `others` are lines of the header on
    the elements after the vertices.
    """
    properties = _properties(columns)
    vertices = np.empty(len(next(iter(columns.values()))), dtype=_layout(properties))
    for name, values in columns.items():
        vertices[name] = values
    header = [
        "ply",
        "format binary_little_endian 1.0",
        *(f"comment {' '.join(comment.encode('ascii', 'replace').decode().split())}" for comment in comments),
        f"element vertex {len(vertices)}",
        *(f"property {kind} {name}" for name, kind in properties),
        *others,
        "end_header\n",
    ]
    return "\n".join(header).encode("ascii") + vertices.tobytes()


def colored_points(xyz: NDArray[Any], rgb: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Return the columns of points [N, 3] with colours [N, 3]."""
    return dict(zip((*"xyz", *_COLORS), (*xyz.T, *rgb.T), strict=True))


def offset_text(offset: Sequence[float]) -> str:
    """Return an offset of coordinates for a comment or a message."""
    return " ".join(f"{value:.15g}" for value in offset)


@dataclass(frozen=True)
class PlyHeader:
    """Header of a PLY file: comments, number of points, properties as (name, type), and its size in bytes."""

    comments: tuple[str, ...]
    num_points: int
    properties: tuple[tuple[str, str], ...]
    num_bytes: int


def read_ply_header(path: Path) -> PlyHeader:
    """Read the header of a PLY file.

    Raises:
        InputError: if it is not a binary little-endian PLY file with a single element, the vertices.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_LONGEST_HEADER)
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing", "run page4d again with ⟨existing=resume⟩") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}", "check the file") from error
    text, end, _ = start.partition(b"end_header\n")
    if not start.startswith(b"ply\n") or not end:
        raise _foreign(path, "it has no PLY header")
    lines = text.decode("ascii", "replace").splitlines()[1:]
    words = [line.split() for line in lines]
    if ["format", "binary_little_endian", "1.0"] not in words:
        raise _foreign(path, "it is not binary little endian")
    elements = [" ".join(line) for line in words if line[:1] == ["element"]]
    vertices = re.fullmatch(r"element vertex (\d+)", elements[0]) if len(elements) == 1 else None
    if vertices is None:
        raise _foreign(path, "it does not consist of vertices alone")
    properties = tuple((line[-1], line[1]) for line in words if line[:1] == ["property"] and len(line) == 3)
    if len(properties) != sum(line[:1] == ["property"] for line in words):
        raise _foreign(path, "it has list properties")
    comments = tuple(line.removeprefix("comment ") for line in lines if line.startswith("comment "))
    return PlyHeader(comments, int(vertices[1]), properties, len(text) + len(end))


def read_ply(path: Path) -> PointCloud:
    """Read a cloud that has the properties of the output contract, in any order and of any number type.

    Raises:
        InputError: if the file is missing, incomplete or of another kind.
    """
    header = read_ply_header(path)
    known = dict(header.properties)
    present = {field for field, names in COLUMNS.items() if known.keys() >= {*names}}
    missing = COLUMNS.keys() - present - _OPTIONAL
    unknown = [kind for kind in known.values() if kind not in _NUMPY_TYPES]
    if missing or unknown or len(known) != len(header.properties):
        raise _foreign(path, f"its properties are {' '.join(name for name, _ in header.properties) or 'none'}")
    layout = _layout(header.properties)
    expected, found = header.num_bytes + header.num_points * layout.itemsize, path.stat().st_size
    if found != expected:
        raise InputError(
            f"'{path}' is incomplete: {found} bytes of {expected}", "run page4d again with ⟨existing=resume⟩"
        )
    vertices = np.fromfile(path, dtype=layout, count=header.num_points, offset=header.num_bytes)

    arrays: dict[str, NDArray[Any]] = {}
    for field in present if present >= _VELOCITY else present - _VELOCITY:
        values = np.stack([vertices[name] for name in COLUMNS[field]], axis=-1)
        values = values if len(COLUMNS[field]) > 1 else values[:, 0]
        arrays[field] = values.astype(np.uint8 if field in _BYTES else np.float32, copy=False)
    return PointCloud(**arrays)


def _foreign(path: Path, reason: str) -> InputError:
    return InputError(f"'{path}' is not a point cloud of page4d: {reason}", "give a file that page4d wrote")


def encode_trainer_ply(xyz: NDArray[Any], rgb: NDArray[np.uint8], time: NDArray[Any] | None = None) -> bytes:
    """Return a PLY file of points [N, 3] with colours [N, 3] and, optionally, times [N].

    The normals, which readers demand and do not use, are 0. A point takes 27 bytes, or 31 with a time.
    """
    colored, zero = colored_points(xyz.astype(np.float32), rgb), np.zeros(len(xyz), dtype=np.float32)
    columns = {name: colored.get(name, zero) for name in (*COLUMNS["xyz"], *COLUMNS["normals"], *_COLORS)}
    return encode_ply(columns if time is None else {**columns, "time": time.astype(np.float32)})
