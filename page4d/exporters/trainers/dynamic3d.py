"""The folder that Dynamic 3D Gaussians reads (`dynamic3dgs`), as does 4DGaussians for PanopticSports.

Its rasteriser takes the full intrinsics of every camera, but one size for all pictures, and cuts away what is nearer
than 1. The world has y down.
Source: `train.py`, `loss.py` and `helpers.setup_camera` of Dynamic3DGaussians.
"""

import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.choices import ImageFormat
from page4d.errors import UsageError
from page4d.exporters.job import ExportJob, ExportPicture, Written, encode_picture
from page4d.exporters.trainers.views import repeated_view, split_views
from page4d.formats.ply import PointCloud
from page4d.io.atomic import real_path
from page4d.io.folders import write_file, write_json

_NEAR_PLANE = 1.0
_MIN_MOVING = 21
"""A moving point and the 20 neighbours to which the trainer ties it."""


def check(job: ExportJob) -> None:
    """Refuse a first instant without points.

    Raises:
        UsageError: naming the instant.
    """
    if job.clouds is not None and not job.clouds.read(0).num_points:
        raise UsageError(
            f"instant {job.instants[0]} has no points, and {job.format.name} begins with those of the first instant",
            "choose other instants or filters",
        )


def write(job: ExportJob, folder: Path) -> Written:
    """Write pictures, motion masks, `train_meta.json`, `test_meta.json` and the cloud of the first instant.

    Views that are held out are in `test_meta.json` alone. Without them it repeats the first view.
    """
    cloud = job.instant_points(0)
    for picture in job.read_pictures():
        name = f"{picture.view}/{picture.place:06d}"
        job.write_picture(folder / "ims" / name, picture)
        write_file(folder / "seg" / f"{name}.png", encode_picture(_moving(job, picture), ImageFormat.PNG))
    train, test = split_views(job)
    for meta, chosen in (("train", train), ("test", test or [0])):
        write_json(folder / f"{meta}_meta.json", _meta(job, chosen))
    moving = cloud.dynamic != 0 if job.output.has_motion else np.ones(cloud.num_points, dtype=bool)
    write_file(folder / "init_pt_cld.npz", _encode_points(cloud, moving))
    return Written(
        num_points=cloud.num_points,
        times=tuple(range(job.num_times)),
        held_out=tuple(job.views[view].name for view in test),
        remarks=tuple(_remarks(job, cloud, moving)),
        labels=tuple(str(view) for view in range(len(job.views))),
    )


def next_step(_job: ExportJob, folder: Path) -> str:
    """Return the commands that train on the folder; the trainer reads `data/<name>`."""
    path, name = real_path(folder), real_path(folder).name
    code = f"from train import train; train({name!r}, 'page4d')"
    quoted = f'"{code}"' if shlex.quote(name) == name else shlex.quote(code)
    return (
        "in the folder of Dynamic3DGaussians:\n"
        f"mkdir -p data && ln -s {shlex.quote(str(path))} {shlex.quote(f'data/{name}')}\n"
        f"python -c {quoted}"
    )


def _moving(job: ExportJob, picture: ExportPicture) -> NDArray[np.uint8]:
    """Return 1 where something moves: the trainer reads pixels as they are, and 255 as 255 times the foreground.

    Everything counts as moving if the run predicted no motion: the trainer fixes what does not.
    """
    mask = job.moving(picture.place, picture.view)
    return np.ones(picture.pixels.shape[:2], dtype=np.uint8) if mask is None else mask.astype(np.uint8)


def _meta(job: ExportJob, views: Sequence[int]) -> dict[str, Any]:
    """Return cameras and file names [t][c] of views."""
    height, width = job.sizes[0]
    index = list(views)
    return {
        "w": width,
        "h": height,
        "k": job.intrinsics[:, index].tolist(),
        "w2c": job.world_to_camera[:, index].tolist(),
        "fn": [[f"{view}/{place:06d}.{job.image_format}" for view in views] for place in range(job.num_times)],
        "cam_id": [index for _ in range(job.num_times)],
    }


def _encode_points(cloud: PointCloud, moving: NDArray[np.bool_]) -> bytes:
    """Return an NPZ file of rows x y z, r g b in [0, 1], and 1 where the point moves."""
    rows = np.concatenate([cloud.xyz.astype(np.float64), cloud.rgb / 255.0, moving[:, None]], axis=1)
    buffer = io.BytesIO()
    np.savez(buffer, data=rows)
    return buffer.getvalue()


def _remarks(job: ExportJob, cloud: PointCloud, moving: NDArray[np.bool_]) -> list[str]:
    remarks = []
    if not any(view.held_out for view in job.views):
        remarks.append(repeated_view(job, "test_meta.json"))
    if job.settings.scale is None and job.world.scale != 1.0:
        kept = "; ⟨scale=1⟩ keeps metres" if job.output.run.unit == "metre" else ""
        remarks.append(
            f"scaled by {job.world.scale:g}: the trainer cuts away what is nearer than {_NEAR_PLANE:g}{kept}"
        )
    elif (nearest := _nearest(job, cloud)) < _NEAR_PLANE:
        remarks.append(
            f"the nearest points are {nearest:.2g} away; the trainer cuts away what is nearer than {_NEAR_PLANE:g}"
        )
    if job.output.run.unit != "metre":
        remarks.append(
            "the trainer ties points within about 3 cm to each other: scale the scene to metres if you can"
        )
    if not job.output.has_motion:
        remarks.append("the run predicted no motion: all points count as moving")
    elif moving.sum() < _MIN_MOVING:
        remarks.append(
            f"{int(moving.sum())} points move at the first instant; the trainer needs at least {_MIN_MOVING}"
        )
    below = float((cloud.xyz[moving, 1] > 0).mean()) if moving.any() else 0.0
    if below > 0.01:
        remarks.append(
            f"the trainer takes y = 0 for the floor, y down, and pushes the {below:.0%} of moving points below it "
            "up: set the weight 'floor' in its loss.py to 0"
        )
    return remarks


def _nearest(job: ExportJob, cloud: PointCloud) -> float:
    """Return the smallest depth of the points before the cameras of the first instant, but for 0.1 % of them."""
    depths = [job.project(cloud.xyz, 0, view)[1] for view in range(len(job.views))]
    ahead = [depth[depth > 0] for depth in depths]
    return min((float(np.percentile(depth, 0.1)) for depth in ahead if len(depth)), default=np.inf)
