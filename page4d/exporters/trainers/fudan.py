"""The folder that 4D Gaussian splatting of Fudan University reads (`fudan-4dgs`).

Every picture has its own intrinsics, so that pictures are written as they are. Times are seconds from 0.
Source: `readNerfSyntheticInfo`, `getProjectionMatrixCenterShift` and `create_from_pcd` of 4d-gaussian-splatting.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.choices import ImageFormat
from page4d.exporters.job import ExportJob, Written, opengl_poses
from page4d.exporters.points import ModelPoints
from page4d.exporters.trainers.views import repeated_view, split_views
from page4d.formats.nerfstudio import frame_camera
from page4d.formats.ply import encode_trainer_ply, read_ply_header
from page4d.io.atomic import real_path
from page4d.io.folders import write_file, write_json

_CLOUD = "points3d.ply"


def write(job: ExportJob, folder: Path) -> Written:
    """Write pictures, `transforms_train.json`, `transforms_test.json` and the cloud with times.

    Views that are held out are in `transforms_test.json` alone. Without them it repeats the first view: the reader
    needs the file, and a capture of few views should train on all of them.
    """
    for picture in job.read_pictures():
        job.write_picture(folder / _picture(picture.view, picture.place), picture)
    train, test = split_views(job)
    for name, chosen in (("train", train), ("test", test or [0])):
        write_json(folder / f"transforms_{name}.json", {"frames": _frames(job, chosen)})
    points = job.model_points()
    cloud = points.cloud
    write_file(folder / _CLOUD, encode_trainer_ply(cloud.xyz, cloud.rgb, point_times(points, _times(job))))
    return Written(
        num_points=cloud.num_points,
        times=tuple(_times(job).tolist()),
        held_out=tuple(job.views[view].name for view in test),
        remarks=() if test else (repeated_view(job, "transforms_test.json"),),
        labels=tuple(_label(view) for view in range(len(job.views))),
    )


def next_step(job: ExportJob, folder: Path) -> str:
    """Return the lines of the configuration that differ from those of the published ones."""
    duration = [0.0, float(_times(job)[-1])]
    num_points = read_ply_header(folder / _CLOUD).num_points
    extension = '  extension: ".jpg"' if job.image_format is ImageFormat.JPG else ""
    # The reader joins a relative path with itself, and draws from clouds of more than num_pts at random.
    return (
        "in the folder of 4d-gaussian-splatting:\n"
        "python train.py --config CONFIG, a copy of configs/dynerf/cook_spinach.yaml with these lines:\n"
        f"time_duration: {duration}  num_pts: {num_points}\n"
        f"source_path: {json.dumps(str(real_path(folder)), ensure_ascii=False)}  resolution: 1  dataloader: True"
        f"{extension}"
    )


def point_times(points: ModelPoints, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the time of every point [N]: of a moving one when it was observed, of static ones an equal share each.

    The trainer's Gaussians begin with a standard deviation of sqrt(duration / 5) in time. Static ones that all lie at
    one time would be invisible at the ends of a long capture, and those of most captures were observed at the middle
    instant. Which static point lies at which time is random, because points are sorted by pixels.
    """
    moving = points.cloud.dynamic != 0
    places = points.place.astype(np.int64)
    num_static = int((~moving).sum())
    places[~moving] = np.random.default_rng(0).permutation(num_static) % len(times)
    return times[places]


def _times(job: ExportJob) -> NDArray[np.float64]:
    """Return seconds from the first instant."""
    seconds: NDArray[np.float64] = job.seconds - job.seconds[0]
    return seconds


def _picture(view: int, place: int) -> str:
    return f"images/{_label(view)}_{place:04d}"


def _label(view: int) -> str:
    return f"cam{view:02d}"


def _frames(job: ExportJob, views: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the cameras of views at all instants; the reader appends the extension to `file_path`."""
    poses = opengl_poses(job)
    for view in views:
        for place, seconds in enumerate(_times(job)):
            yield {
                "file_path": _picture(view, place),
                "time": float(seconds),
                **frame_camera(poses[place, view], job.intrinsics[place, view], job.sizes[view]),
            }
