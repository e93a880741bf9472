"""Frusta of the cameras, and the point from which a scene is first seen."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.exporters.pictures import turn_up
from page4d.geometry.rotation import quaternion_from_matrix
from page4d.viewer.content import ViewerContent

Vector = tuple[float, float, float]

_FRUSTUM_SHARE = 0.06
"""Depth of a frustum as a share of the scene's diagonal."""

_FRUSTUM_REACH = 0.15
"""Largest depth of a frustum as a share of the cameras' distance from the scene."""

_BACK, _RISE = 1.4, 0.3
"""The first viewpoint, in distances of the cameras from the scene: how far back, and how far above them."""

_COMMON_SIDE = 0.3
"""Least length of the mean of the cameras' horizontal offsets, as a share of their mean length."""

_LEAST_TILT = 0.2
"""Least horizontal distance of the first viewpoint: straight down, the browser cannot keep the up direction."""


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
    """Return the depth at which pictures of frusta lie: a share of the scene.

    It is less if cameras are close together, or close to what they see.
    """
    centers = content.camera_to_world[0, :, :3, 3]
    depth = min(_FRUSTUM_SHARE * content.diagonal, _FRUSTUM_REACH * _distance(content))
    if len(centers) > 1:
        distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
        nearest = np.median(np.where(np.eye(len(centers), dtype=bool), np.inf, distances).min(axis=1))
        depth = min(depth, max(0.5 * float(nearest), 0.2 * depth))
    return depth


def first_viewpoint(content: ViewerContent) -> Viewpoint:
    """Return a viewpoint behind and above the cameras, at their mean height, towards the scene."""
    target, up, distance = _target(content), np.array(up_vector(content.up)), _distance(content)
    offsets = content.camera_to_world[0, :, :3, 3] - target
    heights = offsets @ up
    level = offsets - heights[:, None] * up
    radius = max(float(np.linalg.norm(level, axis=1).mean()), _LEAST_TILT * distance)
    toward = radius * _side(level, up, content.camera_to_world[0, 0], distance) + heights.mean() * up
    position = target + distance * (_BACK * toward / np.linalg.norm(toward) + _RISE * up)
    return Viewpoint(
        position=vector(position),
        look_at=vector(target),
        near=min(content.diagonal / 1000, distance / 100),
        far=max(content.diagonal, distance) * 100,
    )


def _target(content: ViewerContent) -> NDArray[np.float64]:
    """Return the median [3] of the points."""
    target: NDArray[np.float64] = content.center + np.median(content.middle_points.astype(np.float64), axis=0)
    return target


def _distance(content: ViewerContent) -> float:
    """Return the mean distance of the cameras from the median of the points."""
    offsets = content.camera_to_world[0, :, :3, 3] - _target(content)
    return float(np.linalg.norm(offsets, axis=1).mean()) or content.diagonal


def _side(
    level: NDArray[np.float64], up: NDArray[np.float64], pose: NDArray[np.float64], distance: float
) -> NDArray[np.float64]:
    """Return a horizontal unit vector [3] to the side of the cameras, from their horizontal offsets [V, 3].

    Cameras all around the scene have no common side: then the first one counts, with its pose [4, 4]. If it is right
    above the scene, its side is that of the lower edge of its picture.
    """
    side, radius = level.mean(axis=0), np.linalg.norm(level, axis=1).mean()
    if np.linalg.norm(side) < _COMMON_SIDE * radius:
        side = level[0]
    if np.linalg.norm(side) < _LEAST_TILT / 10 * distance:
        side = pose[:3, 1] if abs(pose[:3, 2] @ up) > 0.9 else -pose[:3, 2]
        side = side - (side @ up) * up
    unit: NDArray[np.float64] = side / np.linalg.norm(side)
    return unit
