"""The points with velocities from which trainers of FreeTimeGS begin (`freetimegs`).

A Gaussian is at x + velocity * (t - time), with an opacity that falls off from its time with its duration as standard
deviation. Times and durations are parts of the capture, from 0 to 1; frame i of T is at i / (T - 1).
Source: `README.md` and `read_init_arrays` of FreeTimeGsVanilla at 662a832.
"""

import io
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob, Written
from page4d.exporters.points import ModelPoints
from page4d.io.atomic import real_path
from page4d.io.folders import write_file

_FILE = "points.npz"

_STATIC_TIME, _STATIC_DURATION = 0.5, 1.0
"""The opacity of a static point falls to 0.88 at the ends of the capture."""


def write(job: ExportJob, folder: Path) -> Written:
    """Write `points.npz`: static points once, moving points of every instant."""
    points = job.model_points()
    buffer = io.BytesIO()
    arrays: dict[str, Any] = point_arrays(points, job.seconds)
    np.savez(buffer, **arrays)
    write_file(folder / _FILE, buffer.getvalue())
    remark = "velocities are per frame of the steps around each instant; the trainer takes all steps as equal"
    times = tuple(np.linspace(0.0, 1.0, job.num_times).tolist())
    return Written(num_points=points.cloud.num_points, times=times, remarks=() if job.is_regular else (remark,))


def next_step(job: ExportJob, folder: Path) -> str:
    """Return the command that trains from the points."""
    path = shlex.quote(str(real_path(folder) / _FILE))
    return (
        "in the folder of FreeTimeGsVanilla, with its pictures and COLMAP cameras in DATA (docs/exports.md):\n"
        "python src/simple_trainer_freetime_4d_pure_relocation.py default_keyframe_small --data-dir DATA "
        f"--init-npz-path {path} --result-dir results --start-frame 0 --end-frame {job.num_times}"
    )


def point_arrays(points: ModelPoints, seconds: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the file; `seconds` [T] are the times of the instants.

    Velocities are per frame: per second, times the mean of the steps before and after the instant. A point that
    counts as static exists during the whole capture, so that its velocity is 0. One that moves exists for about a
    step.
    """
    cloud, number = points.cloud, len(seconds)
    moving = cloud.dynamic != 0
    velocity = np.zeros_like(cloud.xyz)
    has_velocity = ~moving
    if cloud.velocity is not None and cloud.velocity_sigma is not None:
        step = np.gradient(seconds)[points.place]
        velocity[moving] = (cloud.velocity * step[:, None])[moving]
        has_velocity = ~moving | (cloud.velocity_sigma > 0)
    times = np.where(moving, np.linspace(0.0, 1.0, number)[points.place], _STATIC_TIME)
    durations = np.where(moving, 1 / (number - 1), _STATIC_DURATION)
    return {
        "positions": np.ascontiguousarray(cloud.xyz),
        "velocities": velocity,
        "colors": (cloud.rgb / 255.0).astype(np.float32),
        "times": times[:, None].astype(np.float32),
        "durations": durations[:, None].astype(np.float32),
        "has_velocity": has_velocity,
        "frame_start": np.array(0),
        "frame_end": np.array(number),
        "time_denominator": np.array(number - 1),
        "keyframe_step": np.array(1),
        "n_keyframes": np.array(number),
        "mode": np.array("page4d"),
    }
