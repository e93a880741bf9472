"""Camera curves for Nuke: one .chan file per view, a text line per instant.

Lines are `frame tx ty tz rx ry rz vfov`: position, rotation angles and vertical field of view in degrees, of an
OpenGL camera in a world whose y axis points up. Frames are those of the pictures and maps of other formats, from 0.

Source: Nuke's `nukescripts.rotate_matrix_zxy`: rotation order ZXY, the default of its cameras, is Ry Rx Rz on column
vectors. Blender's importer of .chan files uses the same order if ZXY is chosen, and frame numbers as they are.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob, Written, lost_offsets, opengl_poses, vertical_fov
from page4d.io.atomic import real_path
from page4d.io.folders import write_file

_GIMBAL_LOCK = 1e-9


def write(job: ExportJob, folder: Path) -> Written:
    """Write a file per view."""
    poses, angles = opengl_poses(job), np.degrees(vertical_fov(job))
    for view, record in enumerate(job.views):
        rotation = zxy_angles(poses[:, view, :3, :3])
        rows = np.concatenate([poses[:, view, :3, 3], rotation, angles[:, view, None]], axis=1) + 0.0  # no -0
        lines = [f"{place} " + " ".join(f"{value:.12g}" for value in row) for place, row in enumerate(rows)]
        write_file(folder / f"{record.label}.chan", ("\n".join(lines) + "\n").encode("ascii"))
    for _ in range(job.num_times):
        job.advance()
    return Written(times=tuple(range(job.num_times)), remarks=lost_offsets(job))


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how to import the result."""
    height, width = job.sizes[0]
    path, ratio = real_path(folder) / f"{job.views[0].label}.chan", height / width
    return (
        f"Nuke: Camera > Import chan file > '{path}'; set vert aperture to {ratio:.6g} x horiz aperture before\n"
        f"Blender: add-on 'Nuke Animation Format (.chan)'; rotation order ZXY, sensor height {ratio:.6g} x width\n"
        f"Frames are numbered from 0, at {job.frame_rate:.6g} per second"
    )


def zxy_angles(rotations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return angles [T, 3] about x, y and z in degrees with R = Ry Rx Rz, continuous over the rotations [T, 3, 3].

    Of the two solutions, and their multiples of a turn, the nearest to the previous instant's is returned.
    """
    result: list[NDArray[np.float64]] = []
    for rotation in rotations:
        if np.hypot(rotation[1, 0], rotation[1, 1]) > _GIMBAL_LOCK:
            about_z = math.atan2(rotation[1, 0], rotation[1, 1])
        else:  # x is +-90 degrees: y and z turn about the same axis, any z has its y
            about_z = math.radians(result[-1][2]) if result else 0.0
        solutions = [_with_z(rotation, about_z)]
        if result:
            solutions.append(_with_z(rotation, about_z + math.pi))
            previous = result[-1]
            solutions = [each + 360.0 * np.rint((previous - each) / 360.0) for each in solutions]
            solutions.sort(key=lambda each: float(np.abs(each - previous).max()))
        result.append(solutions[0])
    return np.array(result)


def _with_z(rotation: NDArray[np.float64], about_z: float) -> NDArray[np.float64]:
    """Solve R = Ry Rx Rz for x and y."""
    cosine, sine = math.cos(about_z), math.sin(about_z)
    rest = rotation @ np.array([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]])
    about_x = math.atan2(-rest[1, 2], rest[1, 1])
    about_y = math.atan2(-rest[2, 0], rest[0, 0])
    return np.degrees([about_x, about_y, about_z])
