"""The exported world: a similarity of that of a run, whose up axis may differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.geometry.rotation import turn_up

SNAP_DEG = 20.0
"""Largest angle between the cameras' mean upward axis and the axis of the world that it is taken for."""


@dataclass(frozen=True, kw_only=True)
class ExportWorld:
    """The similarity x' = scale * rotation @ x from the run's world to the exported one.

    `up` is the axis of the run's world that points up; `exported_up` is the axis that points up afterwards.
    """

    up: UpAxis
    exported_up: UpAxis
    scale: float
    rotation: NDArray[np.float64]

    def matrix(self, offset: Sequence[float] | None = None) -> NDArray[np.float64]:
        """Return the similarity as a 4x4 matrix, after an offset of the run's world is subtracted."""
        matrix = np.eye(4)
        matrix[:3, :3] = self.scale * self.rotation
        if offset is not None:
            matrix[:3, 3] = -matrix[:3, :3] @ offset
        return matrix

    def points(self, xyz: NDArray[np.float32]) -> NDArray[np.float32]:
        """Transform points [N, 3]; those of an unchanged world are returned as they are."""
        if self.scale == 1.0 and np.array_equal(self.rotation, np.eye(3)):
            return xyz
        moved: NDArray[np.float32] = (xyz.astype(np.float64) @ (self.scale * self.rotation).T).astype(np.float32)
        return moved

    def vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rotate and scale differences of points [N, 3], such as velocities."""
        return self.points(vectors)  # the similarity has no translation

    def directions(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rotate unit vectors [N, 3], such as normals."""
        turned: NDArray[np.float32] = (vectors.astype(np.float64) @ self.rotation.T).astype(np.float32)
        return turned

    def world_to_camera(self, poses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rigid poses [..., 4, 4] of cameras in the exported world."""
        moved = poses.copy()
        moved[..., :3, :3] = poses[..., :3, :3] @ self.rotation.T
        moved[..., :3, 3] = self.scale * poses[..., :3, 3]
        return moved


def export_world(up: UpAxis, target: str, scale: float) -> ExportWorld:
    """Return the similarity that turns the run's `up` to the axis `target`, such as "y"; "" keeps the world."""
    goal = UpAxis(target) if target else up
    return ExportWorld(up=up, exported_up=goal, scale=scale, rotation=turn_up(up, goal))


def choose_up(
    up: UpAxis, world_to_camera: NDArray[np.float64], *, known: UpAxis | None = None, is_calibrated: bool
) -> tuple[UpAxis, str]:
    """Return the axis that points up in the run's world, and how it was found; poses are [T, V, 4, 4].

    `known` is the axis of an upright world.
    """
    if up is not UpAxis.AUTO:
        return up, "given"
    if known is not None:
        return known, "the world is upright"
    if not is_calibrated:
        return UpAxis.MINUS_Y, "the world is that of the first camera"
    upward = -world_to_camera[..., 1, :3].reshape(-1, 3).mean(axis=0)
    length = float(np.linalg.norm(upward))
    if length < 1e-6:
        return UpAxis.MINUS_Y, "the cameras' upward axes cancel out"
    cosines = {axis: float(np.dot(axis.vector, upward)) / length for axis in UpAxis if axis is not UpAxis.AUTO}
    best = max(cosines, key=cosines.__getitem__)
    angle = float(np.degrees(np.arccos(np.clip(cosines[best], -1.0, 1.0))))
    how = f"the mean upward axis of the cameras is {angle:.0f} degrees off it"
    return best, how if angle <= SNAP_DEG else f"{how}, which is far: give ⟨up⟩ if it is wrong"
