"""Frusta of the cameras, and the point from which a scene is first seen."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.exporters.world import turn_up
from page4d.geometry.rotation import quaternion_from_matrix
from page4d.viewer.content import ViewerContent

Vector = tuple[float, float, float]

_FRUSTUM_SHARE = 0.06
"""Depth of a frustum as a share of the scene's diagonal."""

_BACK, _RISE = 1.4, 0.3
"""The first viewpoint, in distances of the cameras from the scene: how far back, and how far above them."""


@dataclass(frozen=True, kw_only=True)
class Frustum:
    """The field of view of a camera: `fov` is vertical in radians, `aspect` the tangents' ratio of width to height.

    The principal point is not represented: a frustum is symmetric.
    """

    fov: float
    aspect: float


@dataclass(frozen=True, kw_only=True)
class Viewpoint:
    """A camera of the viewer in the run's world, the point that it orbits, and its clipping planes."""

    position: Vector
    look_at: Vector
    near: float
    far: float


def frustum(intrinsics: NDArray[np.float64], size: tuple[int, int]) -> Frustum:
    """Return the frustum of a camera with intrinsics [3, 3] and pictures of (height, width)."""
    height, width = size
    tangent_x, tangent_y = width / (2 * intrinsics[0, 0]), height / (2 * intrinsics[1, 1])
    return Frustum(fov=2 * math.atan(tangent_y), aspect=float(tangent_x / tangent_y))


def quaternion(pose: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return the rotation of a pose [4, 4] as a unit quaternion (wxyz)."""
    w, x, y, z = quaternion_from_matrix(torch.from_numpy(pose[:3, :3].copy())).tolist()
    return w, x, y, z


def vector(values: NDArray[np.float64]) -> Vector:
    """Return a vector [3] as numbers of Python."""
    x, y, z = values.tolist()
    return x, y, z


def up_vector(up: UpAxis) -> Vector:
    """Return the unit vector of an axis."""
    return vector(turn_up(UpAxis.Y, up)[:, 1])


def frustum_depth(content: ViewerContent) -> float:
    """Return the depth at which pictures of frusta lie: a share of the scene, less if cameras are close together."""
    depth = _FRUSTUM_SHARE * content.diagonal
    centers = content.camera_to_world[0, :, :3, 3]
    if len(centers) > 1:
        distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
        nearest = np.median(np.where(np.eye(len(centers), dtype=bool), np.inf, distances).min(axis=1))
        depth = min(depth, max(0.5 * float(nearest), 0.2 * depth))
    return depth


def first_viewpoint(content: ViewerContent) -> Viewpoint:
    """Return a viewpoint behind and above the cameras, towards the scene.

    Cameras all around the scene have no common side: then the first one counts.
    """
    target = content.center + np.median(content.middle_points.astype(np.float64), axis=0)
    offsets = content.camera_to_world[0, :, :3, 3] - target
    distances = np.linalg.norm(offsets, axis=1)
    distance = float(distances.mean()) or content.diagonal
    side = offsets.mean(axis=0)
    if np.linalg.norm(side) < 0.3 * distance:
        side = offsets[0]
    length = float(np.linalg.norm(side))
    toward = side / length if length > 0 else -content.camera_to_world[0, 0, :3, 2]
    position = target + distance * (_BACK * toward + _RISE * np.array(up_vector(content.up)))
    return Viewpoint(
        position=vector(position),
        look_at=vector(target),
        near=content.diagonal / 1000,
        far=max(content.diagonal, distance) * 100,
    )
