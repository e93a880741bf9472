"""OpenUSD: the points, cameras and tracks of a run over time, as one file or as value clips.

Source: the schemas UsdGeomPoints and UsdGeomCamera, and value clips, of https://openusd.org/release/.
"""

import shlex
from dataclasses import replace
from pathlib import Path

from page4d.choices import UpAxis
from page4d.exporters.job import ExportJob, Written
from page4d.exporters.usd.cameras import ClippingRanges, define_cameras
from page4d.exporters.usd.clips import write_clips
from page4d.exporters.usd.points import PointWriter, distinct_clouds, write_static
from page4d.exporters.usd.stage import create_stage, save_stage, time_codes
from page4d.exporters.usd.tracks import define_tracks
from page4d.io.atomic import real_path

SCENE_NAME = "scene.usdc"
SPLIT_SCENE_NAME = "scene.usda"

_UNSAVED_BYTES = 1 << 25
"""Size of the points after which the file is saved.

Points that are not saved need memory. Every save repeats the table of all earlier values, so that saving each of many
small clouds would multiply the size of the file.
"""


def write(job: ExportJob, folder: Path) -> Written:
    """Write `scene.usdc`; with `split` `scene.usda` and a file of points for every instant.

    The points keep the run's axes; the transform of the prim /World turns them to y up.

    Raises:
        OutputError: if a file cannot be written.
    """
    written = write_clips(job, folder, SPLIT_SCENE_NAME) if job.settings.split else _write_single(job, folder)
    if (up := job.world.exported_up) is UpAxis.Y:
        return written
    return replace(
        written, remarks=(f"the points keep the run's axes; the prim /World turns {up} to y, which is up",)
    )


def _write_single(job: ExportJob, folder: Path) -> Written:
    """Write one file, saved again and again: memory does not grow with the number of instants."""
    codes = time_codes(job)
    path = folder / SCENE_NAME
    stage = create_stage(path, job, codes)
    ranges = ClippingRanges(job)
    number, width = write_static(stage, job, ranges)
    points, saved = PointWriter(stage, width, has_velocity=job.output.has_velocity), 0
    for place, cloud in enumerate(distinct_clouds(job)):
        ranges.add(cloud, place)
        points.write(cloud, codes[place])
        number += cloud.num_points
        if (number - saved) * job.format.point_bytes >= _UNSAVED_BYTES:
            save_stage(stage, path)
            saved = number
    define_cameras(stage, job, codes, ranges)
    define_tracks(stage, job, codes, points.width)
    save_stage(stage, path)
    return Written(num_points=number, times=codes)


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how programs open the stage."""
    scene = real_path(folder) / (SPLIT_SCENE_NAME if job.settings.split else SCENE_NAME)
    return (
        f"Blender: File > Import > Universal Scene Description, '{scene}';\n"
        f"then set Output > Frame Rate to {job.frame_rate:.6g} fps (docs/blender.md)\n"
        f"usdview {shlex.quote(str(scene))}"
    )
