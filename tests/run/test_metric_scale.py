"""Metric scale from one known distance between two cameras."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.choices import CameraMotion, ExistingOutput
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.output.reader import open_output
from page4d.output.rig_record import RegistrationRecord
from page4d.records import Predictions
from page4d.rig.length import known_length, metric_rig, metric_scene
from page4d.rig.records import RigRegistration
from page4d.run.reconstruct import reconstruct
from page4d.scene.open import UNKNOWN_UNIT
from page4d.scene.records import Scene
from tests.run.test_reconstruct import CAPTURE, SETTINGS, in_random_world, uncalibrated
from tests.run.truth import TruthPredictor

APART = float((CAPTURE.cameras.centers[0, 0] - CAPTURE.cameras.centers[0, 1]).norm())


def renamed(scene: Scene, *names: str) -> Scene:
    return replace(
        scene, views=tuple(replace(view, name=name) for view, name in zip(scene.views, names, strict=True))
    )


@pytest.mark.parametrize("motion", list(CameraMotion))
def test_a_known_length_makes_cameras_depth_and_points_metric(tmp_path: Path, motion: CameraMotion):
    settings = replace(SETTINGS, scale_from=f"cam01-cam02={APART:.9f}m", camera_motion=motion)
    scene = uncalibrated(CAPTURE.scene())
    record = reconstruct(scene, TruthPredictor(CAPTURE, in_random_world), out=tmp_path, settings=settings)
    assert (record.scale, record.unit, record.depth_scale) == (Scale.METRIC, "metre", 1000.0)
    assert record.scale_from.variation < 1e-6
    output = open_output(tmp_path)
    centers = torch.linalg.inv(output.cameras.world_to_camera)[..., :3, 3]
    torch.testing.assert_close((centers[:, 0] - centers[:, 1]).norm(dim=-1), torch.full((9,), APART).double())
    for view, name in enumerate(output.view_names):
        assert np.abs(output.depth(8, name) - CAPTURE.rendered(8, view).depth.numpy()).max() <= 0.0006
    assert "unit metre" in (tmp_path / "cameras/cam01.tum").read_text()
    resumed = reconstruct(
        scene, TruthPredictor(CAPTURE), out=tmp_path, settings=settings, existing=ExistingOutput.RESUME
    )
    assert resumed.scale_from == record.scale_from


@pytest.mark.parametrize(
    ("text", "metres"), [("a-b=1.25m", 1.25), ("a-b = 125 cm", 1.25), ("b-a=40mm", 0.04), ("a-b=10ft", 3.048)]
)
def test_distances_are_converted_to_metres(text: str, metres: float):
    known = known_length(renamed(uncalibrated(CAPTURE.scene()), "a", "b"), text)
    assert known.metres == pytest.approx(metres)


def test_view_names_may_contain_dashes():
    known = known_length(renamed(uncalibrated(CAPTURE.scene()), "rig-1", "rig-2"), "rig-1-rig-2=1m")
    assert (known.first, known.second) == ("rig-1", "rig-2")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cam01-cam09=1m", "names 'cam01-cam09', the views are cam01, cam02"),
        ("cam01-cam01=1m", "names 'cam01' twice"),
        ("cam01-cam02=0m", "a distance of 0 m"),
        ("cam01-cam02=-2cm", "a distance of -2 cm"),
        ("cam01-cam02=nanm", "a distance of nan m"),
        ("cam01-cam02=farm", "'far' is not a number"),
        ("cam01-cam02=1.25", "not a pair of views and a distance"),
        ("cam01-cam02=1.25km", "'1.25k' is not a number"),
    ],
)
def test_an_invalid_distance_is_refused_before_any_output(text: str, found: str, tmp_path: Path):
    settings = replace(SETTINGS, scale_from=text)
    with pytest.raises(UsageError, match=found):
        reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE), out=tmp_path / "out", settings=settings)
    assert not (tmp_path / "out").exists()


def test_a_distance_that_contradicts_a_metric_calibration_is_refused():
    scene = CAPTURE.scene()
    assert metric_scene(scene, known_length(scene, f"cam01-cam02={100 * APART:.1f}cm")) is scene
    with pytest.raises(UsageError, match=r"are 9 m apart, but .* m in true cameras"):
        known_length(scene, "cam01-cam02=9m")


def test_a_known_length_scales_a_calibration_and_its_measured_depth_to_metres():
    scene = replace(CAPTURE.scene(), scale=Scale.ARBITRARY)
    scaled = metric_scene(scene, known_length(scene, f"cam01-cam02={2 * APART}m"))
    assert scaled.scale is Scale.METRIC
    assert scaled.depth_levels == pytest.approx(scene.depth_levels / 2)
    torch.testing.assert_close(
        scaled.views[1].camera.world_to_camera[:3, 3], 2 * CAPTURE.cameras.world_to_camera[0, 1, :3, 3]
    )


def test_a_distance_of_calibrated_cameras_that_varies_is_a_warning_and_gives_the_unit():
    capture = SyntheticCapture(seed=5, num_views=2, num_times=4, image_size=(24, 32), moving_cameras=True)
    scene = replace(capture.scene(), scale=Scale.ARBITRARY, notices=(UNKNOWN_UNIT,))
    assert metric_scene(scene, known_length(scene, "cam01-cam02=1m")).notices == ()
    camera = scene.views[1].camera
    moving = camera.world_to_camera.clone()
    moving[:, :3, 3] *= torch.tensor([1.0, 1.1, 1.2, 1.3])[:, None]
    apart = replace(
        scene, views=(scene.views[0], replace(scene.views[1], camera=replace(camera, world_to_camera=moving)))
    )
    (notice,) = metric_scene(apart, known_length(apart, "cam01-cam02=1m")).notices
    assert "the distance between cam01 and cam02 varies by" in notice.text


def test_a_length_that_gives_no_scale_has_a_hint_to_another_length():
    scene = replace(CAPTURE.scene(), scale=Scale.ARBITRARY)
    at_one_place = replace(scene, views=tuple(replace(view, camera=scene.views[0].camera) for view in scene.views))
    nobody = RigRegistration(record=RegistrationRecord(asked="people", cameras=[], num_instants=0), cameras=[])
    for find in (
        lambda: metric_scene(at_one_place, known_length(scene, "cam01-cam02=1m")),
        lambda: metric_rig(nobody, scene.view_names, known_length(scene, "person=1.7m")),
    ):
        with pytest.raises((InputError, UsageError)) as raised:
            find()
        assert "two cameras that are apart" in raised.value.hint


def test_a_distance_between_coinciding_cameras_is_refused(tmp_path: Path):
    def together(_: int, part: Predictions) -> Predictions:
        poses = part.cameras.world_to_camera[:, :, :1].expand_as(part.cameras.world_to_camera)
        return replace(part, cameras=replace(part.cameras, world_to_camera=poses))

    settings = replace(SETTINGS, scale_from="cam01-cam02=1m")
    with pytest.raises(InputError, match="cam01 and cam02 coincide"):
        reconstruct(uncalibrated(CAPTURE.scene()), TruthPredictor(CAPTURE, together), out=tmp_path, settings=settings)


def test_a_distance_that_varies_over_time_is_a_warning(tmp_path: Path):
    capture = SyntheticCapture(seed=5, num_views=2, num_times=4, image_size=(24, 32))

    def breathing(_: int, part: Predictions) -> Predictions:
        poses = part.cameras.world_to_camera.clone()
        poses[0, :, 1, 0, 3] += torch.tensor([0.0, 0.8, 1.6, 2.4])
        return replace(part, cameras=replace(part.cameras, world_to_camera=poses))

    settings = replace(SETTINGS, scale_from="cam01-cam02=1m")
    scene = uncalibrated(capture.scene())
    record = reconstruct(scene, TruthPredictor(capture, breathing), out=tmp_path, settings=settings)
    assert any("the distance between cam01 and cam02 varies by" in text for text in record.warnings)
