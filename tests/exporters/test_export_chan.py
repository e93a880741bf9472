"""Camera curves, read back as Nuke does."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from page4d.exporters.chan import zxy_angles
from page4d.exporters.export import Exported, export
from tests.exporters.capture import Capture

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


def test_static_cameras_have_equal_lines(capture: Capture, tmp_path: Path) -> None:
    export(capture.folder, "chan", tmp_path / "chan", scale=10.0)
    _, poses, fov = read(tmp_path / "chan" / "cam02.chan")
    assert (poses == poses[0]).all()
    assert (fov == fov[0]).all()
    center = np.linalg.inv(capture.world_to_camera[0, 1])[:3, 3]
    np.testing.assert_allclose(poses[0, :3, 3], 10 * center * [1, -1, -1], rtol=1e-11)


TURNS = np.radians(np.arange(0, 1080, 20))
RISE = np.radians(np.arange(-60, 240, 7.5))
"""Passes 90 degrees, where y and z turn about the same axis."""


@pytest.mark.parametrize(
    "angles",
    [(0.9 * np.cos(TURNS / 2), TURNS, 0.3 * np.sin(TURNS / 3)), (RISE, 0 * RISE + 0.4, 0 * RISE - 0.2)],
    ids=["several turns", "the zenith"],
)
def test_angles_are_continuous(angles: tuple[NDArray[np.float64], ...]) -> None:
    x, y, z = angles
    rotations = Rotation.from_euler("zxy", np.stack([z, x, y], axis=1)).as_matrix()
    np.testing.assert_allclose(zxy_angles(rotations), np.degrees(angles).T, atol=1e-6)


@pytest.mark.parametrize("tilt", [-90.0, 90.0])
def test_a_camera_that_faces_straight_down_or_up(tilt: float) -> None:
    rotations = Rotation.from_euler("zxy", [[0.0, tilt, 35.0]], degrees=True)
    x, y, z = zxy_angles(rotations.as_matrix())[0]
    back = Rotation.from_euler("zxy", [z, x, y], degrees=True)
    np.testing.assert_allclose(back.as_matrix(), rotations.as_matrix()[0], atol=1e-9)
