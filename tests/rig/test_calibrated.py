"""Cameras of a calibrated scene."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from page4d.rig.check.calibration import calibrated_cameras
from page4d.rig.evidence import PixelEvidence
from page4d.scene.open import open_scene
from tests.cli.clips import write_scene
from tests.run.test_settings_act import rig


def test_cameras_of_static_calibrated_views_are_returned(tmp_path: Path) -> None:
    write_scene(tmp_path / "videos")
    (tmp_path / "rig.json").write_text(rig(scale="metric"))
    scene = open_scene(tmp_path / "videos", calibration=tmp_path / "rig.json")
    assert scene.is_static_rig
    cameras = calibrated_cameras(PixelEvidence(scene))
    assert [camera.center[0] for camera in cameras] == [0.0, -1.0]
    np.testing.assert_allclose(cameras[0].lens.intrinsics, [[60, 0, 32], [0, 60, 24], [0, 0, 1]])
    assert not replace(scene, views=scene.views[:1]).is_static_rig
    assert not open_scene(tmp_path / "videos").is_static_rig
