"""A real calibrated rig: static cameras in metres."""

from pathlib import Path

import pytest
import torch

from page4d.options import ReconstructSettings, SceneOptions
from page4d.output.reader import open_output
from page4d.run.predictor import MeasuredDepth
from page4d.run.reconstruct import reconstruct
from page4d.scene.open import open_scene

TABLETOP = Path(__file__).parents[2].parent / "shared" / "scenes" / "tabletop"


@pytest.mark.skipif(not TABLETOP.is_dir(), reason=f"no real capture in {TABLETOP}")
def test_a_calibrated_real_rig_is_static_and_metric(tmp_path: Path):
    truth = TABLETOP / "truth"
    options = SceneOptions(
        calibration=truth / "cameras.json", depth=truth / "depth", masks=truth / "dynamic", image_fps=30
    )
    scene = open_scene(TABLETOP, options)
    settings = ReconstructSettings(long_side=64, chunk=6, overlap=2, preview=False)
    record = reconstruct(scene, MeasuredDepth(scene), out=tmp_path, settings=settings)
    assert record.unit == "metre"
    cameras = open_output(tmp_path).cameras.world_to_camera
    for view, calibrated in enumerate(scene.views):
        assert calibrated.camera is not None
        assert torch.equal(cameras[:, view], calibrated.camera.world_to_camera.expand(12, 4, 4))
    assert all(chunk.seam is not None and chunk.seam.residual < 1e-6 for chunk in record.chunks[1:])
