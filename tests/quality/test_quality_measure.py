"""Measurement of results: instants, agreement of views, flicker, large maps, one view, pictures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import page4d
from page4d.errors import InputError
from page4d.lab.synthetic.write import write_capture
from page4d.output.reader import open_output
from page4d.output.record import NetworkRecord
from page4d.quality import measure as measure_module
from page4d.quality.grade import grade
from page4d.quality.measure import measure
from page4d.quality.record import QualityReport
from page4d.records import Predictions
from tests.quality.runs_without_truth import CAPTURE, write_run


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_run(tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def report(exact: tuple[Path, Path]) -> QualityReport:
    return page4d.report(exact[1], exact[0])


def scaled_view(factor: float, view: int = 1) -> object:
    """Return a disturbance that multiplies the depth of a view."""

    def disturb(_: int, predictions: Predictions) -> Predictions:
        depth = predictions.depth.clone()
        depth[:, :, view] *= factor
        return replace(predictions, depth=depth)

    return disturb


def flickering(_: int, predictions: Predictions) -> Predictions:
    """Multiply the depth of the first view by 1.1 at every second instant; nothing moves."""
    depth = predictions.depth.clone()
    for place, time in enumerate(predictions.times.tolist()):
        depth[:, place, 0] *= 1.1 if round(time * CAPTURE.fps) % 2 else 1.0
    return replace(predictions, depth=depth, dynamic=torch.zeros_like(predictions.depth, dtype=torch.float32))


def test_true_depth_agrees(report: QualityReport) -> None:
    assert report.overall.contradicted < 0.03
    assert report.overall.photo_gain > 0.3
    assert report.grade.letter in "AB"
    for view in report.views:
        assert view.confirmed + view.contradicted + view.single == pytest.approx(1.0)
    weighted = [share for view in report.views for row in view.regions for share in row if share is not None]
    assert 0 <= min(weighted) <= max(weighted) <= 1


def test_a_view_with_wrong_depth_is_the_one_that_does_not_agree(
    tmp_path: Path, exact: tuple[Path, Path], report: QualityReport
) -> None:
    scene, out = write_run(tmp_path, scaled_view(0.7), scene=exact[0])
    wrong = page4d.report(out, scene)
    assert wrong.grade.expected_error > 1.3 * report.grade.expected_error
    contradicted = {view.view: view.contradicted for view in wrong.views}
    assert max(contradicted, key=contradicted.__getitem__) == "cam02"
    assert wrong.grade.reasons


def test_depth_below_the_confidence_of_points_is_not_graded(tmp_path: Path, exact: tuple[Path, Path]) -> None:
    def unsure(_: int, predictions: Predictions) -> Predictions:
        depth, confidence = predictions.depth.clone(), predictions.depth_confidence.clone()
        depth[..., :48] *= 0.7
        confidence[..., :48] = 0.2
        return replace(predictions, depth=depth, depth_confidence=confidence)

    output = open_output(write_run(tmp_path, unsure, scene=exact[0])[1])
    with_all = page4d.report(output)
    output.run.settings["points"]["min_confidence"] = 0.25
    without = page4d.report(output)
    assert with_all.overall.with_depth == pytest.approx(1.0, abs=0.02)
    assert without.overall.with_depth == pytest.approx(0.5, abs=0.02)
    assert without.grade.expected_error < 0.8 * with_all.grade.expected_error


def test_flicker_is_the_relative_deviation_of_static_depth(tmp_path: Path, exact: tuple[Path, Path]) -> None:
    _, out = write_run(tmp_path, flickering, scene=exact[0])
    report = page4d.report(out)
    first, *others = report.views
    expected = float(torch.tensor([1.0, 1.1, 1.0]).log().std())
    assert first.flicker == pytest.approx(expected, rel=0.02)
    assert all(view.flicker is not None and view.flicker < 1e-3 for view in others)
    assert any("varies by" in reason.found for reason in report.grade.reasons)


def test_without_pictures_the_rest_is_equal(exact: tuple[Path, Path], report: QualityReport) -> None:
    without = page4d.report(page4d.open_output(exact[1]))
    assert without.overall.photo_gain is None
    assert without.overall.confirmed == report.overall.confirmed
    assert any("--scene" in note for note in without.notes)


def test_large_maps_are_sampled(exact: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    scene, out = exact
    output = open_output(out)
    full = measure(output, str(scene))
    monkeypatch.setattr(measure_module, "MAX_SIDE", 48)
    small = measure(output, str(scene))
    assert small.example.frames[0].view.size == (36, 48)
    for one, other in zip(full.pairs, small.pairs, strict=True):
        assert one.confirmed == pytest.approx(other.confirmed, abs=0.06)
        assert one.residual_px == pytest.approx(other.residual_px, rel=0.5, abs=0.3)


def test_one_view_has_nothing_to_compare(tmp_path: Path) -> None:
    scene, out = write_run(tmp_path, capture=replace(CAPTURE, num_views=1))
    report = page4d.report(out, scene)
    assert report.pairs == ()
    assert report.views[0].single == 1.0
    assert "one view" in report.grade.reasons[0].found


def test_videos_of_another_capture_are_refused(tmp_path: Path, exact: tuple[Path, Path]) -> None:
    write_capture(replace(CAPTURE, seed=9), tmp_path / "scene")
    with pytest.raises(InputError, match="not the file of the run"):
        page4d.report(exact[1], tmp_path / "scene")


@pytest.mark.parametrize("trained", [True, False])
def test_the_document_is_plain_json(trained: bool, report: QualityReport, exact: tuple[Path, Path]) -> None:
    record = open_output(exact[1]).run
    noise = record.model_copy(update={"network": NetworkRecord(name="net", trained=trained)})
    noise = noise.model_copy(update={"settings": {**noise.settings, "depth": None}})
    graded = replace(report, grade=grade(report.overall, report.pairs, noise))
    document = json.loads(json.dumps(graded.document(), allow_nan=False))
    assert (None in [reason["factor"] for reason in document["grade"]["reasons"]]) is not trained
    assert set(document) == {
        *("out", "scene", "num_times", "instants", "views", "pairs", "overall", "grade", "notes")
    }
    assert len(document["pairs"]) == 6
