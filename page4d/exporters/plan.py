"""The plan of an export: its options checked against the format and the run, and upper bounds of its size.

Files, points and bytes follow from the sizes of pictures and clouds, before anything is written.
"""

import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from page4d.choices import ImageFormat, Pinhole, PointLayer
from page4d.errors import InputError, OutputError, UsageError, human_size, listed, unknown_name
from page4d.exporters.formats import FORMATS, VIEW_HINTS, BudgetScope, Format, Layout, PictureUse, Points
from page4d.exporters.job import ExportJob, ExportView
from page4d.exporters.pictures import plan_pictures
from page4d.exporters.points import CloudReader, PointFilter
from page4d.exporters.world import export_world
from page4d.geometry.transforms import is_constant
from page4d.io.atomic import existing_folder, real_path
from page4d.options import ExportSettings
from page4d.output.pictures import Pictures
from page4d.output.reader import Output
from page4d.output.upward import upward_of

_POINT_OPTIONS = frozenset({"max_points", "voxel", "min_confidence", "only", "seed"})
_DEFAULTS = ExportSettings()
_NEAREST_PERCENTILE = 0.1


def check_options(chosen: Sequence[Format], settings: ExportSettings) -> None:
    """Refuse an option that differs from its default and that none of the chosen formats takes.

    Views to hold out are refused for every format with pictures that cannot: its readers would train on them.

    Raises:
        UsageError: naming the option and the formats that take it.
    """
    for name in sorted(_options_of_any(FORMATS.values()) - _options_of_any(chosen)):
        if getattr(settings, name) != getattr(_DEFAULTS, name):
            option = "⟨images=False⟩" if name == "images" else f"⟨{name}⟩"
            takers = [format.name for format in FORMATS.values() if name in options_of(format)]
            names = listed([format.name for format in chosen])
            raise UsageError(
                f"{names} takes no {option}", f"leave it out; these formats take it: {listed(takers, 20)}"
            )
    mixed = [one.name for one in chosen if one.pictures is not PictureUse.NONE and "hold_out" not in one.options]
    if settings.hold_out and mixed:
        raise UsageError(
            f"{listed(mixed)} would contain the views of ⟨hold_out⟩", "export it alone, with ⟨views⟩ for training"
        )
    warps = any((settings.pinhole or format.pinhole) is Pinhole.COMMON for format in chosen)
    if settings.pinhole_focal is not None and not warps:
        raise UsageError(
            "⟨pinhole_focal⟩ without ⟨pinhole=common⟩", "give ⟨pinhole=common⟩, or leave the focal length out"
        )


def options_of(format: Format) -> frozenset[str]:
    """Return the fields of `ExportSettings` that a format takes and others may not."""
    return format.options | (_POINT_OPTIONS if format.point_bytes else frozenset())


def _options_of_any(formats: Iterable[Format]) -> frozenset[str]:
    return frozenset[str]().union(*map(options_of, formats))


def plan_job(output: Output, format: Format, settings: ExportSettings, pictures: Pictures | None) -> ExportJob:
    """Choose views, instants, world, cameras and pictures of an export.

    Raises:
        UsageError: if there are no such views or instants, or the filters leave no points.
        InputError: if the run does not suit the format.
    """
    others = _options_of_any(FORMATS.values()) - options_of(format)  # several formats have the same options
    settings = replace(settings, **{name: getattr(_DEFAULTS, name) for name in others})
    if format.pictures is PictureUse.NONE and pictures is not None:  # they are those of other formats
        settings = replace(settings, scene=None)
    views = exported_views(output, settings)
    instants = exported_instants(output, settings)
    if format.animated_points and not settings.animated:
        instants = (instants[len(instants) // 2],)
    indices = [view.index for view in views]
    poses = output.cameras.world_to_camera.numpy()[np.ix_(instants, indices)]
    intrinsics = output.cameras.intrinsics.numpy()[np.ix_(instants, indices)]
    _check_limits(format, views, instants, output, poses, intrinsics)
    geometry = plan_pictures(
        [view.size for view in views],
        intrinsics,
        settings.pinhole or format.pinhole,
        long_side=settings.image_size,
        exact_size=format.image_size,
        focal=settings.pinhole_focal,
    )
    if format.same_size and len({one.size for one in geometry}) > 1:
        raise UsageError(f"{format.name} needs pictures of one size", "give ⟨pinhole=common⟩")
    up = upward_of(output, settings.up)
    clouds = None
    if format.point_bytes:
        selection = PointFilter(
            views=tuple(indices), min_confidence=settings.min_confidence, only=settings.only, voxel=settings.voxel
        )
        clouds = CloudReader(output, instants, selection, cuts_outliers=format.cuts_outliers, seed=settings.seed)
        limit = format.animated_points if settings.animated else format.max_points
        scope = BudgetScope.INSTANT if settings.per_instant else format.budget
        clouds = clouds.limited(limit if settings.max_points is None else settings.max_points, scope)
    scale = settings.scale or _automatic_scale(output, format, clouds, views, poses)
    world = export_world(up, format.up, scale)
    return ExportJob(
        output=output,
        settings=settings,
        format=format,
        views=views,
        instants=instants,
        seconds=output.cameras.times.numpy()[list(instants)],
        world=world,
        up_found=up.found,
        world_to_camera=world.world_to_camera(poses),
        geometry=geometry,
        clouds=clouds,
        pictures=None if format.pictures is PictureUse.NONE else pictures,
        image_format=settings.image_format or format.image_format,
    )


def exported_views(output: Output, settings: ExportSettings) -> tuple[ExportView, ...]:
    """Return the views that settings select."""
    names = output.view_names
    for option, given in (("views", settings.views or ()), ("hold_out", settings.hold_out)):
        if unknown := [name for name in given if name not in names]:
            raise unknown_name("view", unknown[0], names, f"⟨{option}⟩: ")
    chosen = [name for name in names if settings.views is None or name in settings.views]
    if missing := [name for name in settings.hold_out if name not in chosen]:
        raise UsageError(f"⟨hold_out={missing[0]}⟩ is not among the exported views", "add it to ⟨views⟩")
    if len(settings.hold_out) and len(chosen) == len(set(settings.hold_out)):
        raise UsageError("⟨hold_out⟩ leaves no view for training", "hold out fewer views")
    return tuple(
        ExportView(
            name=name,
            label=output.layout.file_name(name),
            index=names.index(name),
            size=output.cameras.image_sizes[names.index(name)],
            held_out=name in settings.hold_out,
        )
        for name in chosen
    )


def exported_instants(output: Output, settings: ExportSettings) -> tuple[int, ...]:
    """Return the instants that settings select."""
    start, stop, step = settings.instants
    number = output.num_times
    for value in (start, stop if stop is None or stop < 0 else stop - 1):
        if value is not None and not -number <= value < number:
            raise UsageError(f"⟨instants⟩: no instant {value}", f"the run has instants 0 to {number - 1}")
    chosen = tuple(range(number)[start:stop:step])
    if not chosen:
        raise UsageError("⟨instants⟩ leaves no instant", f"the run has instants 0 to {number - 1}")
    return chosen


def _check_limits(
    format: Format,
    views: Sequence[ExportView],
    instants: Sequence[int],
    output: Output,
    poses: NDArray[np.float64],
    intrinsics: NDArray[np.float64],
) -> None:
    """Refuse a run that readers of the format cannot represent."""
    if format.needs_velocity and not output.has_velocity:
        raise InputError(
            f"{format.name} needs velocities, and this run has none", "reconstruct the scene again with ⟨motion=True⟩"
        )
    if format.tests_first and (held_out := sum(view.held_out for view in views)) > 1:
        raise UsageError(f"{format.name} holds out one view, not {held_out}", "give one ⟨hold_out⟩")
    if format.static_rig and not (is_constant(poses) and is_constant(intrinsics)):
        others = [
            other.name
            for other in FORMATS.values()
            if other.pictures is PictureUse.NEEDED and not other.static_rig and other is not format
        ]
        raise InputError(
            f"{format.name} has one camera per view, and the cameras of this run move", f"use {listed(others, 4)}"
        )
    more = "export more instants" if output.num_times > len(instants) else "use colmap or nerfstudio"
    hints = (more, f"choose some, such as ⟨instants=0:{format.max_instants}⟩")
    format.check_number("instant", len(instants), format.min_instants, format.max_instants, hints)
    format.check_number("view", len(views), format.min_views, format.max_views, VIEW_HINTS)


def _automatic_scale(
    output: Output,
    format: Format,
    clouds: CloudReader | None,
    views: Sequence[ExportView],
    poses: NDArray[np.float64],
) -> float:
    """Return 1, or the scale at which no view has points of the first instant nearer than the format permits.

    Metres are kept unless points are nearer than half of that.
    """
    if not format.nearest or clouds is None:
        return 1.0
    cloud, nearest = clouds.read(0), np.inf
    for view, pose in zip(views, poses[0], strict=True):
        depth = cloud.xyz[cloud.view == view.index].astype(np.float64) @ pose[2, :3] + pose[2, 3]
        nearest = min(nearest, float(np.percentile(depth, _NEAREST_PERCENTILE)) if len(depth) else np.inf)
    least = format.nearest / 2 if output.run.unit == "metre" else format.nearest
    return float(f"{format.nearest / nearest:.3g}") if 0 < nearest < least else 1.0


_PICTURE_BYTES = {ImageFormat.JPG: 2, ImageFormat.PNG: 3}
"""Bytes per pixel of pictures at most: noise takes 1.2 as JPEG."""

_FILE_BYTES = 4000
"""Headers of a file, at most."""

_LEAST_SHARE = 1 / 8
"""Share of its upper bound that an export takes at least: of smooth pictures and maps, well compressed."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Largest size of an export, without `export.json`; the number of files is exact."""

    files: int
    points: int
    bytes: int


def estimate(job: ExportJob) -> Estimate:
    """Return upper bounds of the size of an export; no picture and no cloud is read.

    Raises:
        InputError: if the header of a cloud cannot be read.
    """
    layout, output = job.format.layout, job.output
    layout = layout if isinstance(layout, Layout) else layout(job)
    frames = job.num_times * len(job.views)
    files = layout.files + layout.per_view * len(job.views)
    files += layout.per_instant * job.num_times + layout.per_picture * frames
    num_bytes = layout.frame_bytes * frames
    picture_pixels = sum(math.prod(geometry.size) for geometry in job.geometry)
    if layout.map_bytes:
        pixels = sum(job.depth(0, view).size for view in range(len(job.views)))
        num_bytes += job.num_times * pixels * layout.map_bytes
    if job.pictures is not None:
        files += frames
        num_bytes += job.num_times * picture_pixels * _PICTURE_BYTES[job.image_format]
    if layout.masks and output.has_motion:
        files += frames
        num_bytes += job.num_times * picture_pixels
    points = _most_points(job, layout.points)
    point_bytes = job.format.point_bytes + (layout.velocity_bytes if output.has_velocity else 0)
    if job.tracks is not None:
        num_bytes += layout.track_bytes * job.tracks.coords.shape[0] * job.tracks.coords.shape[1]
    return Estimate(files=files, points=points, bytes=num_bytes + points * point_bytes + files * _FILE_BYTES)


def check_room(folder: Path, num_bytes: int) -> None:
    """Refuse an export of at most `num_bytes` that cannot fit on the disk.

    Raises:
        OutputError: if the disk has far less free space.
    """
    free = shutil.disk_usage(existing_folder(real_path(folder))).free
    if num_bytes * _LEAST_SHARE > free:
        raise OutputError(
            f"the export needs at most {human_size(num_bytes)} in '{folder}', {human_size(free)} free",
            "free space, use ⟨max_points⟩ or ⟨instants⟩, or another folder",
        )


def _most_points(job: ExportJob, kind: Points) -> int:
    """Return the number of points within the budget, if no filter leaves any out."""
    if job.clouds is None or kind is Points.NONE:
        return 0
    repeated = job.num_times // 2 if kind is Points.LAYERS else 0  # by USD, in clouds of equal size
    if kind is Points.LAYERS and job.has_layers:
        limits = [job.clouds.limit_of(layer) for layer in (PointLayer.STATIC, PointLayer.MOVING)]
        return limits[0] + limits[1] * job.num_times + repeated
    if kind is Points.MODEL:
        return min(job.clouds.limit or 2**63, sum(job.clouds.sizes))
    numbers = job.clouds.most()
    return (numbers[0] if kind is Points.FIRST else sum(numbers)) + repeated
