"""Triangulation of tracks."""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from page4d.rig.records import Array
from page4d.rig.tracks import Tracks

_MIN_SPREAD = 1.5e-4
"""Smallest eigenvalue of the sum of I - d d^T over a point's rays: 1 - cos of 1 degree, for two rays."""

_ROUNDS = 5
_SCALE = 0.01
"""Distance of a ray from its point, over the depth, at which the ray's weight is halved: 2 to 3 thresholds of pairs,
so that one wrong ray of three or more does not displace the point."""


def rays(
    world_to_camera: Float[Array, "V 4 4"], intrinsics: Float[Array, "V 3 3"], tracks: Tracks
) -> tuple[Float[Array, "N 3"], Float[Array, "N 3"]]:
    """Return the camera centre and the unit direction in the world of every observation."""
    rotation, translation = world_to_camera[:, :3, :3], world_to_camera[:, :3, 3:]
    centers = -(np.swapaxes(rotation, 1, 2) @ translation)[..., 0]
    ones = np.ones((len(tracks.pixels), 1))
    plane = np.concatenate([tracks.pixels, ones], -1)[..., None]
    to_world = np.swapaxes(rotation, 1, 2) @ np.linalg.inv(intrinsics)
    direction = (to_world[tracks.view] @ plane)[..., 0]
    return centers[tracks.view], direction / np.linalg.norm(direction, axis=-1, keepdims=True)


def triangulate(
    world_to_camera: Float[Array, "V 4 4"], intrinsics: Float[Array, "V 3 3"], tracks: Tracks
) -> tuple[Float[Array, "P 3"], Bool[NDArray[np.bool_], " P"]]:
    """Return the point nearest to the rays of each track (weighted, robust), and whether it is determined.

    A point is determined if its rays are not parallel and it lies in front of its cameras. Tracks need at least one
    observation per point.
    """
    if tracks.num_points == 0:
        return np.zeros((0, 3)), np.zeros(0, bool)
    starts = np.flatnonzero(np.diff(tracks.point, prepend=-1))
    center, direction = rays(world_to_camera, intrinsics, tracks)
    across = np.eye(3) - direction[:, :, None] * direction[:, None, :]
    spread = np.linalg.eigvalsh(np.add.reduceat(across, starts))[:, 0]
    weight: Array = tracks.weights
    points: Array = np.zeros((tracks.num_points, 3))
    for _ in range(_ROUNDS):
        weighted = across * weight[:, None, None]
        matrix = np.add.reduceat(weighted, starts) + 1e-12 * np.eye(3)
        right = np.add.reduceat((weighted @ center[..., None])[..., 0], starts)
        points = np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0], np.float64)
        offset = points[tracks.point] - center
        depth = (offset * direction).sum(-1)
        distance: Array = np.linalg.norm(offset - depth[:, None] * direction, axis=-1)
        relative = distance / (_SCALE * np.maximum(np.abs(depth), 1e-12))
        # Nearer cameras see an error larger: divide distances by depth.
        weight = tracks.weights / (1 + relative**2) / np.maximum(depth**2, 1e-24)
        weight = weight / np.maximum.reduceat(weight, starts)[tracks.point]
    local = np.einsum("nj,nj->n", world_to_camera[tracks.view, 2, :3], points[tracks.point])
    front = np.minimum.reduceat(local + world_to_camera[tracks.view, 2, 3], starts) > 0
    return points, front & (spread > _MIN_SPREAD)
