"""Views for training and testing, and their file `poses_bounds.npy`, as the readers of trainers expect them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.exporters.job import ExportJob
from page4d.formats import llff


def split_views(job: ExportJob) -> tuple[list[int], list[int]]:
    """Return the views for training and those that are held out."""
    held_out = [number for number, view in enumerate(job.views) if view.held_out]
    return [number for number in range(len(job.views)) if number not in held_out], held_out


def repeated_view(job: ExportJob, file: str) -> str:
    """Return the remark on a file for testing that repeats the first view, because readers need the file."""
    return f"{file} repeats {job.views[0].name}, which is trained on: hold out a view to compare scores"


def reading_order(job: ExportJob) -> list[int]:
    """Return all views in the order of readers that test the first one: a view that is held out comes first."""
    train, test = split_views(job)
    return test + train


def sorted_names(number: int) -> list[str]:
    """Return the names cam00, cam01, ... of views; their order by text is that by number."""
    digits = max(2, len(str(number - 1)))
    return [f"cam{rank:0{digits}d}" for rank in range(number)]


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

    def encoded(self, views: Sequence[int] | None = None, scale: int = 1) -> bytes:
        """Return `poses_bounds.npy` for cameras that do not move, with a row per view in the order of `views`.

        The default are all views. A view that shows no point gets near and far of all views. Height, width and focal
        length (px) are multiplied by `scale`.

        Raises:
            InputError: if no view shows any point.
        """
        shown = [np.concatenate([*depths, np.empty(0)]) for depths in self._depths]
        everything, job = np.concatenate(shown), self._job
        if not len(everything):
            raise InputError("no exported point is in view of any camera", "export more points or other views")
        order = list(range(len(shown)) if views is None else views)
        own = (shown[view] if len(shown[view]) else everything for view in order)
        bounds = np.stack([np.percentile(depths, [_NEAREST, _FARTHEST]) for depths in own])
        lenses = scale * np.array([[*job.sizes[view], job.intrinsics[0, view, 0, 0]] for view in order])
        return llff.encode(job.camera_to_world[0, order], lenses, bounds)
