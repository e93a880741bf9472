"""4DGaussians, in the form of the Neural 3D Video data set.

    cam00.mp4 ..                  a video per view, at 1352x1014
    cam00/images/0000.png ..      the same pictures
    poses_bounds.npy              of the data set's original size, 2704x2028: focal lengths are doubled
    points3D_downsample2.ply

The reader tests the first view and trains on the others. It takes the focal length of the first row for all views and
both axes, the middle of the picture as principal point, and instant i at the time i/300.

Source: scene/neural_3D_dataset_NDC.py of 4DGaussians (843d5ac).
"""

import shlex
from itertools import groupby
from pathlib import Path

from page4d.exporters.job import ExportJob, Written
from page4d.exporters.trainers.views import DepthBounds, reading_order, sorted_names
from page4d.formats.ply import encode_trainer_ply
from page4d.formats.video import VideoFile
from page4d.io.atomic import real_path
from page4d.io.folders import new_file, write_file

_READER_SCALE = 2
"""The reader halves focal lengths and sizes."""

_READER_INSTANTS = 300

_VIDEO_CRF = 12
_VIDEO_PRESET = "veryfast"
_FRAME_RATES = (0.01, 1000.0)


def write(job: ExportJob, folder: Path) -> Written:
    """Write the folder."""
    order = reading_order(job)
    cloud = job.model_points().cloud
    bounds = DepthBounds(job)
    bounds.add(cloud.xyz)
    write_file(folder / "points3D_downsample2.ply", encode_trainer_ply(cloud.xyz, cloud.rgb))
    write_file(folder / "poses_bounds.npy", bounds.encoded(order, _READER_SCALE))
    names = dict(zip(order, sorted_names(len(order)), strict=True))
    _write_pictures(job, folder, names)
    times = tuple(place / _READER_INSTANTS for place in range(job.num_times))
    return Written(
        num_points=cloud.num_points,
        times=times,
        held_out=(job.views[order[0]].name,),
        remarks=(f"readers see instant i at the time i/{_READER_INSTANTS}, whatever the seconds are",),
        labels=tuple(names[view] for view in range(len(names))),
    )


def _write_pictures(job: ExportJob, folder: Path, names: dict[int, str]) -> None:
    """Write the pictures of every view, given its name, one by one and as a video."""
    slowest, fastest = _FRAME_RATES
    frame_rate = min(max(job.frame_rate, slowest), fastest)
    for view, pictures in groupby(job.read_pictures(), key=lambda picture: picture.view):
        with (
            new_file(folder / f"{names[view]}.mp4") as file,
            VideoFile(file, job.sizes[view], frame_rate, _VIDEO_CRF, _VIDEO_PRESET) as video,
        ):
            for picture in pictures:
                video.add(picture.pixels)
                job.write_picture(folder / names[view] / "images" / f"{picture.place:04d}", picture)


def next_step(job: ExportJob, folder: Path) -> str:  # noqa: ARG001
    """Return the command that trains on the folder."""
    path = real_path(folder)
    words = ["python", "train.py", "-s", str(path), "--port", "6017", "--expname", f"dynerf/{path.name}"]
    lines = ["in the folder of 4DGaussians:", shlex.join([*words, "--configs", "arguments/dynerf/default.py"])]
    if "." in str(path):
        lines.append("move the folder first: the reader cuts its path at the first dot")
    return "\n".join(lines)
