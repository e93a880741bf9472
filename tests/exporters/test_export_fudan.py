"""The folder of Fudan's 4D Gaussian splatting, read as its loader does."""

import json
from pathlib import Path

import numpy as np
import pytest

from page4d.exporters.export import Exported
from page4d.exporters.points import ModelPoints
from page4d.exporters.trainers.fudan import point_times
from page4d.formats.ply import PointCloud
from tests.exporters.capture import EXACT_THRESHOLD, THRESHOLD, Capture, read_rgb
from tests.exporters.trainer_shots import Points, Shot, assert_colors, export_one, read_cloud

NAME = "fudan-4dgs"


def load_shots(folder: Path, name: str, extension: str = ".png") -> list[Shot]:
    """Read cameras as the loader does: poses from OpenGL, its own intrinsics per frame, path without extension."""
    frames = json.loads((folder / f"transforms_{name}.json").read_text())["frames"]
    times = sorted({frame["time"] for frame in frames})
    shots = []
    for frame in frames:
        pose = np.array(frame["transform_matrix"])
        pose[:3, 1:3] *= -1
        picture = read_rgb(folder / (frame["file_path"] + extension))
        assert picture.shape == (frame["h"], frame["w"], 3)
        matrix = np.array([[frame["fl_x"], 0, frame["cx"]], [0, frame["fl_y"], frame["cy"]], [0, 0, 1]])
        view = int(Path(frame["file_path"]).name[3:5])
        shots.append(Shot(view, times.index(frame["time"]), picture, matrix, np.linalg.inv(pose)))
    return shots


def points_at(folder: Path, times: np.ndarray, instant: int) -> Points:
    (xyz, rgb), time = read_cloud(folder / "points3d.ply")
    chosen = np.abs(time - times[instant]) < 1e-5
    return xyz[chosen], rgb[chosen]


@pytest.mark.parametrize("moves", [False, True], ids=["static", "moving"])
def test_colors(moves: bool, request, tmp_path):
    capture = request.getfixturevalue("moving_capture" if moves else "capture")
    folder = export_one(capture, NAME, tmp_path / "room").folder
    shots = load_shots(folder, "train")
    assert [(shot.view, shot.instant) for shot in shots] == [(view, t) for view in range(4) for t in range(4)]
    np.testing.assert_allclose(
        [shot.world_to_camera for shot in shots],
        np.swapaxes(capture.world_to_camera, 0, 1).reshape(-1, 4, 4),
        atol=1e-12,
    )
    clouds = [points_at(folder, capture.times, instant) for instant in range(4)]
    assert_colors(capture, shots, clouds.__getitem__, (EXACT_THRESHOLD, THRESHOLD / 2))


def test_times_of_points(exported: Exported, capture: Capture):
    (xyz, _), time = read_cloud(exported.folder / "points3d.ply")
    assert set(np.unique(time)) == set(np.float32(capture.times))
    assert len(xyz) == len(time) == exported.record.points


def test_static_points_have_equal_shares_of_the_time():
    count, times = 1000, np.array([0.0, 0.5, 2.0])
    dynamic = (np.arange(count) % 10 == 0).astype(np.uint8)
    cloud = PointCloud(
        xyz=np.zeros((count, 3), dtype=np.float32),
        rgb=np.zeros((count, 3), dtype=np.uint8),
        confidence=np.ones(count, dtype=np.float32),
        view=np.zeros(count, dtype=np.uint8),
        dynamic=dynamic,
    )
    place = np.where(dynamic == 1, np.arange(count) % 3, 1).astype(np.int32)
    found = point_times(ModelPoints(cloud=cloud, place=place), times)
    assert np.array_equal(found[dynamic == 1], times[place[dynamic == 1]])
    assert [int((found[dynamic == 0] == value).sum()) for value in times] == [300, 300, 300]
    # Neighbouring points, which are sorted by pixels, do not follow a pattern.
    changes = np.diff(found[dynamic == 0]) != 0
    assert 0.55 < changes.mean() < 0.8


def test_without_hold_out_the_test_file_repeats_the_first_view(exported: Exported):
    train, test = (
        json.loads((exported.folder / f"transforms_{name}.json").read_text()) for name in ("train", "test")
    )
    assert test["frames"] == train["frames"][:4]
    assert exported.record.held_out == []
    assert any("cam01" in remark for remark in exported.record.remarks)


def test_held_out_views_are_for_testing_alone(capture: Capture, tmp_path):
    exported = export_one(capture, NAME, tmp_path / "room", hold_out=("cam03",), instants=(0, 2, 1))
    assert {shot.view for shot in load_shots(exported.folder, "train")} == {0, 1, 3}
    assert {shot.view for shot in load_shots(exported.folder, "test")} == {2}
    assert exported.record.held_out == ["cam03"]
    assert not any("repeats" in remark for remark in exported.record.remarks)


def test_times_are_seconds_from_zero(uneven_capture: Capture, tmp_path):
    exported = export_one(uneven_capture, NAME, tmp_path / "room", instants=(1, None, 1), image_format="jpg")
    frames = json.loads((exported.folder / "transforms_train.json").read_text())["frames"]
    expected = [0.0, 2 / 12, 3 / 12]
    np.testing.assert_allclose([frame["time"] for frame in frames[:3]], expected, atol=1e-12)
    np.testing.assert_allclose([instant.time for instant in exported.record.instants], expected, atol=1e-12)
    # The reader drops frames later than the end, which must be the same number.
    assert f"time_duration: [0.0, {frames[2]['time']!r}]" in exported.next_step
    assert 'extension: ".jpg"' in exported.next_step
    assert load_shots(exported.folder, "train", ".jpg")


def test_next_step_keeps_all_points_and_an_absolute_path(capture: Capture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exported = export_one(capture, NAME, Path("room"), max_points=5000)
    assert exported.record.points <= 5000
    assert f"num_pts: {exported.record.points}\n" in exported.next_step
    assert json.dumps(str(tmp_path / "room")) in exported.next_step
    assert "dataloader: True" in exported.next_step
    assert "extension" not in exported.next_step
