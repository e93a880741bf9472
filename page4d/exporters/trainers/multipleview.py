"""4DGaussians, MultipleView form.

    cam01/frame_00001.jpg ..           pictures of a view, both numbers from 1
    sparse_/{cameras,images,points3D}.bin   COLMAP model with one image per view: image1.jpg is cam01
    points3D_multipleview.ply
    poses_bounds_multipleview.npy      for the spiral of the test video

The reader takes the first focal length of camera 1 for all views and both axes, the middle of the picture as
principal point, and instant i of T at the time i/T. It recognises the form by the PLY, unless the folder holds
`sparse`, `transforms_train.json`, `poses_bounds.npy`, `dataset.json` or `train_meta.json`.

Source: scene/multipleview_dataset.py and scene/__init__.py of 4DGaussians (843d5ac).
"""

import shlex
from pathlib import Path

from page4d.exporters.job import ExportJob, Written
from page4d.exporters.trainers.views import DepthBounds
from page4d.formats.colmap import Points3D, model_of_views, write_model
from page4d.formats.ply import encode_trainer_ply
from page4d.io.atomic import real_path
from page4d.io.folders import write_file


def write(job: ExportJob, folder: Path) -> Written:
    """Write the folder."""
    cloud = job.model_points().cloud
    bounds = DepthBounds(job)
    bounds.add(cloud.xyz)
    write_file(folder / "points3D_multipleview.ply", encode_trainer_ply(cloud.xyz, cloud.rgb))
    write_file(folder / "poses_bounds_multipleview.npy", bounds.encoded())
    # The reader finds the pictures by the number in the image's name.
    names = [f"image{number}.jpg" for number in range(1, len(job.views) + 1)]
    points = Points3D(xyz=cloud.xyz, rgb=cloud.rgb)
    model = model_of_views(names, job.sizes, job.intrinsics[0], job.world_to_camera[0], points)
    write_model(folder / "sparse_", model)
    for picture in job.read_pictures():
        job.write_picture(folder / _label(picture.view) / f"frame_{picture.place + 1:05d}", picture)
    tested = sorted({0, job.num_times // 3, job.num_times * 2 // 3})
    return Written(
        num_points=cloud.num_points,
        times=tuple(place / job.num_times for place in range(job.num_times)),
        held_out=tuple(f"instant {job.instants[place]}" for place in tested),
        remarks=("the reader tests at three instants, which it trains on as well",),
        labels=tuple(_label(view) for view in range(len(job.views))),
    )


def _label(view: int) -> str:
    return f"cam{view + 1:02d}"


def next_step(job: ExportJob, folder: Path) -> str:  # noqa: ARG001
    """Return the commands that make a configuration and train on the folder."""
    path = real_path(folder)
    name = f"multipleview/{path.name}"
    config = f"arguments/{name}.py"
    words = ["python", "train.py", "-s", str(path), "--port", "6017", "--expname", name, "--configs", config]
    configure = f"echo \"_base_ = './default.py'\" > {shlex.quote(config)}"
    return f"in the folder of 4DGaussians:\n{configure}\n{shlex.join(words)}"
