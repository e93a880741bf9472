"""Camera curves, read back as Nuke does."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from page4d.exporters.chan import zxy_angles
from page4d.exporters.export import Exported, export
from tests.exporters.capture import THRESHOLD, Capture, color_error

FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def read(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return frames, poses [T, 4, 4] of OpenGL cameras and vertical fields of view in degrees."""
    rows = np.loadtxt(path, ndmin=2)
    assert all(line.split()[0].isdecimal() for line in path.read_text().splitlines())
    poses = np.tile(np.eye(4), (len(rows), 1, 1))
    poses[:, :3, 3] = rows[:, 1:4]
    for pose, (x, y, z) in zip(poses, np.radians(rows[:, 4:7]), strict=True):
        about_x = np.array([[1, 0, 0], [0, math.cos(x), -math.sin(x)], [0, math.sin(x), math.cos(x)]])
        about_y = np.array([[math.cos(y), 0, math.sin(y)], [0, 1, 0], [-math.sin(y), 0, math.cos(y)]])
        about_z = np.array([[math.cos(z), -math.sin(z), 0], [math.sin(z), math.cos(z), 0], [0, 0, 1]])
        pose[:3, :3] = about_y @ about_x @ about_z
    return rows[:, 0].astype(int), poses, rows[:, 7]


@pytest.fixture(scope="module")
def done(moving_capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(moving_capture.folder, "chan", tmp_path_factory.mktemp("exported") / "chan")[0]


def test_cameras_come_back(moving_capture: Capture, done: Exported) -> None:
    for view, name in enumerate(moving_capture.output.view_names):
        frames, poses, fov = read(done.folder / f"{name}.chan")
        np.testing.assert_array_equal(frames, range(4))
        w2c = np.linalg.inv(FLIP @ poses @ FLIP)
        np.testing.assert_allclose(w2c, moving_capture.world_to_camera[:, view], atol=1e-9)
        focal = 60 / np.tan(np.radians(fov) / 2)
        np.testing.assert_allclose(focal, moving_capture.intrinsics[:, view, 1, 1], rtol=1e-9)
    assert [each.time for each in done.record.instants] == [0, 1, 2, 3]
    assert any("principal point" in remark for remark in done.record.remarks)


@pytest.mark.parametrize("view", range(4))
def test_cameras_see_the_points_in_their_colours(moving_capture: Capture, done: Exported, view: int) -> None:
    cloud, picture = moving_capture.output.points(2), moving_capture.picture(2, view)
    seen = cloud.view == view

    def error(place: int, source: int, back: NDArray[np.float64]) -> float:
        _, poses, fov = read(done.folder / f"cam0{source + 1}.chan")
        intrinsics = moving_capture.intrinsics[2, view].copy()  # principal point and pixel aspect are not in the file
        intrinsics[:2, :2] *= 60 / math.tan(math.radians(fov[place]) / 2) / intrinsics[1, 1]
        y_up = cloud.xyz[seen] * np.float32([1, -1, -1])
        return color_error(y_up, cloud.rgb[seen], picture, intrinsics, np.linalg.inv(poses[place] @ back))

    assert error(2, view, FLIP) < THRESHOLD
    mistakes = {
        "axes": error(2, view, np.eye(4)),
        "order": error(2, (view + 1) % 4, FLIP),
        "time": error(1, view, FLIP),
    }
    assert min(mistakes.values()) > THRESHOLD, mistakes


def test_static_cameras_have_equal_lines(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "chan", tmp_path / "chan", scale=10.0)
    _, poses, fov = read(tmp_path / "chan" / "cam02.chan")
    assert (poses == poses[0]).all()
    assert (fov == fov[0]).all()
    center = np.linalg.inv(capture.world_to_camera[0, 1])[:3, 3]
    np.testing.assert_allclose(poses[0, :3, 3], 10 * center * [1, -1, -1], rtol=1e-11)


def test_angles_are_continuous_over_several_turns() -> None:
    y = np.radians(np.arange(0, 1080, 20))
    rotations = Rotation.from_euler("zxy", np.stack([0.3 * np.sin(y / 3), 0.9 * np.cos(y / 2), y], axis=1))
    angles = zxy_angles(rotations.as_matrix())
    np.testing.assert_allclose(angles[:, 1], np.degrees(y), atol=1e-9)
    assert np.abs(np.diff(angles, axis=0)).max() < 25


def test_angles_are_continuous_over_the_zenith() -> None:
    x = np.radians(np.arange(-60, 240, 7.5))  # passes +90 degrees, where y and z turn about the same axis
    expected = np.stack([x, np.full_like(x, 0.4), np.full_like(x, -0.2)], axis=1)
    rotations = Rotation.from_euler("zxy", expected[:, [2, 0, 1]]).as_matrix()
    assert (np.abs(np.degrees(x) - 90) < 1e-9).any()
    np.testing.assert_allclose(zxy_angles(rotations), np.degrees(expected), atol=1e-6)


@pytest.mark.parametrize("tilt", [-90.0, 90.0])
def test_a_camera_that_faces_straight_down_or_up(tilt: float) -> None:
    rotations = Rotation.from_euler("zxy", [[0.0, tilt, 35.0]], degrees=True)
    x, y, z = zxy_angles(rotations.as_matrix())[0]
    back = Rotation.from_euler("zxy", [z, x, y], degrees=True)
    np.testing.assert_allclose(back.as_matrix(), rotations.as_matrix()[0], atol=1e-9)
