"""3D Gaussian splats: one PLY file per instant, for viewers and as a start for trainers.

The world has y down, as viewers of splats expect it.

Source: the PLY layout of "3D Gaussian Splatting for Real-Time Radiance Field Rendering" (Kerbl et al. 2023), without
the optional spherical harmonics of higher degree: float32, quaternions wxyz, logarithmic scales, opacity as logit.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import logit

from page4d.errors import counted
from page4d.exporters.job import ExportJob, Written
from page4d.formats.ply import PointCloud, encode_ply
from page4d.io.atomic import real_path
from page4d.io.folders import write_file
from page4d.output.layout import frame_name
from page4d.signals import deferred_signals

_PROPERTIES = (
    *("x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity"),
    *("scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"),
)
_HARMONIC = 0.5 / np.sqrt(np.pi)
"""The constant spherical harmonic, Y_00 = 0.28209479."""

_RADIUS = 0.7
"""Radius of a splat relative to the distance to the third neighbour: surfaces close without blurring."""

_OPACITY = (0.02, 0.98)
_SMALLEST = 1e-3
"""Smallest radius relative to the median one: points at the same place have no distance."""


def write(job: ExportJob, folder: Path) -> Written:
    """Write frame_000000.ply and so on, 68 bytes per splat."""
    total = 0
    for place in range(job.num_times):
        cloud = job.instant_points(place)
        write_file(folder / f"{frame_name(place)}.ply", encode_splats(cloud))
        total += cloud.num_points
    return Written(num_points=total, times=tuple(range(job.num_times)))


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how to view the result."""
    kind = "play" if job.num_times > 1 else "view"
    return (
        f"To {kind} {counted(job.num_times, 'instant')}: drop '{real_path(folder)}/frame_*.ply' on "
        "https://superspl.at/editor\n"
        "y points down; where splats are upside down, turn them by 180 degrees about x"
    )


def encode_splats(cloud: PointCloud) -> bytes:
    """Return the PLY file of a cloud as isotropic splats."""
    values = np.zeros((cloud.num_points, len(_PROPERTIES)), dtype="<f4")
    values[:, 0:3] = cloud.xyz
    if cloud.normals is not None:
        values[:, 3:6] = cloud.normals
    values[:, 6:9] = (cloud.rgb / 255.0 - 0.5) / _HARMONIC
    values[:, 9] = logit(cloud.confidence.astype(np.float64).clip(*_OPACITY))
    values[:, 10:13] = np.log(splat_radii(cloud.xyz))[:, None]
    values[:, 13] = 1.0
    return encode_ply(dict(zip(_PROPERTIES, values.T, strict=True)))


def splat_radii(xyz: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return a radius per point [N, 3] from the distance to its third neighbour, in the unit of the points.

    With fewer than four points it is the farthest neighbour's; a single point gets a thousandth of its distance from
    the origin.
    """
    number = len(xyz)
    if number < 2:
        return np.array([max(1e-3 * math.hypot(*point), 1e-6) for point in xyz.tolist()])
    neighbour = min(3, number - 1) + 1  # the nearest is the point itself
    tree = cKDTree(xyz)
    with deferred_signals():  # SciPy's threads write into freed memory if an exception leaves the query
        found, _ = tree.query(xyz, k=[neighbour], workers=-1)
    distances = np.asarray(found)[:, 0]
    typical = float(np.median(distances)) or float(distances.max()) or 1e-6
    return _RADIUS * distances.clip(min=_SMALLEST * typical)
