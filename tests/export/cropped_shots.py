"""The colour test for pictures that an export cropped."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.export import plan_exports
from page4d.exporters.job import ExportJob
from tests.export.capture import Capture, color_error, project
from tests.export.trainer_shots import Points, Shot, on_moving

_STRIDE = 5
"""Every fifth point is compared."""


def planned(capture: Capture, name: str, **options: object) -> ExportJob:
    """Plan an export of a capture to one format, without writing it."""
    folder = capture.folder.parent / "planned"
    ((job, _),) = plan_exports(capture.folder, name, folder, overwrite=False, scene=capture.scene, **options)
    return job


def by_instant(capture: Capture, cloud: Points) -> list[Points]:
    """Return for every instant the points [N, 3] of a cloud without those on the ball at other instants."""
    xyz, rgb = (values[::_STRIDE] for values in cloud)
    clouds = [capture.output.points(index) for index in range(capture.output.num_times)]
    place = {row: index for index, found in enumerate(clouds) for row in _rows(found.xyz[found.dynamic != 0])}
    places = np.array([place.get(row, -1) for row in _rows(xyz)])
    masks = [(places == index) | (places == -1) for index in range(len(clouds))]
    return [(xyz[mask], rgb[mask]) for mask in masks]


def _rows(xyz: NDArray[np.float32]) -> list[bytes]:
    assert xyz.dtype == np.float32
    return [row.tobytes() for row in xyz]


def in_crops(job: ExportJob, capture: Capture, xyz: NDArray[np.float32], shot: Shot) -> NDArray[np.bool_]:
    """Return which points [N, 3] lie in the part of the picture that the export keeps, by the true pose."""
    place = [view.index for view in job.views].index(shot.view)
    intrinsics, (height, width) = job.geometry[place].intrinsics[0], job.geometry[place].size
    pixels, _ = project(xyz, intrinsics, capture.world_to_camera[shot.instant, shot.view])
    return ((pixels >= 0) & (pixels < (width, height))).all(axis=1)


def worst_cropped_error(
    job: ExportJob,
    capture: Capture,
    shots: Iterable[Shot],
    points_of: Callable[[int], Points],
    *,
    moving: bool = False,
) -> float:
    """Return the largest colour error of all shots, over the points of the instant that the kept picture shows.

    `points_of` returns the points of an instant in the run's world; with `moving` only those on the ball count.
    """
    errors = []
    for shot in shots:
        xyz, rgb = points_of(shot.instant)
        seen = capture.sees(xyz, shot.instant, shot.view) & in_crops(job, capture, xyz, shot)
        if moving:
            seen &= on_moving(capture, xyz, shot.instant, shot.view)
        errors.append(color_error(xyz[seen], rgb[seen], shot.picture, shot.intrinsics, shot.world_to_camera))
    return max(errors)
