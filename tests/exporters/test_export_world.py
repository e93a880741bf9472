"""Up axes, and the similarity from the run's world to the exported one."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from page4d.choices import UpAxis
from page4d.exporters.export import export
from page4d.exporters.world import choose_up, export_world
from page4d.geometry.rotation import turn_up
from tests.exporters.capture import Capture

AXES = [axis for axis in UpAxis if axis is not UpAxis.AUTO]


def vector(axis: UpAxis) -> np.ndarray:
    return np.array(axis.vector)


@pytest.mark.parametrize(("up", "goal"), list(itertools.product(AXES, AXES)))
def test_the_rotation_is_exact_and_turns_up_to_the_goal(up: UpAxis, goal: UpAxis) -> None:
    rotation = turn_up(up, goal)
    assert np.array_equal(rotation @ vector(up), vector(goal))
    assert np.array_equal(rotation @ rotation.T, np.eye(3))
    assert np.linalg.det(rotation) == pytest.approx(1)


def test_an_opencv_world_becomes_y_up_and_z_up_as_other_tools_expect() -> None:
    assert np.array_equal(turn_up(UpAxis.MINUS_Y, UpAxis.Y), np.diag([1, -1, -1]))
    assert np.array_equal(turn_up(UpAxis.MINUS_Y, UpAxis.Z) @ [1, 2, 3], [1, 3, -2])


def test_points_and_cameras_move_together() -> None:
    rng = np.random.default_rng(0)
    world = export_world(UpAxis.MINUS_Y, "z", 2.5)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation * np.linalg.det(rotation), rng.normal(size=3)
    points = rng.normal(size=(100, 3)).astype(np.float32)
    moved_pose = world.world_to_camera(pose)
    before = points @ pose[:3, :3].T + pose[:3, 3]
    after = world.points(points) @ moved_pose[:3, :3].T + moved_pose[:3, 3]
    assert np.allclose(after, 2.5 * before, atol=1e-5)
    assert np.allclose(world.matrix()[:3, :3] @ points[0], world.points(points)[0], atol=1e-6)
    offset = (5e5, 5e6, 300.0)
    whole = world.matrix(offset) @ [*(points[0].astype(np.float64) + offset), 1]
    assert np.allclose(whole[:3], world.points(points)[0], atol=1e-6)


def test_an_unchanged_world_keeps_the_bits_of_points() -> None:
    points = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    assert export_world(UpAxis.MINUS_Y, "", 1.0).points(points) is points


def poses_with_up(upward: np.ndarray, number: int = 4) -> np.ndarray:
    """Return poses of cameras around an axis, without roll."""
    poses = np.tile(np.eye(4), (1, number, 1, 1))
    helper = np.array([1.0, 0, 0]) if abs(upward[0]) < 0.9 else np.array([0.0, 1, 0])
    for view in range(number):
        angle = 2 * np.pi * view / number
        side = np.cross(upward, helper)
        forward = np.cos(angle) * np.cross(side, upward) + np.sin(angle) * side
        forward /= np.linalg.norm(forward)
        poses[0, view, :3, :3] = np.stack([np.cross(-upward, forward), -upward, forward])
    return poses


@pytest.mark.parametrize("axis", AXES)
def test_the_up_axis_of_a_calibrated_world_is_that_of_its_cameras(axis: UpAxis) -> None:
    assert choose_up(UpAxis.AUTO, poses_with_up(vector(axis)), is_calibrated=True)[0] is axis


def test_the_world_of_the_first_camera_has_y_down_whatever_the_other_cameras_do() -> None:
    assert choose_up(UpAxis.AUTO, poses_with_up(vector(UpAxis.Z)), is_calibrated=False)[0] is UpAxis.MINUS_Y


def test_a_tilted_world_is_reported() -> None:
    tilted = np.array([0.0, np.sin(np.radians(40)), np.cos(np.radians(40))])
    axis, how = choose_up(UpAxis.AUTO, poses_with_up(tilted), is_calibrated=True)
    assert axis is UpAxis.Z
    assert "40 degrees" in how
    assert "⟨up⟩" in how


def test_a_given_axis_is_taken_and_else_that_of_an_upright_world() -> None:
    poses = poses_with_up(vector(UpAxis.Z))
    assert choose_up(UpAxis.X, poses, known=UpAxis.Y, is_calibrated=True) == (UpAxis.X, "given")
    assert choose_up(UpAxis.AUTO, poses, known=UpAxis.Y, is_calibrated=True) == (UpAxis.Y, "the world is upright")


@pytest.mark.parametrize("name", ["splat", "dynamic3dgs"])
def test_readers_that_take_y_for_down_get_it(name: str, capture: Capture, tmp_path: Path) -> None:
    options = {} if name == "splat" else {"scene": capture.scene}
    (exported,) = export(capture.folder, name, tmp_path / name, up="z", instants=(0, 2, 1), **options)
    assert exported.record.exported_up == "-y"
    rotation = np.array(exported.record.world_from_run)[:3, :3] / exported.record.scale
    assert np.array_equal(rotation @ [0, 0, 1], [0, -1, 0])
