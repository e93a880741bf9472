"""The MultipleView form of 4DGaussians, read as its loader does."""

from pathlib import Path
from typing import Any

import numpy as np
import pycolmap

from page4d.exporters.export import Exported
from tests.exporters.capture import Capture, read_rgb
from tests.exporters.trainer_shots import (
    Shot,
    assert_colors,
    by_instant,
    export_one,
    planned,
    poses_of_rows,
    read_cloud,
)

NAME = "4dgaussians"
CLOUD = "points3D_multipleview.ply"
OTHER_FORMS = ("sparse", "transforms_train.json", "poses_bounds.npy", "dataset.json", "train_meta.json")
"""Names for which the loader takes the folder for another form."""


def load_shots(folder: Path) -> tuple[list[Shot], list[float]]:
    """Read the folder as the loader does, and return also the times of the instants.

    The focal length is the first of camera 1, for both axes; an image's name without its first five and last four
    characters is the number of the view; the number of instants is that of the files of cam01, counted from 1.
    """
    assert not any((folder / name).exists() for name in OTHER_FORMS)
    model = pycolmap.Reconstruction(str(folder / "sparse_"))
    camera = model.cameras[1]
    focal = camera.params[0]
    intrinsics = np.array([[focal, 0, camera.width / 2], [0, focal, camera.height / 2], [0, 0, 1]])
    number = len(list((folder / "cam01").iterdir()))
    shots = []
    for _, image in sorted(model.images.items()):
        label = image.name[5:-4].zfill(2)
        pose = np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]])
        for instant in range(number):
            picture = read_rgb(folder / f"cam{label}" / f"frame_{instant + 1:05d}.jpg")
            assert picture.shape[:2] == (camera.height, camera.width)
            shots.append(Shot(int(label) - 1, instant, picture, intrinsics, pose))
    return shots, [instant / number for instant in range(number)]


def points_of(capture: Capture, folder: Path) -> dict[str, Any]:
    cloud, _ = read_cloud(folder / CLOUD)
    return {"points_of": by_instant(capture, cloud).__getitem__, "job": planned(capture, NAME)}


def test_colors(exported: Exported, capture: Capture):
    folder = exported.folder
    shots, times = load_shots(folder)
    assert [instant.time for instant in exported.record.instants] == times == [0.0, 0.25, 0.5, 0.75]
    assert [(shot.view, shot.instant) for shot in shots] == [(view, t) for view in range(4) for t in range(4)]
    poses = capture.world_to_camera[0]
    np.testing.assert_allclose([shot.world_to_camera for shot in shots[::4]], poses, atol=1e-12)
    assert_colors(capture, shots, wrong=("axes", "order of views"), **points_of(capture, folder))


def test_model_and_rows_agree(exported: Exported, capture: Capture):
    """Poses, size and focal length of the spiral are those of the model."""
    model = pycolmap.Reconstruction(str(exported.folder / "sparse_"))
    assert [camera.model.name for camera in model.cameras.values()] == ["PINHOLE"] * 4
    parameters = {tuple(camera.params) for camera in model.cameras.values()}
    assert len(parameters) == 1
    rows = np.load(exported.folder / "poses_bounds_multipleview.npy")
    images = [model.images[number] for number in range(1, 5)]
    np.testing.assert_allclose(poses_of_rows(rows), capture.world_to_camera[0], atol=1e-12)
    for lens, image in zip(rows[:, 4:15:5], images, strict=True):
        assert lens.tolist() == [image.camera.height, image.camera.width, image.camera.params[0]]
    assert (rows[:, 15] > 0).all()
    assert (rows[:, 15] < rows[:, 16]).all()


def test_points(exported: Exported):
    (xyz, rgb), _ = read_cloud(exported.folder / CLOUD)
    model = pycolmap.Reconstruction(str(exported.folder / "sparse_"))
    assert 1000 < len(xyz) == exported.record.points == len(model.points3D) <= 40_000
    first = model.points3D[1]
    np.testing.assert_array_equal(first.xyz.astype(np.float32), xyz[0])
    np.testing.assert_array_equal(first.color, np.rint(rgb[0] * 255))


def test_record_and_command(exported: Exported):
    assert exported.record.held_out == ["instant 0", "instant 1", "instant 2"]
    _, config, train = exported.next_step.splitlines()
    assert config == "echo \"_base_ = './default.py'\" > arguments/multipleview/room.py"
    assert train == (
        f"python train.py -s {exported.folder} --port 6017 --expname multipleview/room "
        "--configs arguments/multipleview/room.py"
    )


def test_held_out_instants_are_named_as_in_the_run(capture: Capture, tmp_path: Path):
    exported = export_one(capture, NAME, tmp_path / "room", instants=(1, None, 2), image_size=80)
    assert exported.record.held_out == ["instant 1", "instant 3"]
    assert [(found.instant, found.time) for found in exported.record.instants] == [(1, 0.0), (3, 0.5)]
