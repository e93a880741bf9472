"""nerfstudio dataset: `transforms.json`, pictures, depth, masks, and points.

Poses are camera-to-world with OpenGL camera axes (x right, y up, z backwards) in a world whose z axis points up.
`applied_transform` is the rotation from the run's world to it. Pixels have the centre of the top-left one at
(0.5, 0.5). A scale is not written as `applied_scale`, because nerfstudio would apply it to the points twice.

Source: nerfstudio documentation, "Data conventions"; its `nerfstudio_dataparser.py`, version 1.1.5.
"""

import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from page4d.choices import ImageFormat, PointLayer
from page4d.exporters.job import ExportJob, ExportPicture, Written, encode_picture, opengl_poses
from page4d.formats.maps import DEEPEST_LEVEL, FINE_LEVELS
from page4d.formats.nerfstudio import frame_camera
from page4d.formats.ply import PointCloud, colored_points, encode_ply
from page4d.io.atomic import real_path
from page4d.io.folders import write_file, write_json

DEPTH_UNIT = 1e-3
"""Units of the exported world per level of a depth map: the default of `--depth-unit-scale-factor`."""


def write(job: ExportJob, folder: Path) -> Written:
    """Write one dataset of all instants, or with `per_instant` a folder with a dataset for each."""
    dataset, num_points = _Dataset(job, folder), 0
    for part_folder, places, points in job.parts(folder):
        _write_scene(dataset, part_folder, places, points.cloud)
        num_points += points.cloud.num_points
    for picture in job.read_pictures():
        dataset.write_frame(picture)
    held_out = tuple(view.name for view in job.views if view.held_out)
    return Written(
        num_points=num_points,
        times=tuple(job.seconds.tolist()),
        held_out=held_out,
        remarks=tuple(_remarks(dataset, is_split=bool(held_out))),
    )


def _remarks(dataset: "_Dataset", *, is_split: bool) -> Iterator[str]:
    job = dataset.job
    if not is_split:
        yield "nerfstudio keeps a tenth of the pictures for evaluation; ⟨hold_out⟩ chooses views"
    if not job.settings.per_instant and job.num_times > 1:
        yield "nerfstudio ignores time: all instants are one static scene; ⟨per_instant=True⟩ separates them"
    if dataset.masks_motion and job.settings.only is not PointLayer.STATIC:
        yield "masks leave out what moves, points.ply does not; ⟨only=static⟩ leaves out its points too"
    yield from job.output.run.unmapped_depths


def next_step(job: ExportJob, folder: Path) -> str:
    """Return the command that trains on the dataset and keeps its world."""
    data = real_path(job.root(folder, 0))
    return (
        f"ns-train splatfacto --data {shlex.quote(str(data))} nerfstudio-data --center-method none "
        f"--auto-scale-poses False --load-3D-points True --depth-unit-scale-factor {DEPTH_UNIT}"
    )


@dataclass(frozen=True)
class _Dataset:
    """Paths and files of the pictures' frames."""

    job: ExportJob
    folder: Path

    @cached_property
    def has_masks(self) -> bool:
        """Whether motion or bars are masked; nerfstudio takes masks of all pictures or of none."""
        return self.masks_motion or any(view.pixel_transform.window for view in self.job.output.run.views)

    @cached_property
    def masks_motion(self) -> bool:
        """Whether moving parts are masked: where pictures of several instants are taken for one scene."""
        single = self.job.settings.per_instant or self.job.num_times == 1
        return not single and self.job.output.has_motion

    @cached_property
    def has_levels(self) -> bool:
        """Whether all depths fit into 16 bits, and are not rounded coarsely."""
        job = self.job
        first = np.concatenate([job.depth(0, view).ravel() for view in range(len(job.views))])
        known = first[first > 0]
        if len(known) and float(np.median(known)) < FINE_LEVELS * DEPTH_UNIT:
            return False
        limit = DEEPEST_LEVEL * DEPTH_UNIT
        if job.world.scale * DEEPEST_LEVEL / job.output.run.depth_scale <= limit:
            return True
        places, views = range(job.num_times), range(len(job.views))
        return all(float(job.depth(place, view).max()) <= limit for place in places for view in views)

    def files(self, place: int, view: int) -> dict[str, str]:
        """Return the paths of a frame by their keys in transforms.json."""
        name = self.job.frame_path(place, view)
        paths = {
            "file_path": f"images/{name}.{self.job.image_format}",
            "depth_file_path": f"depths/{name}.{'png' if self.has_levels else 'npy'}",
        }
        return paths | ({"mask_path": f"masks/{name}.png"} if self.has_masks else {})

    def write_frame(self, picture: ExportPicture) -> None:
        """Write a picture with its depth and mask."""
        place, view = picture.place, picture.view
        root, files = self.job.root(self.folder, place), self.files(place, view)
        write_file(root / files["file_path"], encode_picture(picture.pixels, self.job.image_format))
        write_file(root / files["depth_file_path"], self._encoded_depth(place, view))
        if self.has_masks:
            own, geometry = self.job.views[view], self.job.geometry[view]
            box = self.job.output.run.views[own.index].pixel_transform.window or (0, 0, *own.size[::-1])
            seen = np.zeros(own.size, np.uint8)
            seen[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] = 255
            moving = self.job.moving(place, view) if self.masks_motion else None
            used = geometry.mapped(seen, place, geometry.size) * np.uint8(1 if moving is None else ~moving)
            write_file(root / files["mask_path"], encode_picture(used, ImageFormat.PNG))

    def _encoded_depth(self, place: int, view: int) -> bytes:
        levels = self.job.depth(place, view).astype(np.float64) / DEPTH_UNIT
        if self.has_levels:
            return encode_picture(np.rint(levels).astype(np.uint16), ImageFormat.PNG)
        file = io.BytesIO()
        np.save(file, levels.astype(np.float32))
        return file.getvalue()


def _write_scene(dataset: _Dataset, folder: Path, places: range, cloud: PointCloud) -> None:
    document: dict[str, Any] = {
        "camera_model": "OPENCV",
        "orientation_override": "none",
        "ply_file_path": "points.ply",
        "applied_transform": (np.hstack([dataset.job.world.rotation, np.zeros((3, 1))]) + 0.0).tolist(),
        **_splits(dataset, places),
        "frames": _frames(dataset, places),
    }
    write_json(folder / "transforms.json", document)
    write_file(folder / "points.ply", encode_ply(colored_points(cloud.xyz, cloud.rgb)))


def _splits(dataset: _Dataset, places: range) -> dict[str, list[str]]:
    """Return the lists of pictures for training and testing; nerfstudio chooses where no view is held out."""
    if not any(view.held_out for view in dataset.job.views):
        return {}
    parts: dict[bool, list[str]] = {False: [], True: []}
    for number, view in enumerate(dataset.job.views):
        parts[view.held_out] += [dataset.files(place, number)["file_path"] for place in places]
    return {"train_filenames": parts[False], "val_filenames": parts[True], "test_filenames": parts[True]}


def _frames(dataset: _Dataset, places: range) -> Iterator[dict[str, Any]]:
    """Yield the frames view by view."""
    job, poses = dataset.job, opengl_poses(dataset.job)
    for number, (view, size) in enumerate(zip(job.views, job.sizes, strict=True)):
        for place in places:
            yield {
                **dataset.files(place, number),
                **frame_camera(poses[place, number], job.intrinsics[place, number], size),
                "time": float(job.seconds[place]),
                "camera_label": view.label,
            }
