"""The check of a calibration in runs and in `inspect-scene`, with the check itself replaced."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from page4d.choices import ExistingOutput, Poses
from page4d.errors import CapabilityError, Level
from page4d.options import RegisterSettings
from page4d.output.reader import open_output
from page4d.output.record import AgreementRecord, CameraResidualRecord
from page4d.output.rig_record import CalibrationCheckRecord, FindingRecord, PairFitRecord
from page4d.rig import calibration_check as scene_check
from page4d.rig import evidence
from page4d.rig.camera_motion import ViewMotion
from page4d.rig.evidence import PixelEvidence
from page4d.run import registration as people_check
from page4d.run.reconstruct import reconstruct
from page4d.run.summary import calibration_notice
from page4d.scene.records import Scene
from page4d_cli.app import run
from tests.cli.clips import rig, write_scene
from tests.run.test_reconstruct import CAPTURE, SETTINGS, bytes_of, resumed, uncalibrated
from tests.run.truth import TruthPredictor

FINDING = FindingRecord(
    fault="swapped",
    views=("cam01", "cam02"),
    certainty="certain",
    what="cam01 and cam02 are swapped",
    fix="rename the cameras in the calibration, or the videos",
    score=0.1,
    better_score=0.7,
)
PAIR = PairFitRecord(views=("cam01", "cam02"), evidence="people", score=0.1, num_instants=30, fits=False)
FITS = PAIR.model_copy(update={"score": 0.8, "fits": True})
FOUND = CalibrationCheckRecord(findings=(FINDING,), pairs=(PAIR,), clocks=("cam02: late",), num_instants=40)


CHECK_SCENE = scene_check.check_scene


class FakeCheck:
    """Returns `found`, or raises it; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.found: CalibrationCheckRecord | Exception = FOUND

    def __call__(self, pixels: PixelEvidence) -> CalibrationCheckRecord:
        self.calls += 1
        pixels.progress(1, 2, "checking: cameras")
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture(autouse=True)
def fake(monkeypatch) -> FakeCheck:
    found = FakeCheck()
    for module in (people_check, scene_check):
        monkeypatch.setattr(module, "check_scene", found)
    moving = ViewMotion(view="cam02", is_static=False)
    monkeypatch.setattr(evidence, "measure_camera_motion", lambda *_: (moving,))
    return found


def result(out: Path, existing=ExistingOutput.REFUSE, scene: Scene | None = None, **changes):
    scene, settings = scene or CAPTURE.scene(), replace(SETTINGS, check_calibration=True)
    return reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=settings, existing=existing, **changes)


def test_a_scene_with_a_stride_is_checked_at_all_instants_of_its_range(monkeypatch):
    """People are compared at 12 common instants and more, which the instants of a short run with a stride are not."""
    whole = CAPTURE.scene()
    kept = slice(0, -1, 2)
    views = tuple(replace(view, indices=view.indices[kept]) for view in whole.views)
    strided = replace(whole, views=views, times=whole.times[kept])
    checked = Mock(return_value=())
    monkeypatch.setattr(scene_check, "check_clocks", checked)
    monkeypatch.setattr(scene_check, "check_calibration", Mock(return_value=CalibrationCheckRecord()))
    CHECK_SCENE(PixelEvidence(strided, RegisterSettings(), Mock()))
    assert len(checked.call_args.args[3]) == 2 * strided.num_times - 1


def test_faults_are_warnings_and_recorded(tmp_path):
    record = result(tmp_path / "out")
    assert record.calibration_check.findings[0].views == ("cam01", "cam02")
    assert open_output(tmp_path / "out").run.calibration_check == record.calibration_check
    assert any("cam01 and cam02 are swapped (certain); rename" in text for text in record.warnings)
    assert "cam02: late" in record.warnings
    assert record.timings["check"] >= 0


def test_a_resumed_run_keeps_the_check(tmp_path, fake: FakeCheck):
    again = resumed(result, out=tmp_path / "out", instants=9)
    assert fake.calls == 1
    whole = result(tmp_path / "whole")
    assert again.calibration_check == whole.calibration_check
    assert again.warnings == whole.warnings
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("case", ["off", "no calibration"])
def test_without_need_nothing_is_checked(tmp_path, fake: FakeCheck, case: str):
    scene = uncalibrated(CAPTURE.scene()) if case == "no calibration" else None
    record = result(tmp_path / "out", scene=scene, check_calibration=case != "off")
    assert (record.calibration_check, fake.calls) == (None, 0)


def test_motion_and_equal_cameras_are_named_without_the_pose_model(tmp_path, monkeypatch):
    monkeypatch.setattr(people_check, "check_scene", CHECK_SCENE)
    monkeypatch.setattr(scene_check, "is_fetched", lambda: False)
    scene = CAPTURE.scene()
    first, second, *others = scene.views
    record = result(
        tmp_path / "out", scene=replace(scene, views=(first, replace(second, camera=first.camera), *others))
    )
    assert [finding.fault for finding in record.calibration_check.findings] == ["duplicate"]
    assert any(text.startswith("cam02 moves, but its calibration has one pose") for text in record.warnings)


def test_the_check_records_the_pose_model_and_its_instants(monkeypatch):
    monkeypatch.setattr(scene_check, "is_fetched", lambda: True)
    monkeypatch.setattr(scene_check, "model_sha256", lambda: "0" * 64)
    nobody = ((),) * CAPTURE.num_views
    monkeypatch.setattr(evidence, "detect_people", lambda *_: nobody)
    record = CHECK_SCENE(PixelEvidence(replace(CAPTURE, num_times=16).scene()))
    assert (record.pose_model, record.num_instants) == ("0" * 64, 16)
    assert record.seconds.keys() == {"keypoints", "cameras", "clocks"}
    assert record.unconfirmed == CAPTURE.scene().view_names


def test_camera_motion_is_measured_once_for_the_check_and_the_rig(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(evidence, "measure_camera_motion", lambda *_: calls.append(1) or ())
    record = result(tmp_path / "out", poses=Poses.PREDICTED)
    assert record.rig is not None
    assert record.timings["check"] >= 0
    assert len(calls) == 1


def test_a_check_that_fails_is_a_warning(tmp_path, fake: FakeCheck):
    fake.found = CapabilityError("no runner", "install it")
    record = result(tmp_path / "out")
    assert record.calibration_check is None
    assert "the calibration is not checked: no runner (install it)" in record.warnings


def test_a_fit_is_no_warning():
    record = CalibrationCheckRecord(pairs=(FITS,), unconfirmed=("cam03",), reason="no model", num_instants=5)
    (notice,) = people_check.check_notices(CAPTURE.scene(), record)
    assert notice.level is Level.INFO
    assert "not confirmed: cam03 (no model)" in notice.text


def test_the_network_is_a_weaker_witness_than_people():
    camera = CameraResidualRecord(view="cam01", rotation_deg=9.0, distance=0.2, share=0.1, focal_percent=0.0)
    agreement, scene = AgreementRecord(cameras=[camera], at_fault="cam01"), CAPTURE.scene()
    assert calibration_notice(scene, agreement, CalibrationCheckRecord(pairs=(FITS,))) is None
    assert calibration_notice(scene, agreement, FOUND) is None
    plain = calibration_notice(scene, agreement, CalibrationCheckRecord(unconfirmed=("cam01",), reason="no people"))
    conditioned = calibration_notice(scene, agreement, is_conditioned=True)
    assert "either may be wrong" in plain.text
    assert "an input of" in conditioned.text


def test_inspect_scene_prints_pairs_faults_and_motion(tmp_path, monkeypatch, capsys, fake: FakeCheck):
    monkeypatch.chdir(tmp_path)
    write_scene(Path("videos"))
    Path("rig.json").write_text(rig("cam01", "cam02", scale=None))
    words = ["inspect-scene", "videos", "--check"]
    assert run(words) == 2
    assert "--check without --calibration" in capsys.readouterr().err
    assert run([*words, "--calibration", "rig.json", "--views", "1"]) == 2
    capsys.readouterr()
    assert run([*words, "--calibration", "rig.json"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("cam01-cam02", "0.10", "are swapped (certain); rename", "cam02: late", "camera of cam02 moves"):
        assert text in printed
    assert run([*words, "--calibration", "rig.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"]["findings"][0]["fault"] == "swapped"
    assert document["moving_views"] == ["cam02"]
    reason = "the model was not fetched ('page4d weights get people')"
    fake.found = CalibrationCheckRecord(unconfirmed=("cam01",), reason=reason)
    assert run([*words, "--calibration", "rig.json"]) == 0
    assert "page4d weights get people" in " ".join(capsys.readouterr().out.split())
