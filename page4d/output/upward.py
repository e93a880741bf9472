"""What points up in the world of a run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from page4d.choices import UpAxis, WorldFrame
from page4d.output.reader import Output

_ROLL_DEG = 2.0
"""Standard deviation of the roll of a camera that was set up level; two cameras do not show theirs."""

_MAX_VERTICAL_STD_DEG = 5.0

_SNAP_DEG = 10.0
"""Angle to the vertical of level cameras, or three deviations of that, up to which a calibration's axis is taken."""

_ROUNDED_DEG = 1.0
"""The same in the world of the first camera, whose axes mean nothing: a turn by quarters rounds no coordinates."""

_FAR_DEG = 20.0
"""Angle between the cameras' mean upward axis and the axis that is taken from which a doubt is stated."""


@dataclass(frozen=True, kw_only=True)
class Upward:
    """The unit vector [3] that points up in the world of a run, the axis nearest to it, and how they were found."""

    axis: UpAxis
    vector: NDArray[np.float64]
    found: str


def upward_of(output: Output, given: UpAxis = UpAxis.AUTO) -> Upward:
    """Return what points up in the world of a run, for its exports, viewers and previews."""
    cameras, run = output.cameras, output.run
    is_calibrated = run.scene.calibration is not None and run.settings.get("poses", "input") == "input"
    is_first_camera = run.world is not None and run.world.frame is WorldFrame.FIRST_CAMERA
    is_calibrated &= run.registration is None and not is_first_camera
    return choose_up(given, cameras.world_to_camera.numpy(), known=cameras.up, is_calibrated=is_calibrated)


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
    level = _level_axis(world_to_camera)
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


def _level_axis(world_to_camera: NDArray[np.float64]) -> tuple[NDArray[np.float64], float] | None:
    """Return the vertical [3] that the x axes of level cameras [T, V] are normal to, and its deviation in degrees.

    Unlike the mean upward axis it does not depend on their pitch. None if it is not determined: of cameras that face
    the same way, or are rolled.
    """
    poses = world_to_camera.reshape(-1, 4, 4)
    values, vectors = np.linalg.eigh(poses[:, 0, :3].T @ poses[:, 0, :3] / len(poses))
    roll, spread = np.sqrt(values[:2].clip(0.0))
    mean = -poses[:, 1, :3].mean(axis=0)
    axis: NDArray[np.float64] = vectors[:, 0] * np.sign(vectors[:, 0] @ mean)
    deviation = np.hypot(_ROLL_DEG, np.degrees(roll)) / max(spread * world_to_camera.shape[1] ** 0.5, 1e-9)
    is_determined = deviation <= _MAX_VERTICAL_STD_DEG and axis @ mean > np.linalg.norm(mean) / 2
    return (axis, float(deviation)) if is_determined else None
