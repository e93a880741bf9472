"""Point clouds as PLY files: that of one instant, and those that readers of 4D Gaussian trainers expect.

`open3d.write_cloud` writes the files of a run; this writer is for what Open3D cannot write: clouds without points,
and any cloud on machines without Open3D. The bytes of the vertices are the same, but for the order of the properties
of velocities.

Source: `fetchPly` and `storePly` of 3D Gaussian Splatting, which 4DGaussians and 4D Gaussian splatting (Fudan) share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, ShapeError
from page4d.io.atomic import WrittenFile, write_bytes_atomic

PROPERTIES = (
    *((axis, "float") for axis in "xyz"),
    *((name, "uchar") for name in ("red", "green", "blue")),
    *(("confidence", "float"), ("view", "uchar"), ("dynamic", "uchar")),
)
"""Vertex properties in the order of the file: 21 bytes per point."""

NORMALS = (("nx", "float"), ("ny", "float"), ("nz", "float"))
"""Optional vertex properties, after the position."""

VELOCITY = (("vx", "float"), ("vy", "float"), ("vz", "float"), ("vsigma", "float"))
"""Optional last vertex properties: velocity in units of the scene per second, and its standard deviation."""

_COLORS = ("red", "green", "blue")
_SCALARS = ("confidence", "view", "dynamic", "velocity_sigma")

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
        number = len(self.xyz)
        bytes_only = ("rgb", "view", "dynamic")
        for name, value in self._fields().items():
            shape, kind = (number,) if name in _SCALARS else (number, 3), "u1" if name in bytes_only else "f4"
            if value.shape != shape or value.dtype != np.dtype(kind):
                raise ShapeError(
                    f"point cloud: {name} is {value.dtype} {value.shape}", f"give {np.dtype(kind)} {shape}"
                )
        if (self.velocity is None) != (self.velocity_sigma is None):
            raise ShapeError("point cloud: velocity without velocity_sigma, or the reverse", "give both")

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return len(self.xyz)

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """Vertex properties of the file as (name, type)."""
        normals = () if self.normals is None else NORMALS
        velocity = () if self.velocity is None else VELOCITY
        return (*PROPERTIES[:3], *normals, *PROPERTIES[3:], *velocity)

    @property
    def num_bytes(self) -> int:
        """Size of the vertices in the file."""
        return self.num_points * _layout(self.properties).itemsize

    def __getitem__(self, index: NDArray[Any]) -> "PointCloud":
        """Select points by a mask or by their indices."""
        chosen = np.flatnonzero(index) if index.dtype == bool else index  # once, and `take` is faster than brackets
        return PointCloud(**{name: value.take(chosen, axis=0) for name, value in self._fields().items()})

    def _fields(self) -> dict[str, NDArray[Any]]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


def join_clouds(clouds: Sequence[PointCloud]) -> PointCloud:
    """Concatenate clouds of one world; if some have velocities, those of the others are unknown (0)."""
    if any(cloud.velocity is not None for cloud in clouds):
        clouds = [cloud if cloud.velocity is not None else _without_known_velocity(cloud) for cloud in clouds]
    parts = [cloud._fields() for cloud in clouds]
    return PointCloud(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _without_known_velocity(cloud: PointCloud) -> PointCloud:
    return replace(cloud, velocity=np.zeros_like(cloud.xyz), velocity_sigma=np.zeros_like(cloud.confidence))


def encode_vertices(cloud: PointCloud) -> bytes:
    """Return the vertices of the file, without a header."""
    vertices = np.empty(cloud.num_points, dtype=_layout(cloud.properties))
    vectors: list[tuple[NDArray[Any], Sequence[str]]] = [(cloud.xyz, "xyz"), (cloud.rgb, _COLORS)]
    if cloud.normals is not None:
        vectors.append((cloud.normals, [name for name, _ in NORMALS]))
    if (velocity := velocity_columns(cloud)) is not None:
        vectors.append((velocity, [name for name, _ in VELOCITY]))
    for values, names in vectors:
        for axis, name in enumerate(names):
            vertices[name] = values[:, axis]
    for name in ("confidence", "view", "dynamic"):
        vertices[name] = getattr(cloud, name)
    return vertices.tobytes()


def velocity_columns(cloud: PointCloud) -> NDArray[np.float32] | None:
    """Return the values [N, 4] of the properties `VELOCITY`; None without velocities."""
    if cloud.velocity is None or cloud.velocity_sigma is None:
        return None
    return np.concatenate([cloud.velocity, cloud.velocity_sigma[:, None]], axis=1)


def _layout(properties: Sequence[tuple[str, str]]) -> np.dtype[np.void]:
    return np.dtype([(name, _NUMPY_TYPES[kind]) for name, kind in properties])


def encode_ply(cloud: PointCloud, comments: Sequence[str] = ()) -> bytes:
    """Return the whole file: binary, little endian, the same bytes on every machine."""
    return encode_header(cloud.num_points, cloud.properties, comments) + encode_vertices(cloud)


def encode_header(
    number: int, properties: Iterable[tuple[str, str]], comments: Sequence[str] = (), others: Sequence[str] = ()
) -> bytes:
    """Return the header of vertices, whose properties are (name, type), and of `others`, the elements after them."""
    header = [
        "ply",
        "format binary_little_endian 1.0",
        *(f"comment {' '.join(comment.encode('ascii', 'replace').decode().split())}" for comment in comments),
        f"element vertex {number}",
        *(f"property {kind} {name}" for name, kind in properties),
        *others,
        "end_header\n",
    ]
    return "\n".join(header).encode("ascii")


def offset_text(offset: Sequence[float]) -> str:
    """Return an offset of coordinates for a comment or a message."""
    return " ".join(f"{value:.15g}" for value in offset)


def write_ply(path: Path, cloud: PointCloud, comments: Sequence[str] = ()) -> WrittenFile:
    """Write a cloud atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(path, encode_ply(cloud, comments))


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
    elements = [line for line in words if line[:1] == ["element"]]
    if (
        len(elements) != 1
        or elements[0][1:2] != ["vertex"]
        or len(elements[0]) != 3
        or not elements[0][2].isdecimal()
    ):
        raise _foreign(path, "it does not consist of vertices alone")
    properties = tuple((line[-1], line[1]) for line in words if line[:1] == ["property"] and len(line) == 3)
    if len(properties) != sum(line[:1] == ["property"] for line in words):
        raise _foreign(path, "it has list properties")
    comments = tuple(line.removeprefix("comment ") for line in lines if line.startswith("comment "))
    return PlyHeader(comments, int(elements[0][2]), properties, len(text) + len(end))


def read_ply(path: Path) -> PointCloud:
    """Read a cloud that has the properties of the output contract, in any order and of any number type.

    Raises:
        InputError: if the file is missing, incomplete or of another kind.
    """
    header = read_ply_header(path)
    known = dict(header.properties)
    missing = [name for name, _ in PROPERTIES if name not in known]
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

    def vectors(names: Sequence[str], kind: type[np.generic]) -> NDArray[Any]:
        return np.stack([vertices[name] for name in names], axis=1).astype(kind, copy=False)

    has_normals = all(name in known for name, _ in NORMALS)
    has_velocity = all(name in known for name, _ in VELOCITY)
    return PointCloud(
        xyz=vectors("xyz", np.float32),
        rgb=vectors(_COLORS, np.uint8),
        confidence=vertices["confidence"].astype(np.float32),
        view=vertices["view"].astype(np.uint8),
        dynamic=vertices["dynamic"].astype(np.uint8),
        normals=vectors([name for name, _ in NORMALS], np.float32) if has_normals else None,
        velocity=vectors(["vx", "vy", "vz"], np.float32) if has_velocity else None,
        velocity_sigma=vertices["vsigma"].astype(np.float32) if has_velocity else None,
    )


def _foreign(path: Path, reason: str) -> InputError:
    return InputError(f"'{path}' is not a point cloud of page4d: {reason}", "give a file that page4d wrote")


def encode_trainer_ply(xyz: NDArray[Any], rgb: NDArray[np.uint8], time: NDArray[Any] | None = None) -> bytes:
    """Return a PLY file of points [N, 3] with colours [N, 3] and, optionally, times [N].

    The normals, which readers demand and do not use, are 0. A point takes 27 bytes, or 31 with a time.

    Raises:
        ShapeError: if the arrays are not of one length, or the colours are not bytes.
    """
    count = len(xyz)
    if xyz.shape != (count, 3) or rgb.shape != (count, 3) or rgb.dtype != np.uint8:
        raise ShapeError(f"points {xyz.shape} with colours {rgb.dtype} {rgb.shape}", f"give uint8 ({count}, 3)")
    columns = {name: ("float", xyz[:, axis]) for axis, name in enumerate("xyz")}
    columns |= {name: ("float", np.zeros(count)) for name in ("nx", "ny", "nz")}
    columns |= {name: ("uchar", rgb[:, axis]) for axis, name in enumerate(("red", "green", "blue"))}
    if time is not None:
        if time.shape != (count,):
            raise ShapeError(f"{count} points with times {time.shape}", f"give ({count},)")
        columns["time"] = ("float", time)
    properties = [(name, kind) for name, (kind, _) in columns.items()]
    vertices = np.empty(count, dtype=_layout(properties))
    for name, (_, values) in columns.items():
        vertices[name] = values
    return encode_header(count, properties) + vertices.tobytes()
