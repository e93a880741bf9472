"""Cameras of an export as OpenGL cameras: x right, y up, looking along -z."""

import numpy as np
from numpy.typing import NDArray

from page4d.errors import listed
from page4d.exporters.job import ExportJob

_LOST_PX = 0.5
"""Offsets of the principal point below this are not worth a remark."""


def opengl_poses(job: ExportJob) -> NDArray[np.float64]:
    """Return poses [T, V, 4, 4] from OpenGL cameras to the exported world."""
    poses: NDArray[np.float64] = job.camera_to_world * np.array([1.0, -1.0, -1.0, 1.0]) + 0.0  # no -0
    return poses


def vertical_fov(job: ExportJob) -> NDArray[np.float64]:
    """Return the vertical field of view [T, V] in radians, of cameras with a centred principal point."""
    heights = np.array([size[0] for size in job.sizes])
    angles: NDArray[np.float64] = 2 * np.arctan(heights / (2 * job.intrinsics[..., 1, 1]))
    return angles


def lost_offsets(job: ExportJob) -> tuple[str, ...]:
    """Return a remark on the views whose principal point is off the centre, for formats that assume it centred."""
    centers = np.array([size[::-1] for size in job.sizes]) / 2
    offsets = np.linalg.norm(job.intrinsics[..., :2, 2] - centers, axis=-1).max(axis=0)
    views = [f"{view.name} {px:.1f} px" for view, px in zip(job.views, offsets, strict=True) if px > _LOST_PX]
    if not views:
        return ()
    return (f"{job.format.name} has no principal point; pictures are off their camera by: {listed(views, 4)}",)
