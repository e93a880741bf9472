"""Pictures with their cameras as a trainer's loader sees them, compared with the colours of its points."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plyfile
from numpy.typing import NDArray

from page4d.exporters.export import Exported, export, plan_exports
from page4d.exporters.job import ExportJob
from tests.exporters.capture import THRESHOLD, Capture, color_error, project

Points = tuple[NDArray[Any], NDArray[Any]]
"""Positions [N, 3] and colours [N, 3]."""

_COMPARED = 8000
"""Of a larger cloud, every nth point is compared."""


WRONG = ("axes", "focal length of the first camera", "centred principal point", "order of views")
"""Names of `mistakes`."""


@dataclass(frozen=True)
class Shot:
    """A picture of a view (its index in the run) that the loader takes for one of an instant, and its camera."""

    view: int
    instant: int
    picture: NDArray[np.uint8]
    intrinsics: NDArray[np.float64]
    world_to_camera: NDArray[np.float64]


def export_one(capture: Capture, name: str, folder: Path, **options: object) -> Exported:
    """Export a capture to one format."""
    (exported,) = export(capture.folder, name, folder, scene=capture.scene, **options)
    return exported


def planned(capture: Capture, name: str, **options: object) -> ExportJob:
    """Plan an export of a capture to one format, without writing it."""
    folder = capture.folder.parent / "planned"
    ((job, _),) = plan_exports(capture.folder, name, folder, overwrite=False, scene=capture.scene, **options)
    return job


def by_instant(capture: Capture, cloud: Points) -> list[Points]:
    """Return for every instant the points [N, 3] of a cloud without those on the ball at other instants."""
    xyz, rgb = (values[:: max(1, len(values) // _COMPARED)] for values in cloud)
    clouds = [capture.output.points(index) for index in range(capture.output.num_times)]
    place = {row: index for index, found in enumerate(clouds) for row in _rows(found.xyz[found.dynamic != 0])}
    places = np.array([place.get(row, -1) for row in _rows(xyz)])
    masks = [(places == index) | (places == -1) for index in range(len(clouds))]
    return [(xyz[mask], rgb[mask]) for mask in masks]


def _rows(xyz: NDArray[np.float32]) -> list[bytes]:
    assert xyz.dtype == np.float32
    return [row.tobytes() for row in xyz]


def _in_crops(job: ExportJob, capture: Capture, xyz: NDArray[np.float32], shot: Shot) -> NDArray[np.bool_]:
    """Return which points [N, 3] lie in the part of the picture that the export keeps, by the true pose."""
    place = [view.index for view in job.views].index(shot.view)
    intrinsics, (height, width) = job.geometry[place].intrinsics[0], job.geometry[place].size
    pixels, _ = project(xyz, intrinsics, capture.world_to_camera[shot.instant, shot.view])
    return ((pixels >= 0) & (pixels < (width, height))).all(axis=1)


def worst_error(
    capture: Capture,
    shots: Iterable[Shot],
    points_of: Callable[[int], Points],
    *,
    scale: float = 1.0,
    moving: bool = False,
    job: ExportJob | None = None,
) -> float:
    """Return the largest colour error of all shots, over the points of the instant that the view really sees.

    `points_of` returns the points of an instant, in a world that is `scale` times that of the run; with `moving` only
    those that are seen on the moving ball count, and with `job` those in the pictures that it crops.
    """
    errors = []
    for shot in shots:
        xyz, rgb = points_of(shot.instant)
        step = max(1, len(xyz) // _COMPARED)
        xyz, rgb = xyz[::step], rgb[::step]
        seen = capture.sees(xyz / scale, shot.instant, shot.view)
        if job is not None:
            seen &= _in_crops(job, capture, xyz, shot)
        if moving:
            seen &= on_moving(capture, xyz / scale, shot.instant, shot.view)
        errors.append(color_error(xyz[seen], rgb[seen], shot.picture, shot.intrinsics, shot.world_to_camera))
    return max(errors)


def assert_colors(
    capture: Capture,
    shots: Sequence[Shot],
    points_of: Callable[[int], Points],
    limits: tuple[float, float] = (THRESHOLD, THRESHOLD),
    wrong: Sequence[str] = WRONG,
    **options: Any,
) -> None:
    """Compare all points and the moving ones with the pictures, within `limits`; wrong shots exceed the threshold."""
    error = partial(worst_error, capture, points_of=points_of, **options)
    assert error(shots) < limits[0]
    assert error(shots, moving=True) < limits[1]
    for name, changed in mistakes(shots).items():
        assert name not in wrong or error(changed) > THRESHOLD, name
    assert error(next_instant(shots), moving=True) > THRESHOLD


def on_moving(capture: Capture, xyz: NDArray[Any], instant: int, view: int) -> NDArray[np.bool_]:
    """Return which points [N, 3] of the run's world project to moving pixels."""
    mask = capture.output.dynamic(instant, capture.predictions.view_names[view])
    pixels, _ = project(xyz, capture.intrinsics[instant, view], capture.world_to_camera[instant, view])
    columns, rows = np.nan_to_num(pixels).clip(0, [mask.shape[1] - 1, mask.shape[0] - 1]).astype(int).T
    return mask[rows, columns]


def mistakes(shots: Sequence[Shot]) -> dict[str, list[Shot]]:
    """Return what wrong writers or loaders would show: axes, focal length of one camera, centre, order of views."""
    first = {shot.instant: shot for shot in reversed(shots)}
    pictures = {(shot.view, shot.instant): shot.picture for shot in shots}
    views = sorted({shot.view for shot in shots})
    following = dict(zip(views, views[1:] + views[:1], strict=True))

    def with_intrinsics(shot: Shot, **entries: float) -> Shot:
        matrix = shot.intrinsics.copy()
        for name, value in entries.items():
            row, column = {"fx": (0, 0), "fy": (1, 1), "cx": (0, 2), "cy": (1, 2)}[name]
            matrix[row, column] = value
        return replace(shot, intrinsics=matrix)

    return {
        "axes": [
            replace(shot, world_to_camera=np.diag([1.0, -1.0, -1.0, 1.0]) @ shot.world_to_camera) for shot in shots
        ],
        "focal length of the first camera": [
            with_intrinsics(shot, fx=focal, fy=focal)
            for shot in shots
            for focal in [first[shot.instant].intrinsics[0, 0]]
        ],
        "centred principal point": [
            with_intrinsics(shot, cx=shot.picture.shape[1] / 2, cy=shot.picture.shape[0] / 2) for shot in shots
        ],
        "order of views": [replace(shot, picture=pictures[following[shot.view], shot.instant]) for shot in shots],
    }


def next_instant(shots: Sequence[Shot]) -> list[Shot]:
    """Return the shots with the picture of the following instant, without the last instant."""
    pictures = {(shot.view, shot.instant): shot.picture for shot in shots}
    instants = sorted({shot.instant for shot in shots})
    following = dict(zip(instants, instants[1:], strict=False))
    return [
        replace(shot, picture=pictures[shot.view, following[shot.instant]])
        for shot in shots
        if shot.instant in following
    ]


def read_cloud(path: Path) -> tuple[Points, NDArray[np.float32] | None]:
    """Read a PLY file with plyfile as `fetchPly` of the trainers does: points, colours in [0, 1], and times."""
    vertices = plyfile.PlyData.read(str(path))["vertex"]
    xyz, rgb = (np.stack([vertices[name] for name in names], axis=1) for names in ("xyz", ("red", "green", "blue")))
    assert not any(vertices[name].any() for name in ("nx", "ny", "nz"))
    names = [entry.name for entry in vertices.properties]
    assert names[:9] == "x y z nx ny nz red green blue".split()
    return (xyz, rgb / 255.0), np.asarray(vertices["time"]) if "time" in names else None


def poses_of_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the poses [V, 4, 4] of rows of poses_bounds.npy; columns: down, right, backwards, centre."""
    down, right, back, center, _ = np.moveaxis(rows[:, :15].reshape(-1, 3, 5), 2, 0)
    poses = np.tile(np.eye(4), (len(rows), 1, 1))
    poses[:, :3] = np.stack([right, down, -back, center], axis=2)
    return np.linalg.inv(poses)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of an export, apart from its record."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "export.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
