"""Point clouds and trajectories processed and written by Open3D, verified, and moved into place atomically; meshes.

Processing is outlier removal, normals, and TSDF fusion of depth maps to a mesh.

Open3D reports success when the disk is full, so every file is verified before it gets its name. Without Open3D, for
clouds without points, and when a file is incomplete, page4d's own encoders are used: they give the same vertices and
cameras, and their writer reports why a file cannot be written. Open3D writes no comments of a cloud: unit and time
are in `run.json`. The properties of velocities it writes in an order of its own.

Functions that process or convert raise `CapabilityError` if Open3D cannot be loaded, those that write `OutputError`
if the file cannot be written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import InputError
from page4d.formats.ply import COLUMNS, PointCloud, colored_points, encode_ply, read_ply_header
from page4d.installation import open3d_or_none, quiet, require_open3d
from page4d.io.atomic import WrittenFile, atomic_path, file_sha256, has_room_for, output_errors, write_bytes_atomic
from page4d.io.json_records import format_json

OUTLIER_NEIGHBOURS = 20
OUTLIER_DEVIATIONS = 2.0
"""A point is an outlier if the mean distance to its nearest neighbours exceeds the mean of all points' by this many
standard deviations."""

NORMAL_NEIGHBOURS = 30
BLOCK_SIDE = 16
VOXEL_BYTES = 20
"""Signed distance, weight and colour."""

TRUNCATION_VOXELS = 4.0
"""Truncation distance of the signed distance function in voxels."""

_TOUCHED_STEP = 4
"""Side in pixels of the cells of a depth map of which Open3D reads one pixel each to find blocks of voxels."""


@dataclass(frozen=True)
class Mesh:
    """Triangle mesh: vertices [N, 3] in the world, their colours [N, 3], and the vertices of triangles [M, 3]."""

    vertices: NDArray[np.float32]
    rgb: NDArray[np.uint8]
    triangles: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class DepthView:
    """A view for fusion: depth [H, W] (0: unknown), colours [H, W, 3] and its camera in page4d's convention."""

    depth: NDArray[np.float32]
    rgb: NDArray[np.uint8]
    world_to_camera: NDArray[np.float64]
    intrinsics: NDArray[np.float64]


def open3d_cloud(cloud: PointCloud) -> Any:
    """Convert to `open3d.t.geometry.PointCloud` with the attributes that Open3D reads from the PLY file."""
    open3d = require_open3d()
    tensor = open3d.core.Tensor
    converted = open3d.t.geometry.PointCloud(tensor(cloud.xyz))
    converted.point.colors = tensor(cloud.rgb)
    if cloud.normals is not None:
        converted.point.normals = tensor(cloud.normals)
    columns = cloud.columns
    for name in ("confidence", "view", "dynamic", *COLUMNS["velocity"], *COLUMNS["velocity_sigma"]):
        if name in columns:
            converted.point[name] = tensor(np.ascontiguousarray(columns[name][:, None]))
    return converted


def remove_outliers(cloud: PointCloud) -> PointCloud:
    """Drop points that are far from their neighbours (statistical outlier removal)."""
    open3d = require_open3d("⟨outliers⟩")
    if cloud.num_points <= OUTLIER_NEIGHBOURS:
        return cloud
    points = open3d.t.geometry.PointCloud(open3d.core.Tensor(cloud.xyz))
    _, kept = points.remove_statistical_outliers(OUTLIER_NEIGHBOURS, OUTLIER_DEVIATIONS)
    return cloud[kept.numpy()]


def estimate_normals(cloud: PointCloud, camera_centers: NDArray[np.float64]) -> PointCloud:
    """Add normals from the covariance of neighbouring points, oriented towards the camera that saw the point.

    `camera_centers` [V, 3] are in the world. Too few points for a plane get the direction to the camera.
    """
    open3d = require_open3d("⟨normals⟩")
    to_camera = camera_centers[cloud.view] - cloud.xyz
    to_camera /= np.linalg.norm(to_camera, axis=1, keepdims=True).clip(1e-12)
    normals = to_camera
    if cloud.num_points >= 3:
        points = open3d.t.geometry.PointCloud(open3d.core.Tensor(cloud.xyz))
        points.estimate_normals(max_nn=NORMAL_NEIGHBOURS)
        normals = points.point.normals.numpy().astype(np.float64)
        facing = (normals * to_camera).sum(axis=1, keepdims=True)
        normals = np.where(facing < 0, -normals, normals)
    return replace(cloud, normals=normals.astype(np.float32))


def fuse_mesh(views: Iterable[DepthView], voxel_size: float) -> Mesh:
    """Fuse depth maps into a truncated signed distance function and extract its zero level as a coloured mesh.

    Open3D's voxel grid reads the pixel whose square [i, i + 1) a voxel projects into: its pixel centres are at 0.5,
    as everywhere in page4d, and not at integers as in Open3D's camera trajectories.

    Source: Curless & Levoy, "A Volumetric Method for Building Complex Models from Range Images" (SIGGRAPH 1996);
    Dong et al., "ASH: A Modern Framework for Parallel Spatial Hashing in 3D Perception" (TPAMI 2022).
    """
    open3d = require_open3d("⟨mesh⟩")
    core, image = open3d.core, open3d.t.geometry.Image
    grid = open3d.t.geometry.VoxelBlockGrid(
        attr_names=("tsdf", "weight", "color"),
        attr_dtypes=(core.float32, core.float32, core.float32),
        attr_channels=((1), (1), (3)),
        voxel_size=voxel_size,
        block_resolution=BLOCK_SIDE,
        block_count=1000,
    )
    is_empty = True
    for view in views:
        farthest = float(view.depth.max(initial=0.0))
        if farthest == 0.0:
            continue
        depth, color = image(core.Tensor(view.depth)), image(core.Tensor(view.rgb.astype(np.float32)))
        world_to_camera, ranges = core.Tensor(view.world_to_camera), (1.0, farthest * 1.001, TRUNCATION_VOXELS)
        blocks = [
            grid.compute_unique_block_coordinates(
                image(core.Tensor(shifted)), core.Tensor(intrinsics), world_to_camera, *ranges
            ).numpy()
            for shifted, intrinsics in _shifted(view)
        ]
        touched = core.Tensor(np.unique(np.concatenate(blocks), axis=0))
        grid.integrate(touched, depth, color, core.Tensor(view.intrinsics), world_to_camera, *ranges)
        is_empty = False
    found = None if is_empty else grid.extract_triangle_mesh(weight_threshold=0.0)  # fails on an empty grid
    if found is None or "positions" not in found.vertex:
        return Mesh(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8), np.zeros((0, 3), np.int32))
    rgb = np.rint(found.vertex.colors.numpy().clip(0, 255)).astype(np.uint8)
    return _in_order(found.vertex.positions.numpy(), rgb, found.triangle.indices.numpy())


def _shifted(view: DepthView) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float64]]]:
    """Yield the depth from each pixel of the first cell on, and its intrinsics: Open3D finds blocks by one per cell.

    Without the others, narrow surfaces between these pixels would be missing, and a map of them alone an error.
    """
    padded = np.pad(view.depth, (0, _TOUCHED_STEP - 1))  # pixels of partial cells count, too
    for top, left in np.ndindex(_TOUCHED_STEP, _TOUCHED_STEP):
        if padded[top::_TOUCHED_STEP, left::_TOUCHED_STEP].any():
            intrinsics = view.intrinsics.copy()
            intrinsics[:2, 2] -= left, top
            yield np.ascontiguousarray(padded[top:, left:]), intrinsics


def _in_order(vertices: NDArray[np.float32], rgb: NDArray[np.uint8], triangles: NDArray[np.integer]) -> Mesh:
    """Sort vertices by position and triangles by vertex: threads extract them in an order that varies."""
    order = np.lexsort(vertices.T[::-1])
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    sides = rank[triangles.reshape(-1, 3)]
    first = sides.argmin(axis=1)[:, None]
    sides = np.take_along_axis(sides, (first + np.arange(3)) % 3, axis=1)
    return Mesh(vertices[order], rgb[order], sides[np.lexsort(sides.T[::-1])])


_HEADER_BYTES = 1024
"""More than the header of a PLY file."""

_MESH_FACE = np.dtype([("count", "u1"), ("vertices", "<u4", 3)])


CloudWriter = Literal["Open3D", "page4d"]


def cloud_writer(*, needs_comments: bool) -> CloudWriter:
    """Return which writer writes clouds with points here: the order of properties and the comments depend on it."""
    return "page4d" if needs_comments or open3d_or_none() is None else "Open3D"


def write_cloud(
    path: Path, cloud: PointCloud, comments: Sequence[str] = (), *, needs_comments: bool = False
) -> WrittenFile:
    """Write a cloud with Open3D, or, if it is empty or needs its `comments`, with page4d's own writer."""
    encoded = partial(encode_ply, cloud.columns, comments)
    if cloud.num_points == 0 or needs_comments:
        return write_bytes_atomic(path, encoded())

    def write(open3d: ModuleType, part: Path) -> None:
        open3d.t.io.write_point_cloud(str(part), open3d_cloud(cloud))

    def is_complete(part: Path) -> bool:
        header = read_ply_header(part)
        layouts = [(sorted(one.properties), one.num_points) for one in (header, cloud)]
        return layouts[0] == layouts[1] and part.stat().st_size == header.num_bytes + cloud.num_bytes

    return _write_verified(path, cloud.num_bytes + _HEADER_BYTES, write, is_complete, encoded)


def write_trajectory(
    path: Path,
    world_to_camera: Float[Tensor, "T 4 4"],
    intrinsics: Float[Tensor, "T 3 3"],
    image_size: tuple[int, int],
) -> WrittenFile:
    """Write a camera trajectory in Open3D's format: integer pixel centres; `image_size` is (height, width)."""
    data = encode_trajectory(world_to_camera.numpy(), intrinsics.numpy(), image_size)

    def write(open3d: ModuleType, part: Path) -> None:
        part.write_bytes(data)
        trajectory = open3d.io.read_pinhole_camera_trajectory(str(part))
        open3d.io.write_pinhole_camera_trajectory(str(part), trajectory)

    def is_complete(part: Path) -> bool:
        text = part.read_bytes()
        return text.count(b'"PinholeCameraParameters"') == len(world_to_camera) and text.endswith(b"\n}")

    # Open3D indents by tabs.
    return _write_verified(path, 2 * len(data), write, is_complete, lambda: data)


def write_mesh(path: Path, mesh: Mesh, comments: Sequence[str] = ()) -> WrittenFile:
    """Write a coloured triangle mesh as PLY, with positions in double precision, as Open3D does."""
    triangles = (f"element face {len(mesh.triangles)}", "property list uchar uint vertex_indices")
    vertices = encode_ply(colored_points(mesh.vertices.astype(np.float64), mesh.rgb), comments, triangles)
    faces = np.empty(len(mesh.triangles), dtype=_MESH_FACE)
    faces["count"], faces["vertices"] = 3, mesh.triangles
    return write_bytes_atomic(path, vertices + faces.tobytes())


def encode_trajectory(
    world_to_camera: NDArray[np.float64], intrinsics: NDArray[np.float64], image_size: tuple[int, int]
) -> bytes:
    """Return a trajectory as Open3D reads it: matrices are column-major."""
    version = {"version_major": 1, "version_minor": 0}
    parameters = (
        {
            "class_name": "PinholeCameraParameters",
            "extrinsic": pose.T.flatten().tolist(),
            "intrinsic": _intrinsics_record(matrix, image_size),
            **version,
        }
        for pose, matrix in zip(world_to_camera, intrinsics, strict=True)
    )
    document = {"class_name": "PinholeCameraTrajectory", "parameters": parameters, **version}
    return (format_json(document) + "\n").encode("utf-8")


def encode_intrinsics(intrinsics: NDArray[np.float64], image_size: tuple[int, int]) -> bytes:
    """Return intrinsics [3, 3] as Open3D's PinholeCameraIntrinsic reads them; pixel centres are at integers."""
    return (format_json(_intrinsics_record(intrinsics, image_size)) + "\n").encode("utf-8")


def _intrinsics_record(matrix: NDArray[np.float64], image_size: tuple[int, int]) -> dict[str, Any]:
    return {"height": image_size[0], "width": image_size[1], "intrinsic_matrix": matrix.T.flatten().tolist()}


def _write_verified(
    path: Path,
    num_bytes: int,
    write: Callable[[ModuleType, Path], Any],
    is_complete: Callable[[Path], bool],
    encoded: Callable[[], bytes],
) -> WrittenFile:
    """Let Open3D write a file of about `num_bytes`, or write what is `encoded` if it cannot, or there is no room."""
    open3d = open3d_or_none()
    if open3d is None:
        return write_bytes_atomic(path, encoded())
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # On a full disk Open3D would print a line for every value.
        if has_room_for(path, num_bytes):
            with suppress(InputError), quiet(open3d):
                with atomic_path(path) as part:
                    write(open3d, part)
                    if not (part.is_file() and is_complete(part)):
                        raise InputError("Open3D's file is incomplete", "write it without Open3D")
                return WrittenFile(path, path.stat().st_size, file_sha256(path))
    return write_bytes_atomic(path, encoded())
