"""Up axes, and the similarity from the run's world to the exported one."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from page4d.choices import UpAxis
from page4d.exporters.export import export
from page4d.exporters.world import export_world
from page4d.geometry.rotation import turn_up
from page4d.output.preview import cloud as preview
from page4d.output.record import SceneRecord
from page4d.output.rig_record import RegistrationRecord, WorldRecord
from page4d.output.upward import Upward, choose_up, upward_of
from tests.exporters.capture import Capture

AXES = [axis for axis in UpAxis if axis is not UpAxis.AUTO]


def vector(axis: UpAxis) -> np.ndarray:
    return np.array(axis.vector)


@pytest.mark.parametrize(("up", "goal"), list(itertools.product(AXES, AXES)))
def test_the_rotation_is_exact_and_turns_up_to_the_goal(up: UpAxis, goal: UpAxis) -> None:
    rotation = turn_up(up.vector, goal.vector)
    assert np.array_equal(rotation @ vector(up), vector(goal))
    assert np.array_equal(rotation @ rotation.T, np.eye(3))
    assert np.linalg.det(rotation) == pytest.approx(1)


def test_an_opencv_world_becomes_y_up_and_z_up_as_other_tools_expect() -> None:
    assert np.array_equal(turn_up(UpAxis.MINUS_Y.vector, UpAxis.Y.vector), np.diag([1, -1, -1]))
    assert np.array_equal(turn_up(UpAxis.MINUS_Y.vector, UpAxis.Z.vector) @ [1, 2, 3], [1, 3, -2])


def test_points_and_cameras_move_together() -> None:
    rng = np.random.default_rng(0)
    world = export_world(upward([0.0, -0.8, 0.6]), "z", 2.5)
    assert np.allclose(world.rotation @ [0.0, -0.8, 0.6], [0, 0, 1])
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
    assert export_world(upward([0.0, -0.8, 0.6]), "", 1.0).points(points) is points


def upward(vector: list[float]) -> Upward:
    return Upward(axis=UpAxis.MINUS_Y, vector=np.array(vector), found="")


def rig(up: np.ndarray, *, arc: float = 270, pitch: float = 0, roll: tuple[float, ...] = (0, 0, 0, 0)) -> np.ndarray:
    """Return poses of cameras on an arc about an axis that face down by a pitch; angles are in degrees."""
    poses = np.tile(np.eye(4), (1, len(roll), 1, 1))
    helper = np.array([1.0, 0, 0]) if abs(up[0]) < 0.9 else np.array([0.0, 1, 0])
    for view, angle in enumerate(np.radians(np.linspace(0, arc, len(roll)))):
        side = np.cross(up, helper)
        level = np.cos(angle) * np.cross(side, up) + np.sin(angle) * side
        level /= np.linalg.norm(level)
        cosine, sine = np.cos(np.radians(pitch)), np.sin(np.radians(pitch))
        camera = np.stack([np.cross(level, up), -sine * level - cosine * up, cosine * level - sine * up])
        cosine, sine = np.cos(np.radians(roll[view])), np.sin(np.radians(roll[view]))
        poses[0, view, :3, :3] = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]]) @ camera
    return poses


def tilted(degrees: float) -> np.ndarray:
    return np.array([0.0, np.sin(np.radians(degrees)), np.cos(np.radians(degrees))])


@pytest.mark.parametrize("is_calibrated", [False, True])
@pytest.mark.parametrize("pitch", [0, 50])
@pytest.mark.parametrize("axis", AXES)
def test_level_cameras_show_the_axis_that_points_up(axis: UpAxis, pitch: float, is_calibrated: bool) -> None:
    found = choose_up(UpAxis.AUTO, rig(vector(axis), arc=90, pitch=pitch), is_calibrated=is_calibrated)
    assert found.axis is axis
    assert np.allclose(found.vector, axis.vector)


LEANING = {"arc": 90, "pitch": 30, "roll": (1, -2, 2, -1)}
UNKNOWN = {"arc": 5, "pitch": 30}


@pytest.mark.parametrize(
    ("off", "cameras", "is_calibrated", "axis", "is_turned", "text"),
    [
        (27, LEANING, True, "z", True, "show the vertical, 27 degrees off it"),
        (27, LEANING, False, "z", True, "show the vertical"),
        (6, LEANING, True, "z", False, "level cameras are"),
        (6, LEANING, False, "z", True, "show the vertical"),
        (0, UNKNOWN, True, "z", False, "30 degrees off it, which is far: give ⟨up⟩"),
        (0, UNKNOWN, False, "-y", False, "that of the first camera"),
        (0, {"roll": (90, 90, 90, 90)}, False, "-y", False, "that of the first camera"),
        (0, {"roll": (0, 90, 0, 90)}, False, "-y", False, "that of the first camera"),
        (0, {"roll": (25, -20, 15, -30), "arc": 90}, False, "-y", False, "that of the first camera"),
        (0, {"roll": (0, 0), "arc": 10}, False, "-y", False, "that of the first camera"),
    ],
)
def test_a_tilted_world_is_turned_upright_if_its_cameras_are_level(
    off: float, cameras: dict[str, Any], is_calibrated: bool, axis: str, is_turned: bool, text: str
) -> None:
    up = tilted(off)
    found = choose_up(UpAxis.AUTO, rig(up, **cameras), is_calibrated=is_calibrated)
    assert (found.axis, text in found.found) == (axis, True), found
    assert np.degrees(np.arccos(found.vector @ (up if is_turned else found.axis.vector))) < 3


def test_a_given_axis_is_taken_and_else_that_of_an_upright_world() -> None:
    poses = rig(vector(UpAxis.Z))
    for given, axis, text in ((UpAxis.X, UpAxis.X, "given"), (UpAxis.AUTO, UpAxis.Y, "the world is upright")):
        found = choose_up(given, poses, known=UpAxis.Y, is_calibrated=True)
        assert (found.axis, found.vector.tolist(), found.found) == (axis, list(axis.vector), text)


@pytest.mark.parametrize(
    ("update", "is_turned"),
    [
        ({}, False),
        ({"registration": RegistrationRecord(asked="auto", cameras=[], pairs=[])}, True),
        ({"world": WorldRecord(frame="first-camera")}, True),
        ({"settings": {"poses": "predicted"}}, True),
    ],
)
def test_axes_of_a_calibration_are_kept_and_those_of_the_first_camera_not(
    update: dict[str, Any], is_turned: bool, capture: Capture
) -> None:
    poses = torch.from_numpy(rig(tilted(6), arc=90))[:, : len(capture.output.view_names)]
    before = capture.output.cameras
    cameras = replace(before, world_to_camera=poses.expand_as(before.world_to_camera))
    run = capture.output.run.model_copy(update={"scene": SceneRecord(name="a", calibration="rig.toml"), **update})
    output = replace(capture.output, cameras=cameras, run=run)
    found = upward_of(output).vector
    assert np.allclose(found, tilted(6) if is_turned else [0, 0, 1])
    shown = preview._viewpoints(output, [0, 0, 0])
    assert np.allclose([viewpoint.axes[0] @ found for viewpoint in shown], 0), "previews stand as exports do"


def test_the_exports_of_a_tilted_world_stand_upright(capture: Capture, tmp_path: Path) -> None:
    up = np.array([0.1, -0.8, 0.6]) / np.linalg.norm([0.1, -0.8, 0.6])
    poses = torch.from_numpy(rig(up, arc=120, pitch=20)[:, : len(capture.output.view_names)])
    cameras = replace(capture.output.cameras, world_to_camera=poses.expand_as(capture.output.cameras.world_to_camera))
    output = replace(capture.output, cameras=cameras)
    glb, chan, npz = export(output, "glb,chan,npz", tmp_path / "upright")
    for exported in (glb, chan):
        assert np.allclose(np.array(exported.record.world_from_run)[:3, :3] @ up, [0, 1, 0])
    assert (npz.record.up, npz.record.world_from_run) == ("-y", np.eye(4).tolist())
    usd = pytest.importorskip("pxr.Usd")
    (exported,) = export(output, "usd", tmp_path / "usd")
    stage = usd.Stage.Open(str(exported.folder / "scene.usdc"))
    turn = np.array(stage.GetPrimAtPath("/World").GetAttribute("xformOp:transform").Get())[
        :3, :3
    ].T  # of column vectors
    assert np.allclose(turn @ up, [0, 1, 0])


@pytest.mark.parametrize("name", ["splat", "dynamic3dgs"])
def test_readers_that_take_y_for_down_get_it(name: str, capture: Capture, tmp_path: Path) -> None:
    options = {} if name == "splat" else {"scene": capture.scene}
    (exported,) = export(capture.folder, name, tmp_path / name, up="z", instants=(0, 2, 1), **options)
    assert exported.record.exported_up == "-y"
    rotation = np.array(exported.record.world_from_run)[:3, :3] / exported.record.scale
    assert np.array_equal(rotation @ [0, 0, 1], [0, -1, 0])
