"""Rigs of which evidence places some views only: their cameras are kept, the network gives the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.choices import ExistingOutput, Poses
from page4d.conventions import Scale
from page4d.errors import InputError, UsageError
from page4d.geometry.distortion import Distortion, LensModel
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import camera_centers
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import RunRecord
from page4d.output.rig_record import RegistrationRecord
from page4d.records import Predictions
from page4d.rig.camera_motion import ViewMotion
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import FocalSource, Lens, RigRegistration, placed_record
from page4d.run import registration
from page4d.run.reconstruct import reconstruct
from page4d.scene.records import Scene
from tests.run.test_mixed_rig import CAPTURE, MixedTruth
from tests.run.test_reconstruct import bytes_of, resumed, uncalibrated
from tests.synthetic.scenes import maps_on

UNIT = 0.5
"""Units of the registered rig per metre."""

PLACED = (0, 2, 3)
SETTINGS = ReconstructSettings(chunk=4, overlap=2, preview=False, check_calibration=False, long_side=40)
CAMERAS = [view.camera for view in CAPTURE.scene().views if view.camera is not None]
TRUE = torch.stack([camera.world_to_camera.reshape(-1, 4, 4)[0].double() for camera in CAMERAS])
APART = float((camera_centers(TRUE[0]) - camera_centers(TRUE[2])).norm())


def placed_in(pixels: PixelEvidence, _: object) -> RigRegistration:
    """Place three of four views by the truth, in another unit; the first one has a distorted lens."""
    records, cameras = [], []
    for index, view in enumerate(pixels.scene.views):
        pose = (TRUE[index] @ torch.linalg.inv(TRUE[0])).numpy()
        pose[:3, 3] *= UNIT
        lens = Lens(
            intrinsics=CAMERAS[index].intrinsics.double().numpy(),
            image_size=view.source.size,
            distortion=Distortion(model=LensModel.BROWN_CONRADY, coefficients=(0.01, 0.0, 0.0, 0.0))
            if index == 0
            else None,
            focal_source=FocalSource.OPTION,
        )
        is_placed = index in PLACED
        records.append(placed_record(view.name, lens, "" if is_placed else "no pair with common evidence"))
        cameras.append(lens.camera(pose) if is_placed else None)
    record = RegistrationRecord(asked=pixels.settings.register, cameras=records, num_instants=6)
    return RigRegistration(record=record, cameras=cameras)


MEASURED: list[object] = []
"""Sources of the present run whose motion was measured."""


@pytest.fixture(autouse=True)
def evidence(monkeypatch) -> None:
    motions = tuple(ViewMotion(view=name, is_static=True, share=0.9) for name in CAPTURE.scene().view_names)
    monkeypatch.setattr(registration, "register_rig", placed_in)
    MEASURED.clear()

    def measure(scene: Scene, _: object) -> tuple[ViewMotion, ...]:
        assert all(scene.views[0].source is not source for source in MEASURED), "measured twice"
        MEASURED.append(scene.views[0].source)
        return motions

    monkeypatch.setattr("page4d.rig.evidence.measure_camera_motion", measure)


def run(out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, disturb=lambda _, found: found, **changes):
    scene, predictor = uncalibrated(CAPTURE.scene()), MixedTruth(CAPTURE, disturb)
    MEASURED.clear()
    return reconstruct(scene, predictor, out=out, settings=SETTINGS, existing=existing, **changes)


def sources(record: RunRecord) -> list[str]:
    return [camera.source for camera in record.registration.cameras]


def test_placed_cameras_are_kept_and_the_network_fills_in(tmp_path):
    record = run(tmp_path / "out")
    assert sources(record) == ["evidence", "network", "evidence", "evidence"]
    assert any("those of the network are used for cam02" in warning for warning in record.warnings)
    assert record.scale is Scale.ARBITRARY
    assert record.views[0].undistorted is not None
    output = open_output(tmp_path / "out")
    expected = TRUE @ torch.linalg.inv(TRUE[0])
    expected[:, :3, 3] *= UNIT
    found = output.cameras.world_to_camera
    assert torch.equal(found[:, PLACED], expected[None, list(PLACED)].expand(6, -1, -1, -1))
    torch.testing.assert_close(found[:, 1], expected[None, 1].expand(6, -1, -1), rtol=0, atol=1e-4)
    depth, view = output.depth(5, "cam02"), 1
    truth = UNIT * maps_on(CAPTURE, 5, view, output_transform(view))["depth"].numpy()
    assert np.abs(depth - truth[: depth.shape[0], : depth.shape[1]])[depth > 0].max() < 0.002


def output_transform(view: int):
    from page4d.geometry.pixels import fit_views

    return fit_views([CAPTURE.view_sizes[view]], 40, 4)[0]


def test_a_resumed_run_writes_the_same_bytes(tmp_path):
    run(tmp_path / "whole")
    resumed(run, out=tmp_path / "part", instants=3)
    assert bytes_of(tmp_path / "part") == bytes_of(tmp_path / "whole")


def test_a_distance_between_placed_cameras_gives_metres(tmp_path):
    record = run(tmp_path / "out", scale_from=f"cam01-cam03={APART:.9f}m")
    assert record.scale is Scale.METRIC
    assert record.scale_source == "distance"
    centers = torch.linalg.inv(open_output(tmp_path / "out").cameras.world_to_camera)[..., :3, 3]
    assert float((centers[0, 0] - centers[0, 2]).norm()) == pytest.approx(APART)


@pytest.mark.parametrize(
    "changes", [{"scale_from": "cam01-cam02=1m"}, {"poses": Poses.PREDICTED, "register": "people"}]
)
def test_all_cameras_are_the_networks_where_the_placed_ones_do_not_fit(
    tmp_path, changes: dict[str, object], monkeypatch
):
    monkeypatch.setattr(registration, "is_fetched", lambda: True)
    record = run(tmp_path / "out", **changes)
    assert sources(record) == ["network"] * 4
    assert any("those of the network are used for all views" in warning for warning in record.warnings)


def test_the_scale_of_wrong_predicted_cameras_is_that_of_depth(tmp_path):
    """The predicted cameras of placed views are exchanged and their distances 3 times as large."""

    def wrong(_: int, predictions: Predictions) -> Predictions:
        poses = predictions.cameras.world_to_camera[:, :, [3, 1, 0, 2]].clone()
        poses[..., :3, 3] *= 3
        return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=poses))

    run(tmp_path / "out", disturb=wrong)
    depth = open_output(tmp_path / "out").depth(0, "cam03")
    truth = UNIT * maps_on(CAPTURE, 0, 2, output_transform(2))["depth"].numpy()[: depth.shape[0], : depth.shape[1]]
    ratio = float(np.median(depth[depth > 0] / truth[depth > 0]))
    assert ratio == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("is_registered", [True, False])
def test_predicted_cameras_accuse_calibrated_ones_but_not_registered_ones(tmp_path, monkeypatch, is_registered: bool):
    """The network turns one camera by 30 degrees."""

    def turned(_: int, predictions: Predictions) -> Predictions:
        poses = predictions.cameras.world_to_camera.clone()
        poses[:, :, 1, :3] = matrix_from_rotation_vector(poses.new_tensor([0, 0.5, 0])) @ poses[:, :, 1, :3]
        return replace(predictions, cameras=replace(predictions.cameras, world_to_camera=poses))

    monkeypatch.setitem(globals(), "PLACED", (0, 1, 2, 3))
    scene = uncalibrated(CAPTURE.scene()) if is_registered else CAPTURE.scene()
    record = reconstruct(scene, MixedTruth(CAPTURE, turned), out=tmp_path / "out", settings=SETTINGS)
    assert record.calibration_residuals is not None
    accused = any("predicts cam02 elsewhere than the calibration" in warning for warning in record.warnings)
    assert accused is not is_registered


def half_calibrated(known: tuple[int, ...], scale: Scale = Scale.METRIC) -> Scene:
    """Return the scene with the true cameras of some views."""
    scene = replace(CAPTURE.scene(), calibration="rig.json", scale=scale)
    views = [view if place in known else replace(view, camera=None) for place, view in enumerate(scene.views)]
    return replace(scene, views=tuple(views))


def placed_around(factor: float, places: tuple[int, ...]):
    """Return a registration that keeps known cameras and places others, in a unit that is larger about the first."""

    def register(pixels: PixelEvidence, _: object) -> RigRegistration:
        records, cameras = [], []
        first = next(place for place, view in enumerate(pixels.scene.views) if view.camera is not None)
        center = camera_centers(TRUE[first])
        for place, view in enumerate(pixels.scene.views):
            lens = replace(pixels.lenses[place], intrinsics=CAMERAS[place].intrinsics.double().numpy())
            pose = TRUE[place].clone()
            pose[:3, 3] = -pose[:3, :3] @ (center + factor * (camera_centers(TRUE[place]) - center))
            is_placed = place in places and view.camera is None
            record = placed_record(view.name, lens, "" if is_placed or view.camera else "no common evidence")
            records.append(record.model_copy(update={"source": "calibration"}) if view.camera else record)
            cameras.append(lens.camera(pose.numpy()) if is_placed else view.camera)
        record = RegistrationRecord(asked=pixels.settings.register, cameras=records, num_instants=6)
        return RigRegistration(record=record, cameras=cameras)

    return register


@pytest.mark.parametrize(
    ("known", "places", "unit", "length", "source"),
    [
        ((0, 2), (3,), 1.0, None, "calibration"),
        ((0, 2), (), 1.0, None, "calibration"),
        ((0,), (1, 2, 3), UNIT, None, None),
        ((2,), (0, 1, 3), UNIT, f"cam01-cam03={APART:.15f}m", "distance"),
    ],
)
def test_views_are_registered_in_the_world_of_calibrated_ones(
    known: tuple[int, ...],
    places: tuple[int, ...],
    unit: float,
    length: str | None,
    source: str | None,
    tmp_path,
    monkeypatch,
):
    """Calibrated cameras stay; without two of them the unit is that of a length, or arbitrary."""
    monkeypatch.setattr(registration, "register_rig", placed_around(unit, places))
    scene, predictor = half_calibrated(known), MixedTruth(CAPTURE)
    changes = {} if length is None else {"scale_from": length}
    record = reconstruct(scene, predictor, out=tmp_path / "out", settings=SETTINGS, **changes)
    expected = [
        "calibration" if place in known else "evidence" if place in places else "network" for place in range(4)
    ]
    assert sources(record) == expected
    assert (record.scale, record.scale_source) == (Scale.METRIC if source else Scale.ARBITRARY, source)
    found = open_output(tmp_path / "out").cameras.world_to_camera[0]
    assert torch.equal(found[list(known)], TRUE[list(known)])
    factor = 1.0 if source else unit
    centers, first = camera_centers(found), camera_centers(TRUE[known[0]])
    right = first + factor * (camera_centers(TRUE) - first)
    torch.testing.assert_close(centers[list(places)], right[list(places)], rtol=0, atol=1e-9)
    torch.testing.assert_close(centers, right, rtol=0, atol=1e-3)
    texts = record.warnings
    assert any("gives no scale" in text for text in texts) == (source is None)
    assert any("those of the network are used for cam02" in text for text in texts) == ("network" in expected)
    assert record.scene.calibration.startswith("rig.json")


def test_a_length_scales_another_world_than_that_of_a_single_calibrated_camera_about_its_origin(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(registration, "register_rig", placed_around(UNIT, (0, 1, 3)))
    predictor, changes = MixedTruth(CAPTURE), {"world": "first-camera"}
    length = f"cam01-cam03={APART:.15f}m"
    reconstruct(
        half_calibrated((2,)), predictor, out=tmp_path / "out", settings=SETTINGS, scale_from=length, **changes
    )
    found = open_output(tmp_path / "out").cameras.world_to_camera[0]
    torch.testing.assert_close(found, TRUE @ torch.linalg.inv(TRUE[0]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("known", "changes", "message"),
    [
        ((0,), {}, "registration in the world of rig.json fails"),
        ((0, 2), {"register": "texture"}, "registration in the world of rig.json fails"),
        ((0, 2), {"poses": Poses.PREDICTED}, "rig.json lacks views"),
        ((0, 2), {"scale_from": "person=1.7m"}, "rig.json is in metres"),
        ((0,), {"register": "network"}, "cam01 alone in rig.json gives the cameras of the network no scale"),
        ((0,), {"camera_motion": "moving"}, "cam01 alone in rig.json gives the cameras of the network no scale"),
        ((0, 2), {"focal": "cam01=50"}, "cam01 has its lens from rig.json"),
    ],
)
def test_a_calibration_of_some_views_that_cannot_be_completed_is_refused(
    known: tuple[int, ...], changes: dict[str, object], message: str, tmp_path, monkeypatch
):
    monkeypatch.setattr(registration, "register_rig", placed_around(1.0, ()))
    predictor = MixedTruth(CAPTURE)
    with pytest.raises((InputError, UsageError)) as raised:
        reconstruct(half_calibrated(known), predictor, out=tmp_path / "out", settings=SETTINGS, **changes)
    assert message in raised.value.message
    assert "give --calibration," not in f"{raised.value.hint},"


def test_a_calibration_of_all_views_leaves_nothing_to_register():
    with pytest.raises(UsageError, match=r"rig\.json has cameras of all views"):
        registration.register(half_calibrated((0, 1, 2, 3)), observer=None)
