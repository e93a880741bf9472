"""`poses_bounds.npy`: poses, focal lengths and depth bounds of all views, one row each.

Source: README of LLFF, "Using your own poses without running COLMAP".
"""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.exporters.job import ExportJob

_NEAREST, _FARTHEST = 0.1, 99.9
"""Percentiles of the depths in view that are the bounds."""

_SAMPLE = 20_000
"""Points of a cloud that are projected into each view."""


class DepthBounds:
    """Collects the depths of points in view of every camera, over one or several clouds."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._depths: list[list[NDArray[np.float64]]] = [[] for _ in job.views]

    def add(self, xyz: NDArray[np.float32], place: int = 0) -> None:
        """Add points [N, 3] of the exported world, seen by the cameras of an instant."""
        sample = xyz[:: max(len(xyz) // _SAMPLE, 1)]
        for view, depths in enumerate(self._depths):
            depths.append(self._job.in_picture(sample, place, view)[2])

    def bounds(self) -> NDArray[np.float64]:
        """Return near and far [V, 2]; a view that shows no point gets those of all views.

        Raises:
            InputError: if no view shows any point.
        """
        views = [np.concatenate([*depths, np.empty(0)]) for depths in self._depths]
        everything = np.concatenate(views)
        if not len(everything):
            raise InputError("no exported point is in view of any camera", "export more points or other views")
        return np.stack(
            [np.percentile(depths if len(depths) else everything, [_NEAREST, _FARTHEST]) for depths in views]
        )


def encode_poses_bounds(
    job: ExportJob, bounds: NDArray[np.float64], views: Sequence[int] | None = None, scale: int = 1
) -> bytes:
    """Return the file for cameras that do not move, with a row per view in the order of `views` (default: all).

    A row is the 3x5 matrix of the columns down, right, backwards, centre, (height, width, focal length), row by row,
    then near and far, from `bounds` [V, 2]. Height, width and focal length (px) are multiplied by `scale`.
    """
    order = list(range(len(job.views)) if views is None else views)
    rotation, centers = job.camera_to_world[0, order, :3, :3], job.camera_to_world[0, order, :3, 3]
    lenses = scale * np.array([[*job.sizes[view], job.intrinsics[0, view, 0, 0]] for view in order])
    columns = [rotation[..., 1], rotation[..., 0], -rotation[..., 2], centers, lenses]
    rows = np.concatenate([np.stack(columns, axis=-1).reshape(len(order), 15), bounds[order]], axis=1)
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()
