"""Faults of calibrations are named from people alone, and right calibrations are not accused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.output.record import CalibrationCheckRecord
from page4d.rig.calibration_check import calibrated_cameras, check_calibration
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import RigCamera, ViewPeople
from page4d.scene.open import open_scene
from tests.cli.clips import rig as rig_json
from tests.cli.clips import write_scene
from tests.rig.walkers import Walk, observe, ring

NAMES = ("cam01", "cam02", "cam03", "cam04")


def _slow(*values: float) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def rig(seed: int, *, bias: float = 0.004) -> tuple[tuple[RigCamera, ...], tuple[ViewPeople, ...]]:
    rng = np.random.default_rng(seed)
    cameras = ring(4, rng)
    return cameras, observe(cameras, [Walk.random(rng) for _ in range(1 + seed % 2)], rng, bias=bias, num_instants=16)


def turned(camera: RigCamera, degrees: float, axis: np.ndarray) -> RigCamera:
    turn = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    return camera.placed(turn @ camera.rotation, camera.center)


def checked(
    cameras: tuple[RigCamera, ...] | list[RigCamera], people: tuple[ViewPeople, ...]
) -> CalibrationCheckRecord:
    return check_calibration(NAMES, cameras, people)


@pytest.mark.parametrize(("noise_deg", "bias"), [(0.0, 0.004), _slow(1.0, 0.004), _slow(0.5, 0.02)])
def test_a_right_calibration_is_not_accused(noise_deg: float, bias: float) -> None:
    cameras, people = rig(3, bias=bias)
    rng = np.random.default_rng(1)
    noisy = [turned(camera, noise_deg, rng.normal(size=3)) for camera in cameras]
    report = checked(noisy, people)
    assert report.is_checked
    assert report.findings == ()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 3)])
def test_swapped_cameras_are_named(first: int, second: int) -> None:
    cameras, people = rig(first + second)
    swapped = list(cameras)
    swapped[first], swapped[second] = cameras[second], cameras[first]
    (finding,) = checked(swapped, people).findings
    assert finding.fault == "swapped"
    assert finding.views == (NAMES[first], NAMES[second])


@pytest.mark.parametrize(("view", "degrees"), [(0, 10.0), _slow(2, 20.0)])
def test_a_turned_camera_is_named_with_its_angle(view: int, degrees: float) -> None:
    cameras, people = rig(5)
    axis = np.random.default_rng(view).normal(size=3)
    given = [turned(camera, degrees, axis) if number == view else camera for number, camera in enumerate(cameras)]
    (finding,) = checked(given, people).findings
    assert (finding.fault, finding.views) == ("turned", (NAMES[view],))
    assert finding.angle_deg == pytest.approx(degrees, abs=2.5)


def test_of_two_cameras_at_one_pose_the_wrong_one_is_to_be_corrected() -> None:
    cameras, people = rig(7)
    (finding,) = checked([cameras[0], cameras[0], *cameras[2:]], people).findings
    assert (finding.fault, finding.views) == ("duplicate", ("cam01", "cam02"))
    assert "correct the pose of cam02" in finding.fix


@pytest.mark.slow
def test_a_displaced_camera_is_named() -> None:
    cameras, people = rig(9)
    moved = cameras[1].placed(cameras[1].rotation, cameras[1].center + np.array([1.0, 0.8, 0.5]))
    (finding,) = checked([cameras[0], moved, *cameras[2:]], people).findings
    assert finding.views == ("cam02",)
    assert finding.fault in ("displaced", "turned")


def test_camera_to_world_poses_and_another_image_size_are_named() -> None:
    cameras, people = rig(11)
    inverse = [replace(camera, world_to_camera=np.linalg.inv(camera.world_to_camera)) for camera in cameras]
    (finding,) = checked(inverse, people).findings
    assert finding.what.startswith("the poses are camera-to-world:")
    half = np.diag([0.5, 0.5, 1.0])
    small = [replace(c, lens=replace(c.lens, intrinsics=half @ c.lens.intrinsics)) for c in cameras]
    (finding,) = checked(small, people).findings
    assert "another size" in finding.what
    assert "--calib-resize scale" in finding.fix


def test_without_people_nothing_is_checked_and_copies_are_still_named() -> None:
    cameras, _ = rig(1)
    nobody = (ViewPeople(tracklets=()),) * 4
    report = checked(cameras, nobody)
    assert (report.findings, report.is_checked, report.unchecked) == ((), False, NAMES)
    assert report.reason
    (finding,) = checked([cameras[0], *cameras[:3]], nobody).findings
    assert finding.fault == "duplicate"


def test_cameras_of_static_calibrated_views_are_returned(tmp_path: Path) -> None:
    write_scene(tmp_path / "videos")
    (tmp_path / "rig.json").write_text(rig_json("cam01", "cam02"))
    scene = open_scene(tmp_path / "videos", calibration=tmp_path / "rig.json")
    assert scene.is_static_rig
    cameras = calibrated_cameras(PixelEvidence(scene))
    assert [camera.center[0] for camera in cameras] == [0.0, -1.0]
    np.testing.assert_allclose(cameras[0].lens.intrinsics, [[60, 0, 32], [0, 60, 24], [0, 0, 1]])
    assert not replace(scene, views=scene.views[:1]).is_static_rig
    assert not open_scene(tmp_path / "videos").is_static_rig
