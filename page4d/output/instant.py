"""Writers per instant, one row of a table per kind of file, per capture, and of what does not move."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.conventions import METRIC_DEPTH_SCALE
from page4d.formats.cameras_json import CaptureCameras, write_cameras_json
from page4d.formats.maps import (
    crop_to_content,
    quantize_confidence,
    quantize_depth,
    quantize_dynamic,
    quantize_velocity,
    write_png,
)
from page4d.formats.open3d import write_cloud, write_mesh
from page4d.formats.ply import PointCloud
from page4d.io.atomic import WrittenFile
from page4d.options import PointOptions
from page4d.output.cameras import write_open3d_cameras, write_tum
from page4d.output.layout import OutputLayout
from page4d.output.mesh import fused_mesh
from page4d.output.points import cloud_comments, merged_cloud, offset_comment, static_cloud
from page4d.records import Predictions

_WHOLE, _LAYERED, _MESHES = {"points", "mesh"}, {"layers", "moving_mesh"}, {"mesh", "moving_mesh"}
"""Writers of whole instants, of instants whose static parts are written once, and of meshes."""


def instant_writers(*, layers: bool = False, mesh: bool = False) -> tuple[str, ...]:
    """Return the names of the writers of an instant: all but those of the other kind, and of meshes unless wanted."""
    left_out = (_WHOLE if layers else _LAYERED) | (set() if mesh else _MESHES)
    return tuple(name for name in INSTANT_WRITERS if name not in left_out)


@dataclass(frozen=True, kw_only=True)
class InstantOptions:
    """How instants are written; `depth_scale` applies to the whole capture, `writers` name `INSTANT_WRITERS`.

    `motion_step` is the velocity of one level of a velocity map, in units of the scene per second. A mesh has voxels
    of `mesh_voxel`, in units of the scene. Positions are about `world_offset`, which their files state.
    """

    depth_scale: float
    motion_step: float = 1 / METRIC_DEPTH_SCALE
    points: PointOptions = PointOptions()  # noqa: RUF009  immutable
    mesh_voxel: float = 1.0
    seed: int = 0
    world_offset: tuple[float, float, float] | None = None
    writers: tuple[str, ...] = field(default_factory=instant_writers)


@dataclass(frozen=True)
class InstantFiles:
    """The files of an instant, with their counts for `run.json`."""

    files: tuple[WrittenFile, ...] = ()
    clipped_depths: int = 0
    clipped_velocities: int = 0
    num_points: int = 0

    def __add__(self, other: "InstantFiles") -> "InstantFiles":
        """Concatenate the files and add the counts."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return InstantFiles(*(own + more for own, more in pairs))


InstantWriter = Callable[[OutputLayout, int, Predictions, InstantOptions], InstantFiles]


def write_instant(layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions) -> InstantFiles:
    """Write all files of the instant with this index in the capture, from predictions [1, 1, V, H, W].

    Kinds of files are written side by side: most of the time they wait for the disk.

    Raises:
        OutputError: if a file cannot be written; the others are complete.
    """
    writers = [INSTANT_WRITERS[name] for name in options.writers]
    with ThreadPoolExecutor(len(INSTANT_WRITERS), "write") as threads:
        writing = [threads.submit(write, layout, index, instant, options) for write in writers]
    written = InstantFiles()
    for one in writing:
        written += one.result()
    return written


def write_static(layout: OutputLayout, background: Predictions, options: InstantOptions) -> InstantFiles:
    """Write the points of what does not move, once for all instants, from the background [1, 1, V, H, W].

    The points are those of `static_cloud`; pixels without a background are not valid. With the writer `moving_mesh`,
    their surface is written, too.

    Raises:
        OutputError: if a file cannot be written.
    """
    cloud = static_cloud(background, options.points, options.seed)
    kind = "what does not move, at all instants"
    files = [_write_cloud(layout.static_points, cloud, layout, background, options, kind)]
    if "moving_mesh" in options.writers:
        mesh = fused_mesh(background, options.points, options.mesh_voxel)
        files.append(write_mesh(layout.static_mesh, mesh, _mesh_comments(options)))
    return InstantFiles(tuple(files), num_points=cloud.num_points)


def write_capture_cameras(layout: OutputLayout, cameras: CaptureCameras) -> list[WrittenFile]:
    """Write all camera files of a capture.

    Raises:
        OutputError: if a file cannot be written.
    """
    whole = write_cameras_json(layout.cameras, cameras)
    return [whole, *write_tum(layout, cameras), *write_open3d_cameras(layout, cameras)]


def _write_depth(layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions) -> InstantFiles:
    written = InstantFiles()
    for view, name in enumerate(instant.view_names):
        levels, clipped = _depth_levels(instant, view, options)
        written += InstantFiles((write_png(layout.depth(index, name), levels),), clipped_depths=clipped)
    return written


def _depth_levels(instant: Predictions, view: int, options: InstantOptions) -> tuple[NDArray[np.uint16], int]:
    depth, valid = _content(instant, instant.depth, view), _content(instant, instant.valid, view)
    return quantize_depth(depth, valid, options.depth_scale)


def _write_confidence(
    layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions
) -> InstantFiles:
    files = []
    for view, name in enumerate(instant.view_names):
        known = torch.from_numpy(_depth_levels(instant, view, options)[0] > 0)
        levels = quantize_confidence(_content(instant, instant.depth_confidence, view), known)
        files.append(write_png(layout.confidence(index, name), levels))
    return InstantFiles(tuple(files))


def _write_dynamic(layout: OutputLayout, index: int, instant: Predictions, _: InstantOptions) -> InstantFiles:
    if instant.dynamic is None:
        return InstantFiles()
    files = []
    for view, name in enumerate(instant.view_names):
        levels = quantize_dynamic(_content(instant, instant.dynamic, view), _content(instant, instant.valid, view))
        files.append(write_png(layout.dynamic(index, name), levels))
    return InstantFiles(tuple(files))


def _write_motion(layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions) -> InstantFiles:
    if instant.velocity is None or instant.velocity_sigma is None:
        return InstantFiles()
    written = InstantFiles()
    for view, name in enumerate(instant.view_names):
        velocity = crop_to_content(instant.velocity[0, 0, view].cpu().movedim(-1, 0), instant.pixel_transforms[view])
        sigma = _content(instant, instant.velocity_sigma, view)
        levels, sigma_levels, clipped = quantize_velocity(velocity.movedim(0, -1), sigma, options.motion_step)
        files = (
            write_png(layout.motion(index, name), levels),
            write_png(layout.motion_sigma(index, name), sigma_levels),
        )
        written += InstantFiles(files, clipped_velocities=clipped)
    return written


def _write_points(
    layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions, *, layers: bool = False
) -> InstantFiles:
    """Write the merged cloud and, with `layers`, its moving points in a file of their own."""
    cloud = merged_cloud(instant, options.points, options.seed)
    files = [_write_cloud(layout.points(index), cloud, layout, instant, options)]
    if layers:
        moving = cloud[cloud.dynamic != 0]
        files.append(_write_cloud(layout.moving_points(index), moving, layout, instant, options))
    return InstantFiles(tuple(files), num_points=cloud.num_points)


def _write_cloud(
    path: Path, cloud: PointCloud, layout: OutputLayout, instant: Predictions, options: InstantOptions, kind: str = ""
) -> WrittenFile:
    comments = cloud_comments(instant, layout.file_names, kind, options.world_offset)
    return write_cloud(path, cloud, comments, needs_comments=options.world_offset is not None)


def _mesh_comments(options: InstantOptions) -> list[str]:
    return [] if options.world_offset is None else [offset_comment(options.world_offset)]


def _write_mesh(
    layout: OutputLayout, index: int, instant: Predictions, options: InstantOptions, *, moving_only: bool = False
) -> InstantFiles:
    mesh = fused_mesh(instant, options.points, options.mesh_voxel, moving_only=moving_only)
    path = layout.moving_mesh(index) if moving_only else layout.mesh(index)
    return InstantFiles((write_mesh(path, mesh, _mesh_comments(options)),))


def _content(instant: Predictions, maps: Tensor, view: int) -> Tensor:
    """Take a view's map [H, W] of the one instant without its padding."""
    return crop_to_content(maps[0, 0, view].cpu(), instant.pixel_transforms[view])


INSTANT_WRITERS: dict[str, InstantWriter] = {
    "depth": _write_depth,
    "confidence": _write_confidence,
    "dynamic": _write_dynamic,
    "motion": _write_motion,
    "points": _write_points,
    "layers": partial(_write_points, layers=True),
    "mesh": _write_mesh,
    "moving_mesh": partial(_write_mesh, moving_only=True),
}
"""Writers of one instant; a new format is one more row."""
