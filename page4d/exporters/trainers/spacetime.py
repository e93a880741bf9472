"""SpacetimeGaussians: a COLMAP model per instant.

    colmap_<i>/images/cam00.png ..                       pictures of instant i, from 0
    colmap_<i>/sparse/0/{cameras,images,points3D}.bin    cameras and points of the instant
    poses_bounds.npy                                     for the near and the far plane
    train.json                                           settings of the trainer

The reader takes the cameras of the first instant with their own focal lengths, the middle of the picture as principal
point, the points of all instants, and instant i of T at the time i/T. With `--eval` it tests the first view by name.

`train.json` is needed: by default the trainer removes the points with z < 4.5, and it replaces a duration of 5.

Source: thirdparty/gaussian_splatting/scene/dataset_readers.py, helper3dg.py and train.py of SpacetimeGaussians
(427abfc).
"""

import shlex
from pathlib import Path

from page4d.exporters.formats import VIEW_HINTS
from page4d.exporters.job import ExportJob, Written
from page4d.exporters.trainers.views import DepthBounds, reading_order, sorted_names
from page4d.formats.colmap import Points3D, model_of_views, write_model
from page4d.io.atomic import real_path
from page4d.io.folders import write_file, write_json

_BATCH = 2
"""Views that the trainer draws at a time."""

_BOUNDS_INSTANTS = 32
"""Instants whose points determine the near and far planes."""

_SETTINGS = {
    "resolution": 1,
    "model": "ours_lite",
    "rdpip": "train_ours_lite",
    "rgbfunction": "None",
    "loader": "colmap",
    "densify": 3,
    "desicnt": 12,
    "scaling_lr": 0.005,
    "trbfslinit": 2.0,
    "preprocesspoints": 0,
}


def check(job: ExportJob) -> None:
    """Refuse too few views for training besides one for testing.

    Raises:
        InputError: with both numbers.
    """
    least = _BATCH + any(view.held_out for view in job.views)
    job.format.check_number("view", len(job.views), least, None, VIEW_HINTS)


def write(job: ExportJob, folder: Path) -> Written:
    """Write the folder."""
    order = reading_order(job)
    names = sorted_names(len(order))
    files = [job.picture_path(Path(name)).name for name in names]
    sizes = [job.sizes[view] for view in order]
    bounds, num_points = DepthBounds(job), 0
    for place in range(job.num_times):
        cloud = job.instant_points(place)
        num_points += cloud.num_points
        if place % -(-job.num_times // _BOUNDS_INSTANTS) == 0:
            bounds.add(cloud.xyz, place)
        points = Points3D(xyz=cloud.xyz, rgb=cloud.rgb)
        model = model_of_views(files, sizes, job.intrinsics[0, order], job.world_to_camera[0, order], points)
        write_model(folder / f"colmap_{place}" / "sparse" / "0", model)
    write_file(folder / "poses_bounds.npy", bounds.encoded(order))
    write_json(folder / "train.json", _SETTINGS | {"duration": job.num_times})
    for picture in job.read_pictures():
        name = names[order.index(picture.view)]
        job.write_picture(folder / f"colmap_{picture.place}" / "images" / name, picture)
    return Written(
        num_points=num_points,
        times=tuple(place / job.num_times for place in range(job.num_times)),
        held_out=(job.views[order[0]].name,) if _holds_out(job) else (),
        labels=tuple(names[order.index(view)] for view in range(len(order))),
    )


def _holds_out(job: ExportJob) -> bool:
    """Return whether enough views remain for training when the first is held out."""
    return len(job.views) > _BATCH


def next_step(job: ExportJob, folder: Path) -> str:
    """Return the command that trains on the folder."""
    path = real_path(folder)
    words = ["python", "train.py", "--quiet", *(["--eval"] if _holds_out(job) else [])]
    words += ["--configpath", str(path / "train.json"), "--duration", str(job.num_times)]
    words += ["--model_path", f"log/{path.name}", "--source_path", str(path / "colmap_0")]
    lines = ["in the folder of SpacetimeGaussians:", shlex.join(words)]
    if "colmap_0" in str(path):
        lines.append("rename the folder first: the reader replaces the first 'colmap_0' of the path")
    return "\n".join(lines)
