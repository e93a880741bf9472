"""Mistakes that concern all cameras of a calibration: another image size, focal length or convention of poses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from page4d.rig.people_fit import RigCamera
from page4d.rig.records import Array

_SCALES = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 4 / 3, 3 / 2, 2.0, 3.0, 4.0)
"""Usual ratios of image sizes: 720p, 1080p, 1440p and 2160p, and halves and thirds."""

_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])

_LENS_FIX = "use the calibration of these videos; if its file states the calibrated image size, pass --calib-resize"
_POSE_FIX = "convert the poses to world-to-camera with the axes of OpenCV (x right, y down, z forward)"


@dataclass(frozen=True)
class Hypothesis:
    """Corrected cameras, what is wrong with the given ones, and how to correct it."""

    cameras: tuple[RigCamera, ...]
    what: str
    fix: str
    focal_ratio: float = 1.0


def common_mistakes(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    """Return corrections of frequent mistakes that concern all cameras."""
    return [*_other_lenses(cameras), *_other_conventions(cameras)]


def _other_lenses(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    found = [
        Hypothesis(
            _with_lenses(cameras, _centered),
            "the principal points are those of a larger image, whose edges were cut off",
            f"{_LENS_FIX} crop-center",
        )
    ]
    for scale in _SCALES:
        ratio = f"{scale:.2g}" if scale > 1 else f"1/{1 / scale:.2g}"
        size = f"the calibration is for images of another size ({ratio} of it is the size of the videos)"
        sense = "short" if scale > 1 else "long"
        focal = f"the focal lengths are too {sense} by a factor of about {max(scale, 1 / scale):.2g}"
        for center, what in ((scale, size), (1.0, focal)):
            moved = _with_lenses(cameras, partial(_scaled, focal=scale, center=center))
            found.append(Hypothesis(moved, what, f"{_LENS_FIX} scale", scale))
    return found


def _with_lenses(
    cameras: Sequence[RigCamera], change: Callable[[Array, tuple[int, int]], Array]
) -> tuple[RigCamera, ...]:
    return tuple(
        replace(camera, lens=replace(camera.lens, intrinsics=change(camera.lens.intrinsics, camera.lens.image_size)))
        for camera in cameras
    )


def _scaled(intrinsics: Array, _: tuple[int, int], *, focal: float, center: float) -> Array:
    changed = intrinsics.copy()
    changed[:2, :2] *= focal
    changed[:2, 2] *= center
    return changed


def _centered(intrinsics: Array, image_size: tuple[int, int]) -> Array:
    changed = intrinsics.copy()
    changed[:2, 2] = image_size[1] / 2, image_size[0] / 2
    return changed


def _inverse(pose: Array) -> Array:
    return np.asarray(np.linalg.inv(pose), dtype=np.float64)


def _other_conventions(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    def posed(change: Callable[[Array], Array], what: str) -> Hypothesis:
        moved = tuple(replace(camera, world_to_camera=change(camera.world_to_camera)) for camera in cameras)
        return Hypothesis(moved, what, _POSE_FIX)

    return [
        posed(_inverse, "the poses are camera-to-world"),
        posed(lambda pose: _OPENGL @ pose, "the camera axes are those of OpenGL (y up, z backward)"),
        posed(lambda pose: _OPENGL @ np.linalg.inv(pose), "the poses are camera-to-world with the axes of OpenGL"),
    ]
