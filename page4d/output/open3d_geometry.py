"""Processing of clouds and depth maps by Open3D: outlier removal, normals, and TSDF fusion to a mesh."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.output.open3d_runtime import require_open3d
from page4d.output.ply import VELOCITY, PointCloud, velocity_columns

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
    """Convert to `open3d.t.geometry.PointCloud` with the attributes that Open3D reads from the PLY file.

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d()
    tensor = open3d.core.Tensor
    converted = open3d.t.geometry.PointCloud(tensor(cloud.xyz))
    converted.point.colors = tensor(cloud.rgb)
    if cloud.normals is not None:
        converted.point.normals = tensor(cloud.normals)
    converted.point.confidence = tensor(cloud.confidence[:, None])
    converted.point.view = tensor(cloud.view[:, None])
    converted.point.dynamic = tensor(cloud.dynamic[:, None])
    if (values := velocity_columns(cloud)) is not None:
        for (name, _), column in zip(VELOCITY, values.T, strict=True):
            converted.point[name] = tensor(np.ascontiguousarray(column[:, None]))
    return converted


def open3d_mesh(mesh: Mesh) -> Any:
    """Convert to `open3d.t.geometry.TriangleMesh`; its PLY writer takes colours in [0, 1] and saturates bytes.

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d()
    tensor = open3d.core.Tensor
    converted = open3d.t.geometry.TriangleMesh(tensor(mesh.vertices), tensor(mesh.triangles))
    converted.vertex.colors = tensor(mesh.rgb.astype(np.float32) / 255)
    return converted


def remove_outliers(cloud: PointCloud) -> PointCloud:
    """Drop points that are far from their neighbours (statistical outlier removal).

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d("--outliers")
    if cloud.num_points <= OUTLIER_NEIGHBOURS:
        return cloud
    points = open3d.t.geometry.PointCloud(open3d.core.Tensor(cloud.xyz))
    _, kept = points.remove_statistical_outliers(OUTLIER_NEIGHBOURS, OUTLIER_DEVIATIONS)
    return cloud[kept.numpy()]


def estimate_normals(cloud: PointCloud, camera_centers: NDArray[np.float64]) -> PointCloud:
    """Add normals from the covariance of neighbouring points, oriented towards the camera that saw the point.

    `camera_centers` [V, 3] are in the world. Too few points for a plane get the direction to the camera.

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d("--normals")
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

    Raises:
        CapabilityError: if Open3D cannot be loaded.
    """
    open3d = require_open3d("--mesh")
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
        camera = (core.Tensor(view.intrinsics), core.Tensor(view.world_to_camera))
        ranges = (1.0, farthest * 1.001, TRUNCATION_VOXELS)
        blocks = grid.compute_unique_block_coordinates(depth, *camera, *ranges)
        grid.integrate(blocks, depth, color, *camera, *ranges)
        is_empty = False
    found = None if is_empty else grid.extract_triangle_mesh(weight_threshold=0.0)  # fails on an empty grid
    if found is None or "positions" not in found.vertex:
        return Mesh(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8), np.zeros((0, 3), np.int32))
    rgb = np.rint(found.vertex.colors.numpy().clip(0, 255)).astype(np.uint8)
    return _in_order(found.vertex.positions.numpy(), rgb, found.triangle.indices.numpy())


def _in_order(vertices: NDArray[np.float32], rgb: NDArray[np.uint8], triangles: NDArray[np.integer]) -> Mesh:
    """Sort vertices by position and triangles by vertex: threads extract them in an order that varies."""
    order = np.lexsort(vertices.T[::-1])
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    sides = rank[triangles.reshape(-1, 3)]
    first = sides.argmin(axis=1)[:, None]
    sides = np.take_along_axis(sides, (first + np.arange(3)) % 3, axis=1)
    return Mesh(vertices[order], rgb[order], sides[np.lexsort(sides.T[::-1])])
