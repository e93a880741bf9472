"""The warning of unlike footage on the screen, in JSON, and in `run.json`."""

import json
from pathlib import Path

import pytest

from page4d.run.predictor import NetworkPredictor
from tests.cli.clips import write_scene


def test_the_warning_is_printed_and_json_has_the_graded_values(
    tmp_path: Path, reconstruct, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = NetworkPredictor.predict

    def doubtful(self, batch, memory=None):
        return predict(self, batch, memory)._replace(ood={"doubt": 2.5, "depth_gap": float("inf")}, kept=())

    monkeypatch.setattr(NetworkPredictor, "predict", doubtful)
    ended = reconstruct(write_scene(tmp_path / "scene"), tmp_path / "out", "--json", "--no-preview")
    assert ended.code == 0
    warning = "this footage is unlike the network's training set (far: inconsistent depth between views, low depth"
    assert f"warning: {warning}" in ended.err
    assert "warning: held-out pixels do not support the refined cameras" in ended.err
    (chunk, *_) = json.loads(ended.out)["chunks"]
    assert chunk["domain"] == {"indicators": {"doubt": 2.5, "depth_gap": None}, "camera_disagreement_deg": None}
    assert chunk["refined"] == []
