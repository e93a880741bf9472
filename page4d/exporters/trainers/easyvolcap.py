"""The dataset folder of EasyVolcap, and of trainers that are built on it (`easyvolcap`).

Cameras are in `intri.yml` and `extri.yml`, or per view in `cameras/` if a camera moves. EasyVolcap's rays pass
through pixel centres at (0.5, 0.5), so that intrinsics are written as they are, although the same files of EasyMocap
count from integer centres; `pixel_center` in `intri.yml`, which other readers ignore, states it for page4d's own.
Source: `read_camera`, `VolumetricVideoDataset` and `get_rays` of EasyVolcap; OpenCV, "XML/YAML/JSON file storages".
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.choices import ImageFormat
from page4d.conventions import PIXEL_CENTER
from page4d.exporters.job import ExportJob, Written, encode_picture
from page4d.formats.opencv_yaml import Storage, encode_storage
from page4d.formats.ply import PointCloud, encode_trainer_ply
from page4d.io.atomic import real_path
from page4d.io.folders import write_file

_SHARES = (0.1, 99.9)
"""Percentiles of the depths that are the near and far distances, moved apart by a tenth."""


@dataclass(frozen=True)
class _Extent:
    """Near and far distances [T, V, 2] of what the cameras see, and the bounds [2, 3] of all points."""

    distances: NDArray[np.float64]
    bounds: NDArray[np.float64]


def write(job: ExportJob, folder: Path) -> Written:
    """Write pictures, motion masks, a cloud per instant, cameras, and a configuration with distances and bounds."""
    for picture in job.read_pictures():
        name = f"{job.views[picture.view].label}/{picture.place:06d}"
        job.write_picture(folder / "images" / name, picture)
        mask = job.moving(picture.place, picture.view)
        if mask is not None:
            pixels = mask.astype(np.uint8) * np.uint8(255)
            write_file(folder / "masks" / f"{name}.png", encode_picture(pixels, ImageFormat.PNG))
    num_points, extent = _write_points(job, folder)
    _write_cameras(job, folder, extent)
    write_file(folder / "dataset.yaml", _dataset(job, extent).encode())
    remark = "the run predicted no motion: there are no masks"
    return Written(
        num_points=num_points, times=tuple(range(job.num_times)), remarks=() if job.output.has_motion else (remark,)
    )


def next_step(_job: ExportJob, folder: Path) -> str:
    """Return the command that trains on the folder."""
    path = real_path(folder)
    root = f"dataset_cfg.data_root={shlex.quote(str(path))}"
    files = f"configs/base.yaml,configs/models/l3mhet.yaml,{shlex.quote(str(path / 'dataset.yaml'))}"
    lines = ["in the folder of EasyVolcap:", f"evc-train -c {files} exp_name={shlex.quote(path.name)} \\"]
    lines.append(f"  dataloader_cfg.{root} val_dataloader_cfg.{root}")
    if "images" in str(path):
        # The loader finds masks and clouds by replacing "images" everywhere in the path.
        lines.insert(0, "first rename the folder: its path must not contain 'images'")
    return "\n".join(lines)


def _write_points(job: ExportJob, folder: Path) -> tuple[int, _Extent]:
    """Write the cloud of every instant; return the number of points and their extent."""
    distances = np.full((job.num_times, len(job.views), 2), np.nan)
    lower, upper = np.full(3, np.inf), np.full(3, -np.inf)
    num_points = 0
    for place in range(job.num_times):
        cloud = job.instant_points(place)
        write_file(folder / "vhulls" / f"{place:06d}.ply", encode_trainer_ply(cloud.xyz, cloud.rgb))
        num_points += cloud.num_points
        if cloud.num_points:
            lower, upper = np.minimum(lower, cloud.xyz.min(axis=0)), np.maximum(upper, cloud.xyz.max(axis=0))
        for view in range(len(job.views)):
            distances[place, view] = _distances(job, cloud, place, view)
    for view in range(len(job.views)):
        if job.is_static(view):
            distances[:, view] = _widest(distances[:, view])
    missing = np.isnan(distances).any(axis=-1)
    distances[missing] = _widest(distances)
    return num_points, _Extent(distances, np.stack([lower, upper]))


def _distances(job: ExportJob, cloud: PointCloud, place: int, view: int) -> tuple[float, float]:
    """Return near and far distances of the points in a picture; NaN if there are none."""
    _, _, depth = job.in_picture(cloud.xyz, place, view)
    if not len(depth):
        return np.nan, np.nan
    near, far = np.percentile(depth, _SHARES)
    return float(0.9 * near), float(1.1 * far)


def _widest(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest near and the largest far distance of [..., 2]; NaN if there are none."""
    known = distances[~np.isnan(distances).any(axis=-1)]
    return np.array([known[:, 0].min(), known[:, 1].max()]) if len(known) else np.full(2, np.nan)


def _write_cameras(job: ExportJob, folder: Path, extent: _Extent) -> None:
    labels = [view.label for view in job.views]
    if job.is_static_rig:
        cameras = [(label, 0, view) for view, label in enumerate(labels)]
        _write_storages(job, folder, cameras, extent)
        return
    for view, label in enumerate(labels):
        cameras = [(f"{place:06d}", place, view) for place in range(job.num_times)]
        _write_storages(job, folder / "cameras" / label, cameras, extent)


def _write_storages(job: ExportJob, folder: Path, cameras: Sequence[tuple[str, int, int]], extent: _Extent) -> None:
    """Write `intri.yml` and `extri.yml` of cameras, which are (name, instant, view)."""
    intrinsic: Storage = {"names": [name for name, _, _ in cameras], "pixel_center": PIXEL_CENTER}
    extrinsic: Storage = {"names": intrinsic["names"]}
    for name, place, view in cameras:
        height, width = job.sizes[view]
        rotation, translation = np.split(job.world_to_camera[place, view, :3], [3], axis=1)
        near, far = extent.distances[place, view]
        intrinsic |= {
            f"K_{name}": job.intrinsics[place, view],
            f"H_{name}": height,
            f"W_{name}": width,
            f"D_{name}": np.zeros((5, 1)),
        }
        extrinsic |= {
            f"R_{name}": np.asarray(cv2.Rodrigues(rotation)[0]),
            f"Rot_{name}": rotation,
            f"T_{name}": translation,
            f"t_{name}": job.seconds[place] - job.seconds[0],
            f"bounds_{name}": extent.bounds,
        }
        if np.isfinite(far):
            extrinsic |= {f"n_{name}": near, f"f_{name}": far}
    write_file(folder / "intri.yml", encode_storage(intrinsic))
    write_file(folder / "extri.yml", encode_storage(extrinsic))


def _dataset(job: ExportJob, extent: _Extent) -> str:
    """Return a configuration: the distances of cameras are clipped to its own, which are 0.2 and 20 by default."""
    near, far = _widest(extent.distances)
    distances = f"        near: {float(near):.6g}\n        far: {float(far):.6g}\n" if np.isfinite(far) else ""
    bounds = [[float(f"{value:.6g}") for value in corner] for corner in extent.bounds]
    return (
        "dataloader_cfg:\n"
        "    dataset_cfg: &dataset_cfg\n"
        f"        view_sample: [0, {len(job.views)}, 1]\n"
        f"        frame_sample: [0, {job.num_times}, 1]\n"
        f"{distances}"
        f"        bounds: {bounds}\n"
        "val_dataloader_cfg:\n"
        "    dataset_cfg:\n"
        "        <<: *dataset_cfg\n"
    )
