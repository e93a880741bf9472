"""Runs of a calibrated rig that moves as one: its relative poses are kept, its motion is replaced by the true one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from page4d.choices import CameraMotion, ExistingOutput
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.formats.cameras_json import read_cameras_json
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import move_origin, rigid
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.records import Predictions
from page4d.rig import trajectory
from page4d.run.reconstruct import reconstruct
from tests.run.truth import TruthPredictor, random_similarity

CAPTURE = SyntheticCapture(seed=3, num_views=4, num_times=6, image_size=(18, 24))
SETTINGS = ReconstructSettings(chunk=4, overlap=2, preview=False, camera_motion=CameraMotion.MOVING)
STATIC = torch.stack([view.camera.world_to_camera.double() for view in CAPTURE.scene().views if view.camera])
TURNS = matrix_from_rotation_vector(torch.arange(6).double()[:, None] * torch.tensor([0.0, 0.1, 0.0]).double())
PATH = rigid(TURNS, torch.arange(6).double()[:, None] * torch.tensor([0.16, 0.0, 0.12]).double())
TRUE = STATIC[None] @ PATH[:, None]


def moving(start: int, found: Predictions) -> Predictions:
    """Return the cameras of the rig that moves, in another world and unit per chunk."""
    cameras = replace(found.cameras, world_to_camera=TRUE[None, start : start + found.num_times])
    return replace(found, cameras=cameras).transformed(random_similarity(start))


@pytest.fixture(autouse=True)
def known_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    none = np.zeros(4)
    found = SimpleNamespace(poses=PATH.numpy(), errors=[1e-3], add=lambda *_: None, known=none, fits=none)
    monkeypatch.setattr(trajectory, "extract_texture", lambda *_: ())
    monkeypatch.setattr(trajectory, "_Path", lambda *_: found)


def test_a_run_has_the_cameras_of_the_rig_at_every_instant(tmp_path: Path) -> None:
    record = reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, moving), out=tmp_path / "out", settings=SETTINGS)
    assert torch.equal(open_output(tmp_path / "out").cameras.world_to_camera, TRUE)
    assert (record.scale, record.scale_source) == (Scale.METRIC, "calibration")
    assert record.scene.calibration == "true cameras of the synthetic rig; its motion is from texture"
    assert {camera.source for camera in record.registration.cameras} == {"calibration"}
    assert record.calibration_check is None
    assert not record.warnings
    again = {"settings": SETTINGS, "existing": ExistingOutput.RESUME}
    assert reconstruct(CAPTURE.scene(), TruthPredictor(CAPTURE, moving), out=tmp_path / "out", **again) == record


def test_a_rig_that_moves_in_the_coordinates_of_a_survey_moves_in_the_camera_files(tmp_path: Path) -> None:
    offset = torch.tensor([500000.0, 5000000.0, 300.0]).double()
    given = {name: move_origin(pose, -offset) for name, pose in zip(CAPTURE.view_names, STATIC, strict=True)}
    scene = replace(CAPTURE.scene(), world_offset=tuple(offset.tolist()), surveyed=given)
    reconstruct(scene, TruthPredictor(CAPTURE, moving), out=tmp_path / "out", settings=SETTINGS)
    written = read_cameras_json(tmp_path / "out/cameras.json").world_to_camera
    torch.testing.assert_close(written, move_origin(TRUE, -offset), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("views", "changes", "message"),
    [
        (4, {"world": "first-camera"}, "of a rig that moves"),
        (4, {"world": "upright"}, "of a rig that moves"),
        (4, {"up": "y"}, "of a rig that moves"),
        (1, {}, "are at one point"),
    ],
)
def test_rigs_whose_motion_has_no_world_or_unit_are_refused(
    views: int, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    scene = replace(CAPTURE.scene(), views=CAPTURE.scene().views[:views])
    with pytest.raises(UsageError, match=message):
        reconstruct(
            scene, TruthPredictor(CAPTURE, moving), out=tmp_path / "out", settings=replace(SETTINGS, **changes)
        )
