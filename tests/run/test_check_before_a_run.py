"""Residuals between predicted and calibrated cameras, and the camera at fault."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from page4d.choices import ExistingOutput, Poses
from page4d.geometry.camera import Cameras
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.records import Predictions
from page4d.run.reconstruct import reconstruct
from page4d.run.rig_residuals import compare_rigs
from page4d.scene.records import Scene
from tests.run.test_reconstruct import SETTINGS, in_random_world
from tests.run.test_static_rig import shaken
from tests.run.truth import TruthPredictor, exact_predictions, random_similarity

CAPTURE = SyntheticCapture(seed=4, num_views=4, num_times=6, image_size=(24, 32))


def rig() -> Cameras:
    return exact_predictions(CAPTURE).cameras[0]


def turned(cameras: Cameras, view: int, radians: float, shift: float = 0.0) -> Cameras:
    """Turn a view's camera about its centre, and shift it."""
    turn = matrix_from_rotation_vector(torch.tensor([0.0, radians, 0.0], dtype=torch.float64))
    poses = cameras.world_to_camera.clone()
    poses[:, view] = rigid(turn, torch.tensor([shift, 0.0, 0.0], dtype=torch.float64)) @ poses[:, view]
    return replace(cameras, world_to_camera=poses)


@pytest.mark.parametrize("seed", range(3))
def test_rigs_that_differ_by_a_similarity_have_no_residuals(seed: int):
    moved = replace(rig(), world_to_camera=random_similarity(seed).apply_to_cameras(rig().world_to_camera))
    longer = moved.intrinsics.clone()
    longer[..., :2, :2] *= 1.1
    found = compare_rigs(replace(moved, intrinsics=longer), rig(), CAPTURE.view_names, range(4))
    assert max(found.rotation_deg) < 1e-6
    assert max(found.distance) < 1e-6
    assert found.focal_percent == pytest.approx([10.0] * 4)
    assert found.at_fault is None


@pytest.mark.parametrize("view", range(4))
@pytest.mark.parametrize(("degrees", "shift"), [(8.0, 0.0), (0.0, 0.6)])
def test_the_camera_at_fault_is_named_with_its_error(view: int, degrees: float, shift: float):
    noisy = shaken(exact_predictions(CAPTURE), view, 0.002).cameras[0]
    found = compare_rigs(
        replace(noisy, world_to_camera=random_similarity(view).apply_to_cameras(noisy.world_to_camera)),
        turned(rig(), view, degrees * torch.pi / 180, shift),
        CAPTURE.view_names,
        range(4),
    )
    assert found.at_fault == CAPTURE.view_names[view]
    assert found.rotation_deg[view] == pytest.approx(degrees, abs=1.0)
    assert found.distance[view] == pytest.approx(shift, abs=0.1)
    others = [other for other in range(4) if other != view]
    assert max(found.rotation_deg[other] for other in others) < 1.0


def test_no_camera_is_at_fault_where_all_are_noisy():
    for seed in range(5):
        noisy = shaken(exact_predictions(CAPTURE), seed, 0.1).cameras[0]
        assert compare_rigs(noisy, rig(), CAPTURE.view_names, range(4)).at_fault is None


def test_residuals_of_negative_focal_lengths_are_finite():
    mirrored = rig().intrinsics.clone()
    mirrored[..., 0, 0] *= -1
    found = compare_rigs(replace(rig(), intrinsics=mirrored), rig(), CAPTURE.view_names, range(4))
    assert found.focal_percent == pytest.approx([0.0] * 4)


def test_of_two_cameras_neither_is_at_fault():
    assert compare_rigs(turned(rig(), 0, 0.3)[:, :2], rig()[:, :2], CAPTURE.view_names[:2], range(2)).at_fault is None


def miscalibrated(scene: Scene, view: int) -> Scene:
    views = list(scene.views)
    camera = views[view].camera
    turn = matrix_from_rotation_vector(torch.tensor([0.0, 0.15, 0.0], dtype=torch.float64))
    pose = rigid(turn, torch.zeros(3, dtype=torch.float64)) @ camera.world_to_camera.double()
    views[view] = replace(views[view], camera=replace(camera, world_to_camera=pose))
    return replace(scene, views=tuple(views))


@pytest.mark.parametrize("poses", list(Poses))
def test_a_run_warns_of_the_camera_at_fault_with_its_residuals(tmp_path: Path, poses: Poses):
    settings = replace(SETTINGS, poses=poses)
    scene = miscalibrated(CAPTURE.scene(), 2)
    record = reconstruct(scene, TruthPredictor(CAPTURE, in_random_world), out=tmp_path, settings=settings)
    agreement = record.calibration_residuals
    assert agreement.at_fault == "cam03"
    assert agreement.cameras[2].rotation_deg == pytest.approx(8.6, abs=0.1)
    (warning,) = [text for text in record.warnings if "either may be wrong" in text]
    assert "the network predicts cam03 elsewhere than the calibration, by 8.6 deg and" in warning
    resume = ExistingOutput.RESUME
    again = reconstruct(scene, TruthPredictor(CAPTURE), out=tmp_path, settings=settings, existing=resume)
    assert again.calibration_residuals == agreement


def test_predicted_cameras_that_agree_with_the_rig_are_metric_and_static(tmp_path: Path):
    def disturb(start: int, part: Predictions) -> Predictions:
        return shaken(part, start, 0.002).transformed(random_similarity(start))

    settings = replace(SETTINGS, poses=Poses.PREDICTED)
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, disturb), out=tmp_path, settings=settings)
    assert (record.scale, record.rig.cameras) == ("metric", "static")
    assert record.calibration_residuals.at_fault is None
    assert all(camera.share is not None and camera.share < 0.02 for camera in record.calibration_residuals.cameras)
