"""COLMAP model of a capture: pictures, cameras as a rig, points with tracks, and times.

Times are in files next to the model that other readers ignore; a point without a time exists at all times.

Cameras that do not move form one rig with a frame per instant. If any moves, the model has no rigs and frames files:
COLMAP then makes a rig of every camera and a frame of every image.

Each point is observed once: in the picture of its view and instant. A point whose projection a common pinhole crops
from that picture has no track.

Source: colmap4d specification 1.0, part I.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from page4d.exporters.job import ExportJob, Written
from page4d.exporters.points import ModelPoints
from page4d.formats.colmap import Camera, Frame, Image, Model, Points3D, Rig, make_poses, write_model
from page4d.geometry.transforms import is_constant
from page4d.io.atomic import real_path
from page4d.io.folders import write_file, write_json

_META = {
    "colmap4d_spec": "1.0",
    "time_convention": "mid_exposure",
    "time_unit": "ns",
    "clock_domain": "capture",
    "points_t_method": "first_observation",
}
"""Seconds on the common clock of the capture; `mid_exposure` is the only convention of the specification."""


def nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round times to nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


_MODEL_FOLDER = Path("sparse", "0")


def write(job: ExportJob, folder: Path) -> Written:
    """Write one model of all instants, or with `per_instant` a folder with a model for each."""
    remarks, num_points = [], 0
    for part_folder, places, points in job.parts(folder):
        num_points += points.cloud.num_points
        _write_part(_Part(job, part_folder, places), points)
        if len(places) > 1 and points.cloud.dynamic.any():
            remarks.append("moving points of all instants are in one model; ⟨per_instant=True⟩ separates them")
    if job.is_static_rig and not job.settings.per_instant:
        write_json(folder / "rig_config.json", rig_config(job))
    if job.pictures is None:
        remarks.append("no pictures were written: image names are those that they would have")
    else:
        for picture in job.read_pictures():
            path = job.root(folder, picture.place) / "images" / job.frame_path(picture.place, picture.view)
            job.write_picture(path, picture)
    return Written(num_points=num_points, times=tuple(nanoseconds(job.seconds).tolist()), remarks=tuple(remarks))


def next_step(job: ExportJob, folder: Path) -> str:
    """Return commands that show the model, and that train on it."""
    data = real_path(job.root(folder, 0))
    model, images, database = (str(data / name) for name in (_MODEL_FOLDER, "images", "database.db"))
    if job.pictures is None:
        return shlex.join(["colmap", "model_analyzer", "--path", model])
    show = ["colmap", "gui", "--import_path", model, "--image_path", images, "--database_path", database]
    train = ["python", "examples/simple_trainer.py", "default", "--data_dir", str(data), "--data_factor", "1"]
    return f"{shlex.join(show)}\nor in the folder of gsplat:\n{shlex.join(train)}"


@dataclass(frozen=True)
class _Part:
    """The instants of a model, given by their places, and the folder that holds its images and `sparse`."""

    job: ExportJob
    folder: Path
    places: range

    @property
    def is_rig(self) -> bool:
        """Whether the relative poses of the cameras are constant."""
        return len(self.places) == 1 or self.job.is_static_rig

    @cached_property
    def image_ids(self) -> NDArray[np.int64]:
        """Identifiers of images [T, V] in the order of names, as in a database of COLMAP.

        pycolmap pairs a model with a database by names, but fails where an image has different identifiers in them.
        """
        views = range(len(self.job.views))
        names = np.array([[self.image_name(place, view) for view in views] for place in self.places])
        return np.argsort(np.argsort(names, axis=None)).reshape(names.shape) + 1

    def image_name(self, place: int, view: int) -> str:
        """Return the name of an image below the folder of images."""
        return f"{self.job.frame_path(place, view)}.{self.job.image_format}"


def _write_part(part: _Part, points: ModelPoints) -> None:
    """Write a model, and the times in ns of its images and of its moving points."""
    job, target = part.job, part.folder / _MODEL_FOLDER
    camera_ids, cameras = _cameras(part)
    images, tracked = _images(part, points, camera_ids)
    rigs, frames = _rig(part, camera_ids) if part.is_rig else ((), ())
    model = Model(cameras=cameras, images=images, points=tracked, rigs=rigs, frames=frames)
    write_model(target, model, text=job.settings.text)
    times, moving = nanoseconds(job.seconds), np.flatnonzero(points.cloud.dynamic)
    image_times = np.repeat(times[list(part.places)], len(job.views))
    for stem, id_type, ids, own in (
        ("times", "<u4", part.image_ids.ravel(), image_times),
        ("points_t", "<u8", moving + 1, times[points.place[moving]]),
    ):
        if job.settings.text:
            rows = "%d %d\n" * len(ids) % tuple(np.stack([ids, own], axis=1).ravel().tolist())
            write_file(target / f"{stem}.txt", f"# ID, TIME_NS\n{rows}".encode())
        else:
            table = np.empty(len(ids), dtype=[("id", id_type), ("time", "<i8")])
            table["id"], table["time"] = ids, own
            write_file(target / f"{stem}.bin", np.array(len(ids), dtype="<u8").tobytes() + table.tobytes())
    write_json(target / "time_meta.json", _META)


def _cameras(part: _Part) -> tuple[NDArray[np.int64], list[Camera]]:
    """Return the cameras, and the camera of every image [T, V] by its id.

    A view has one camera, or one per image if its intrinsics change.
    """
    job = part.job
    ids = np.zeros_like(part.image_ids)
    cameras: list[Camera] = []
    for view in np.argsort(part.image_ids[0]):
        matrices = job.intrinsics[list(part.places), view]
        is_one = is_constant(matrices)
        for number, matrix in enumerate(matrices):
            if not is_one or number == 0:
                cameras.append(Camera.of(len(cameras) + 1, job.sizes[view], matrix))
            ids[number, view] = len(cameras)
    return ids, cameras


def _images(part: _Part, points: ModelPoints, camera_ids: NDArray[np.int64]) -> tuple[list[Image], Points3D]:
    """Return the images with the points that they show, and the points with their tracks."""
    job, num_views = part.job, len(part.job.views)
    view_of = np.zeros(256, dtype=np.int64)
    view_of[[view.index for view in job.views]] = np.arange(num_views)
    keys = points.place.astype(np.int64) * num_views + view_of[points.cloud.view]
    order = np.argsort(keys, kind="stable")
    starts = np.searchsorted(keys[order], np.arange(job.num_times * num_views + 1))
    track_image = np.zeros(len(keys), dtype=np.int32)
    track_index = np.zeros(len(keys), dtype=np.int32)
    images = []
    for number, place in enumerate(part.places):
        poses = make_poses(job.world_to_camera[place])
        for view, pose in enumerate(poses):
            key, image_id = place * num_views + view, int(part.image_ids[number, view])
            chosen = order[starts[key] : starts[key + 1]]
            inside, pixels, _ = job.in_picture(points.cloud.xyz[chosen], place, view)
            shown = chosen[inside]
            track_image[shown] = image_id
            track_index[shown] = np.arange(len(shown))
            images.append(
                Image(
                    id=image_id,
                    pose=pose,
                    camera_id=int(camera_ids[number, view]),
                    name=part.image_name(place, view),
                    points2d=pixels,
                    point_ids=shown + 1,
                )
            )
    cloud = points.cloud
    images.sort(key=lambda image: image.id)
    return images, Points3D(xyz=cloud.xyz, rgb=cloud.rgb, track_image=track_image, track_index=track_index)


def _rig(part: _Part, camera_ids: NDArray[np.int64]) -> tuple[Sequence[Rig], Sequence[Frame]]:
    """Return a rig, whose reference is the first view, and a frame per instant.

    Their identifiers follow those of a database of COLMAP, which first makes a rig of every camera and a frame of
    every image, and then the rig of `rig_config.json`: triangulation demands the same identifiers.
    """
    job = part.job
    relative = _relative_poses(job, part.places[0])
    rig = Rig(
        id=len(job.views) + 1, camera_ids=tuple(camera_ids[0].tolist()), sensor_from_rig=tuple(make_poses(relative))
    )
    reference = make_poses(job.world_to_camera[list(part.places), 0])
    poses_and_images = zip(reference, part.image_ids.tolist(), strict=True)
    frames = [
        Frame(id=number, rig=rig, rig_from_world=pose, image_ids=tuple(ids))
        for number, (pose, ids) in enumerate(poses_and_images, start=part.image_ids.size + 1)
    ]
    return [rig], frames


def _relative_poses(job: ExportJob, place: int) -> NDArray[np.float64]:
    """Return the poses [V, 4, 4] from the first camera to each; exactly the identity for the first."""
    relative: NDArray[np.float64] = job.world_to_camera[place] @ job.camera_to_world[place, 0]
    relative[0] = np.eye(4)
    return relative


def rig_config(job: ExportJob) -> list[dict[str, object]]:
    """Return `rig_config.json`, with which COLMAP matches and triangulates the pictures by the rig of this capture.

    Source: COLMAP documentation, "Rig support".
    """
    cameras = []
    for view, pose in enumerate(make_poses(_relative_poses(job, 0))):
        camera = Camera.of(view + 1, job.sizes[view], job.intrinsics[0, view])
        entry: dict[str, object] = {"image_prefix": f"{job.views[view].label}/"}
        if view == 0:
            entry["ref_sensor"] = True
        else:
            entry |= {"cam_from_rig_rotation": pose[:4], "cam_from_rig_translation": pose[4:]}
        cameras.append(entry | {"camera_model_name": "PINHOLE", "camera_params": camera.parameters})
    return [{"cameras": cameras}]
