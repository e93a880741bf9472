"""The folder of SpacetimeGaussians, read as its loader does."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap

from page4d.exporters.export import Exported
from tests.exporters.capture import Capture, read_rgb
from tests.exporters.trainer_shots import Points, Shot, assert_colors, export_one, planned, poses_of_rows

NAME = "spacetime"
OPTIONS = {"hold_out": ("cam03",)}
VIEWS = (2, 0, 1, 3)
"""Views of the run in the order of the files: the held-out one is the first."""


def source_and_duration(command: str) -> tuple[Path, int]:
    words = shlex.split(command)
    return Path(words[words.index("--source_path") + 1]), int(words[words.index("--duration") + 1])


def load_shots(command: str) -> tuple[list[Shot], list[float]]:
    """Read what a command trains on as the loader does, and return also the times of the instants.

    Cameras are those of the first folder, with their own fx and fy and the middle as principal point; pictures of
    later instants have its number in the path; views are sorted by name.
    """
    source, duration = source_and_duration(command)
    model = pycolmap.Reconstruction(str(source / "sparse" / "0"))
    shots = []
    for view, image in zip(VIEWS, sorted(model.images.values(), key=lambda image: image.name), strict=True):
        camera = image.camera
        fx, fy = camera.params[:2]
        intrinsics = np.array([[fx, 0, camera.width / 2], [0, fy, camera.height / 2], [0, 0, 1]])
        pose = np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]])
        for instant in range(duration):
            path = str(source / "images" / image.name).replace("colmap_0", f"colmap_{instant}", 1)
            picture = read_rgb(Path(path))
            assert picture.shape[:2] == (camera.height, camera.width)
            shots.append(Shot(view, instant, picture, intrinsics, pose))
    return shots, [instant / duration for instant in range(duration)]


def load_points(command: str, instant: int) -> Points:
    source, _ = source_and_duration(command)
    path = str(source / "sparse" / "0").replace("colmap_0", f"colmap_{instant}", 1)
    points = pycolmap.Reconstruction(path).points3D.values()
    return np.array([point.xyz for point in points]), np.array([point.color for point in points], dtype=np.uint8)


def points_of(capture: Capture, command: str) -> dict[str, Any]:
    clouds = [load_points(command, instant) for instant in range(4)]
    return {"points_of": clouds.__getitem__, "job": planned(capture, NAME)}


def test_colors(exported: Exported, capture: Capture):
    command = exported.next_step
    shots, times = load_shots(command)
    assert [instant.time for instant in exported.record.instants] == times == [0.0, 0.25, 0.5, 0.75]
    poses = capture.world_to_camera[0, list(VIEWS)]
    np.testing.assert_allclose([shot.world_to_camera for shot in shots[::4]], poses, atol=1e-12)
    wrong = ("axes", "order of views", "focal length of the first camera")
    assert_colors(capture, shots, wrong=wrong, **points_of(capture, command))


def test_rows_of_poses_bounds(exported: Exported, capture: Capture):
    """The loader takes near and far from the rows, one level above the folders of instants."""
    source, _ = source_and_duration(exported.next_step)
    rows = np.load(source.parent / "poses_bounds.npy")
    np.testing.assert_allclose(poses_of_rows(rows), capture.world_to_camera[0, list(VIEWS)], atol=1e-12)
    depth = np.stack([capture.output.depth(t, name) for t in range(4) for name in capture.output.view_names])
    assert depth.min() * 0.9 < rows[:, 15].min() < np.median(depth)
    assert np.median(depth) < rows[:, 16].max() < depth.max() * 1.1


def test_record_settings_and_command(exported: Exported):
    folder = exported.folder
    assert exported.record.held_out == ["cam03"]
    assert exported.record.points == sum(len(load_points(exported.next_step, t)[0]) for t in range(4)) == 16_000
    assert exported.next_step == (
        "in the folder of SpacetimeGaussians:\n"
        f"python train.py --quiet --eval --configpath {folder}/train.json --duration 4 --model_path log/room "
        f"--source_path {folder}/colmap_0"
    )
    settings = json.loads((folder / "train.json").read_text())
    assert settings["duration"] == 4
    assert settings["densify"] == 3  # 1 and 2 remove all points with z < 4.5
    assert settings["loader"] == "colmap"


def test_two_views_are_all_for_training(capture: Capture, tmp_path: Path):
    exported = export_one(capture, NAME, tmp_path / "room", views=("cam01", "cam02"), image_format="jpg")
    assert exported.record.held_out == []
    assert "--eval" not in exported.next_step
    source, _ = source_and_duration(exported.next_step)
    model = pycolmap.Reconstruction(str(source / "sparse" / "0"))
    assert sorted(image.name for image in model.images.values()) == ["cam00.jpg", "cam01.jpg"]
    assert sorted(path.name for path in (source / "images").iterdir()) == ["cam00.jpg", "cam01.jpg"]


def test_a_folder_of_that_name_above_is_named(capture: Capture):
    job = planned(capture, NAME)
    assert len(job.format.code.next_step(job, Path("/data/colmap_01/room")).splitlines()) == 3
    assert len(job.format.code.next_step(job, Path("/data/room")).splitlines()) == 2
