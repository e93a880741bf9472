"""The exported world: a similarity of that of a run, whose up axis may differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.choices import UpAxis
from page4d.geometry.rotation import level_axis, turn_up

_SNAP_DEG = 10.0
"""Angle to the vertical of level cameras, or three deviations of that, up to which a calibration's axis is taken."""

_ROUNDED_DEG = 1.0
"""The same in the world of the first camera, whose axes mean nothing: a turn by quarters rounds no coordinates."""

_FAR_DEG = 20.0
"""Angle between the cameras' mean upward axis and the axis that is taken from which a doubt is stated."""


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


@dataclass(frozen=True, kw_only=True)
class Upward:
    """The unit vector [3] that points up in the world of a run, the axis nearest to it, and how they were found."""

    axis: UpAxis
    vector: NDArray[np.float64]
    found: str


def export_world(up: Upward, target: str, scale: float) -> ExportWorld:
    """Return the similarity that turns the run's vertical to the axis `target`, such as "y"; "" keeps the world."""
    goal = UpAxis(target) if target else up.axis
    upward = np.array(goal.vector) if target else up.vector
    rotation = turn_up(up.vector, upward)
    return ExportWorld(up=up.axis, exported_up=goal, upward=upward, scale=scale, rotation=rotation)


def choose_up(
    up: UpAxis, world_to_camera: NDArray[np.float64], *, known: UpAxis | None = None, is_calibrated: bool
) -> Upward:
    """Return what points up in the run's world; poses are [T, V, 4, 4].

    `known` is the axis of an upright world. Without one, the cameras are taken for level where that determines the
    vertical; a calibration has an axis there unless it is clearly off.
    """
    if up is not UpAxis.AUTO:
        return _axis(up, "given")
    if known is not None:
        return _axis(known, "the world is upright")
    level = level_axis(world_to_camera)
    if level is None and not is_calibrated:
        return _axis(UpAxis.MINUS_Y, "the world is that of the first camera")
    upward = -world_to_camera[..., 1, :3].reshape(-1, 3).mean(axis=0) if level is None else level[0]
    length = float(np.linalg.norm(upward))
    if length < 1e-6:
        return _axis(UpAxis.MINUS_Y, "the cameras' upward axes cancel out")
    cosines = {axis: float(np.dot(axis.vector, upward)) / length for axis in UpAxis if axis is not UpAxis.AUTO}
    best = max(cosines, key=cosines.__getitem__)
    angle = float(np.degrees(np.arccos(np.clip(cosines[best], -1.0, 1.0))))
    if level is None:
        how = f"the mean upward axis of the cameras is {angle:.0f} degrees off it"
        return _axis(best, how if angle <= _FAR_DEG else f"{how}, which is far: give ⟨up⟩ if it is wrong")
    if angle <= (max(_SNAP_DEG, 3.0 * level[1]) if is_calibrated else _ROUNDED_DEG):
        return _axis(best, f"level cameras are {angle:.0f} degrees off it")
    return Upward(axis=best, vector=upward, found=f"level cameras show the vertical, {angle:.0f} degrees off it")


def _axis(axis: UpAxis, found: str) -> Upward:
    return Upward(axis=axis, vector=np.array(axis.vector), found=found)
