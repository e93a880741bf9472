"""The exported world: a similarity of that of a run, whose up axis may differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.geometry.rotation import turn_up
from page4d.output.upward import Upward


@dataclass(frozen=True, kw_only=True)
class ExportWorld:
    """The similarity x' = scale * rotation @ x from the run's world to the exported one.

    `up` is the axis of the run's world that points up, `exported_up` the one afterwards; a world that is kept may be
    tilted: `upward` [3] is the exported vertical.
    """

    up: UpAxis
    exported_up: UpAxis
    upward: NDArray[np.float64]
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
        """Transform points [N, 3], or differences of points, such as velocities; an unchanged world returns them."""
        if self.scale == 1.0 and np.array_equal(self.rotation, np.eye(3)):
            return xyz
        return (xyz.astype(np.float64) @ (self.scale * self.rotation).T).astype(np.float32)

    def directions(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rotate unit vectors [N, 3], such as normals."""
        return (vectors.astype(np.float64) @ self.rotation.T).astype(np.float32)

    def world_to_camera(self, poses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rigid poses [..., 4, 4] of cameras in the exported world."""
        moved = poses.copy()
        moved[..., :3, :3] = poses[..., :3, :3] @ self.rotation.T
        moved[..., :3, 3] = self.scale * poses[..., :3, 3]
        return moved


def export_world(up: Upward, target: str, scale: float) -> ExportWorld:
    """Return the similarity that turns the run's vertical to the axis `target`, such as "y"; "" keeps the world."""
    goal = UpAxis(target) if target else up.axis
    upward = np.array(goal.vector) if target else up.vector
    rotation = turn_up(up.vector, upward)
    return ExportWorld(up=up.axis, exported_up=goal, upward=upward, scale=scale, rotation=rotation)
