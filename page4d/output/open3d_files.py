"""Point clouds, meshes and trajectories written by Open3D, verified, and moved into place atomically.

Open3D reports success when the disk is full, so every file is verified before it gets its name. Without Open3D, for
clouds without points, and when a file is incomplete, page4d's own encoders are used: they give the same vertices,
faces and cameras, and their writer reports why a file cannot be written. Open3D writes no comments of a cloud: unit
and time are in `run.json`. The properties of velocities it writes in an order of its own.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import InputError
from page4d.io.atomic import WrittenFile, atomic_path, describe_file, has_room_for, output_error, write_bytes_atomic
from page4d.io.json_model import format_json
from page4d.output.open3d_geometry import Mesh, open3d_cloud, open3d_mesh
from page4d.output.open3d_runtime import open3d_or_none, quiet
from page4d.output.ply import PointCloud, read_ply_header, write_ply

_HEADER_BYTES = 1024
_CAMERA_BYTES = 1024
"""More than the header of a PLY file, and than a camera of a trajectory."""

_MESH_VERTEX = np.dtype([*((axis, "<f8") for axis in "xyz"), *((name, "u1") for name in ("red", "green", "blue"))])
_MESH_FACE = np.dtype([("count", "u1"), ("vertices", "<u4", 3)])


def write_cloud(path: Path, cloud: PointCloud, comments: Sequence[str] = ()) -> WrittenFile:
    """Write a cloud with Open3D; `comments` appear only in files of page4d's own writer.

    Raises:
        OutputError: if the file cannot be written.
    """
    open3d = open3d_or_none()
    if open3d is None or cloud.num_points == 0:
        return write_ply(path, cloud, comments)

    def is_complete(part: Path) -> bool:
        header = read_ply_header(part)
        layouts = [(sorted(one.properties), one.num_points) for one in (header, cloud)]
        return layouts[0] == layouts[1] and part.stat().st_size == header.num_bytes + cloud.num_bytes

    written = _write_verified(
        open3d,
        path,
        cloud.num_bytes + _HEADER_BYTES,
        lambda part: open3d.t.io.write_point_cloud(str(part), open3d_cloud(cloud)),
        is_complete,
    )
    return written or write_ply(path, cloud, comments)


def write_trajectory(
    path: Path,
    world_to_camera: Float[Tensor, "T 4 4"],
    intrinsics: Float[Tensor, "T 3 3"],
    image_size: tuple[int, int],
) -> WrittenFile:
    """Write a camera trajectory in Open3D's format; pixel centres are at integers, `image_size` is (height, width).

    Raises:
        OutputError: if the file cannot be written.
    """
    open3d = open3d_or_none()
    poses, matrices = world_to_camera.numpy(), intrinsics.numpy()
    written = None
    if open3d is not None:
        trajectory = _trajectory(open3d, poses, matrices, image_size)

        def is_complete(part: Path) -> bool:
            found = open3d.io.read_pinhole_camera_trajectory(str(part)).parameters
            return len(found) == len(poses) and all(
                np.array_equal(camera.extrinsic, pose) and np.array_equal(camera.intrinsic.intrinsic_matrix, matrix)
                for camera, pose, matrix in zip(found, poses, matrices, strict=True)
            )

        written = _write_verified(
            open3d,
            path,
            len(poses) * _CAMERA_BYTES,
            lambda part: open3d.io.write_pinhole_camera_trajectory(str(part), trajectory),
            is_complete,
        )
    return written or write_bytes_atomic(path, encode_trajectory(poses, matrices, image_size))


def write_mesh(path: Path, mesh: Mesh) -> WrittenFile:
    """Write a coloured triangle mesh as PLY, with positions in double precision.

    Raises:
        OutputError: if the file cannot be written.
    """
    open3d = open3d_or_none()
    data = encode_mesh(mesh)
    if open3d is None or len(mesh.vertices) == 0:
        return write_bytes_atomic(path, data)
    content = len(data) - data.index(b"end_header\n")
    written = _write_verified(
        open3d,
        path,
        len(data) + _HEADER_BYTES,
        lambda part: open3d.t.io.write_triangle_mesh(str(part), open3d_mesh(mesh)),
        lambda part: part.read_bytes()[-content:] == data[-content:],
    )
    return written or write_bytes_atomic(path, data)


def encode_mesh(mesh: Mesh) -> bytes:
    """Return a PLY file with the same vertices and faces as Open3D's: binary, little endian."""
    header = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {len(mesh.vertices)}",
        *(f"property double {axis}" for axis in "xyz"),
        *(f"property uchar {name}" for name in ("red", "green", "blue")),
        f"element face {len(mesh.triangles)}",
        "property list uchar uint vertex_indices",
        "end_header\n",
    ]
    vertices = np.empty(len(mesh.vertices), dtype=_MESH_VERTEX)
    for axis, (position, color) in enumerate(zip("xyz", ("red", "green", "blue"), strict=True)):
        vertices[position], vertices[color] = mesh.vertices[:, axis], mesh.rgb[:, axis]
    faces = np.empty(len(mesh.triangles), dtype=_MESH_FACE)
    faces["count"], faces["vertices"] = 3, mesh.triangles
    return "\n".join(header).encode("ascii") + vertices.tobytes() + faces.tobytes()


def encode_trajectory(
    world_to_camera: NDArray[np.float64], intrinsics: NDArray[np.float64], image_size: tuple[int, int]
) -> bytes:
    """Return a trajectory as Open3D reads it: matrices are column-major."""
    (height, width), version = image_size, {"version_major": 1, "version_minor": 0}
    parameters = (
        {
            "class_name": "PinholeCameraParameters",
            "extrinsic": pose.T.flatten().tolist(),
            "intrinsic": {"height": height, "width": width, "intrinsic_matrix": matrix.T.flatten().tolist()},
            **version,
        }
        for pose, matrix in zip(world_to_camera, intrinsics, strict=True)
    )
    document = {"class_name": "PinholeCameraTrajectory", "parameters": parameters, **version}
    return (format_json(document) + "\n").encode("utf-8")


def _trajectory(
    open3d: ModuleType,
    world_to_camera: NDArray[np.float64],
    intrinsics: NDArray[np.float64],
    image_size: tuple[int, int],
) -> Any:
    cameras = []
    for pose, matrix in zip(world_to_camera, intrinsics, strict=True):
        camera = open3d.camera.PinholeCameraParameters()
        intrinsic = open3d.camera.PinholeCameraIntrinsic()
        intrinsic.height, intrinsic.width = image_size
        intrinsic.intrinsic_matrix = matrix  # the constructor would drop the skew
        camera.extrinsic, camera.intrinsic = pose, intrinsic
        cameras.append(camera)
    trajectory = open3d.camera.PinholeCameraTrajectory()
    trajectory.parameters = cameras
    return trajectory


class _IncompleteFileError(Exception):
    """Open3D's file lacks a part of the data."""


def _check(complete: bool) -> None:
    if not complete:
        raise _IncompleteFileError


def _write_verified(
    open3d: ModuleType,
    path: Path,
    num_bytes: int,
    write: Callable[[Path], Any],
    is_complete: Callable[[Path], bool],
) -> WrittenFile | None:
    """Let Open3D write a file of about `num_bytes`; return None if there is no room for it or it is incomplete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # On a full disk Open3D would print a line for every value.
        if not has_room_for(path, num_bytes):
            return None
        with quiet(open3d), atomic_path(path) as part:
            write(part)
            _check(part.is_file() and is_complete(part))
        return describe_file(path)
    except (_IncompleteFileError, InputError):
        return None
    except OSError as error:
        raise output_error(error, path) from error
