"""The point cloud of one instant and its PLY file.

The file is written here and not through Open3D, whose bytes for the vertices are the same (a test compares them):
Open3D 0.20 writes no comments, so the file could not say its unit and time, refuses a cloud without points, and on a
full disk reports success after thousands of lines on the terminal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, ShapeError
from page4d.io.atomic import WrittenFile, write_bytes_atomic

PROPERTIES = (
    ("x", "float"),
    ("y", "float"),
    ("z", "float"),
    ("red", "uchar"),
    ("green", "uchar"),
    ("blue", "uchar"),
    ("confidence", "float"),
    ("view", "uchar"),
    ("dynamic", "uchar"),
)
"""The vertex layout of the contract: 21 bytes a point."""

_NUMPY_TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "<i2",
    "int16": "<i2",
    "ushort": "<u2",
    "uint16": "<u2",
    "int": "<i4",
    "int32": "<i4",
    "uint": "<u4",
    "uint32": "<u4",
    "float": "<f4",
    "float32": "<f4",
    "double": "<f8",
    "float64": "<f8",
}
_LONGEST_HEADER = 65536


@dataclass(frozen=True, kw_only=True)
class PointCloud:
    """Points [N, 3] in the world with colours [N, 3], confidence in [0, 1], index of the view, and 1 where moving."""

    xyz: NDArray[np.float32]
    rgb: NDArray[np.uint8]
    confidence: NDArray[np.float32]
    view: NDArray[np.uint8]
    dynamic: NDArray[np.uint8]

    def __post_init__(self) -> None:
        number = len(self.xyz)
        shapes = {"xyz": (number, 3), "rgb": (number, 3)}
        for name, kind in (("xyz", "f4"), ("rgb", "u1"), ("confidence", "f4"), ("view", "u1"), ("dynamic", "u1")):
            value, shape = getattr(self, name), shapes.get(name, (number,))
            if value.shape != shape or value.dtype != np.dtype(kind):
                raise ShapeError(
                    f"point cloud: {name} is {value.dtype} {value.shape}", f"give {np.dtype(kind)} {shape}"
                )

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return len(self.xyz)

    def __getitem__(self, index: NDArray[Any]) -> "PointCloud":
        """Select points by a mask or by their indices."""
        return PointCloud(
            xyz=self.xyz[index],
            rgb=self.rgb[index],
            confidence=self.confidence[index],
            view=self.view[index],
            dynamic=self.dynamic[index],
        )


def join_clouds(clouds: Sequence[PointCloud]) -> PointCloud:
    """Put clouds of one world behind each other."""
    return PointCloud(
        xyz=np.concatenate([cloud.xyz for cloud in clouds]),
        rgb=np.concatenate([cloud.rgb for cloud in clouds]),
        confidence=np.concatenate([cloud.confidence for cloud in clouds]),
        view=np.concatenate([cloud.view for cloud in clouds]),
        dynamic=np.concatenate([cloud.dynamic for cloud in clouds]),
    )


def encode_vertices(cloud: PointCloud) -> bytes:
    """Lay the points out as the contract says, without a header."""
    vertices = np.empty(cloud.num_points, dtype=[(name, _NUMPY_TYPES[kind]) for name, kind in PROPERTIES])
    for axis, name in enumerate("xyz"):
        vertices[name] = cloud.xyz[:, axis]
    for channel, name in enumerate(("red", "green", "blue")):
        vertices[name] = cloud.rgb[:, channel]
    for name in ("confidence", "view", "dynamic"):
        vertices[name] = getattr(cloud, name)
    return vertices.tobytes()


def encode_ply(cloud: PointCloud, comments: Sequence[str] = ()) -> bytes:
    """Return the whole file: binary, little endian, the same bytes on every machine."""
    header = [
        "ply",
        "format binary_little_endian 1.0",
        *(f"comment {' '.join(comment.encode('ascii', 'replace').decode().split())}" for comment in comments),
        f"element vertex {cloud.num_points}",
        *(f"property {kind} {name}" for name, kind in PROPERTIES),
        "end_header\n",
    ]
    return "\n".join(header).encode("ascii") + encode_vertices(cloud)


def write_ply(path: Path, cloud: PointCloud, comments: Sequence[str] = ()) -> WrittenFile:
    """Write a cloud whole or not at all.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(path, encode_ply(cloud, comments))


@dataclass(frozen=True)
class PlyHeader:
    """What the head of a PLY file says: its comments, points, properties as (name, type), and its own length."""

    comments: tuple[str, ...]
    num_points: int
    properties: tuple[tuple[str, str], ...]
    num_bytes: int


def read_ply_header(path: Path) -> PlyHeader:
    """Read the head of a PLY file.

    Raises:
        InputError: if it is not a binary little-endian PLY file with one element, the vertices.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_LONGEST_HEADER)
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing", "run page4d again with --resume") from error
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
    """Read a cloud that has the contract's properties, in any order and of any number type.

    Raises:
        InputError: if the file is missing, incomplete or of another kind.
    """
    header = read_ply_header(path)
    known = dict(header.properties)
    missing = [name for name, _ in PROPERTIES if name not in known]
    unknown = [kind for kind in known.values() if kind not in _NUMPY_TYPES]
    if missing or unknown or len(known) != len(header.properties):
        raise _foreign(path, f"its properties are {' '.join(name for name, _ in header.properties) or 'none'}")
    layout = np.dtype([(name, _NUMPY_TYPES[kind]) for name, kind in header.properties])
    expected, found = header.num_bytes + header.num_points * layout.itemsize, path.stat().st_size
    if found != expected:
        raise InputError(f"'{path}' is incomplete: {found} bytes of {expected}", "run page4d again with --resume")
    vertices = np.fromfile(path, dtype=layout, count=header.num_points, offset=header.num_bytes)
    return PointCloud(
        xyz=np.stack([vertices[name] for name in ("x", "y", "z")], axis=1).astype(np.float32),
        rgb=np.stack([vertices[name] for name in ("red", "green", "blue")], axis=1).astype(np.uint8),
        confidence=vertices["confidence"].astype(np.float32),
        view=vertices["view"].astype(np.uint8),
        dynamic=vertices["dynamic"].astype(np.uint8),
    )


def _foreign(path: Path, reason: str) -> InputError:
    return InputError(f"'{path}' is not a point cloud of page4d: {reason}", "give a file that page4d wrote")
