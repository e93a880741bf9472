"""Forecasts of the time of a run, from the rates of earlier runs."""

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from page4d.run import time as run_time
from page4d.run.chunk_source import ChunkSource, local_chunks
from page4d.run.journal import Journal
from page4d.run.memory import Cost
from page4d.run.plan import RunPlan, plan_run
from page4d.run.reconstruct import reconstruct
from page4d.run.time import StageRates, checkpoint_seconds, forecast_time, record_rates
from page4d.scene.records import with_instants
from tests.run.test_reconstruct import CAPTURE, SETTINGS
from tests.run.truth import TruthPredictor


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def planned(**changes: object) -> RunPlan:
    return plan_run(CAPTURE.scene(), TruthPredictor(CAPTURE, settings=replace(SETTINGS, **changes)))


def test_the_rates_of_a_run_are_those_of_the_next_forecast(tmp_path: Path) -> None:
    plan = planned()
    assert forecast_time(plan) is None
    record_rates(plan, {"clean": 7.0, "write": 12.0, "predict": 0.1, "preview": 3.0})
    again = forecast_time(plan)
    assert set(again.seconds) == {*StageRates.model_fields, "decode"}
    assert again.seconds["clean"] == pytest.approx(7.0)
    assert again.seconds["write"] == pytest.approx(12.0)
    assert again.total >= 12.0
    # A stage that is too short to say much keeps its rate, and so does one that did not run.
    record_rates(plan, {"clean": 0.2})
    assert forecast_time(plan).seconds == again.seconds
    for file in (tmp_path / "cache" / "page4d").iterdir():
        file.write_text("{")
    assert forecast_time(plan) is None


def test_time_grows_with_the_work() -> None:
    plan = planned()
    record_rates(plan, {"clean": 7.0, "write": 12.0})
    third = forecast_time(replace(plan, scene=with_instants(plan.scene, range(3))))
    assert third.seconds["write"] == pytest.approx(4.0)
    assert forecast_time(planned(preview=False)).seconds["preview"] == 0
    assert forecast_time(planned(fuse=False)).seconds["clean"] == 0


def test_the_rate_of_detail_is_averaged_with_the_earlier_one() -> None:
    """What moves in a capture changes it by more than the machine does."""
    plan = planned()
    plan = replace(plan, forecast=replace(plan.forecast, fine_size=(240, 320)))
    expected = plan.forecast.detail_seconds()
    record_rates(plan, {"detail": 4 * expected})
    assert forecast_time(plan).seconds["detail"] == pytest.approx(2 * expected)
    record_rates(plan, {"detail": 2 * expected})
    assert forecast_time(plan).seconds["detail"] == pytest.approx(2 * expected)


def test_a_finished_run_records_its_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page4d.run.time._MIN_MEASURED_S", 1e-6)
    predictor = TruthPredictor(CAPTURE, settings=SETTINGS)
    taken = reconstruct(CAPTURE.scene(), predictor, out=tmp_path / "out").timings
    found = forecast_time(plan_run(CAPTURE.scene(), predictor))
    assert found.seconds["write"] == pytest.approx(taken["write"], rel=0.01)
    (file,) = (tmp_path / "cache" / "page4d").glob("measured_rates_*.json")
    assert set(json.loads(file.read_text())["rates"]) == set(StageRates.model_fields)


def test_a_run_whose_chunks_are_predicted_elsewhere_records_no_rates(tmp_path: Path) -> None:
    def elsewhere(plan: RunPlan, journal: Journal) -> AbstractContextManager[ChunkSource]:
        return local_chunks(plan, journal)

    predictor = TruthPredictor(CAPTURE, settings=SETTINGS)
    reconstruct(CAPTURE.scene(), predictor, out=tmp_path / "out", open_chunks=elsewhere)
    assert not list((tmp_path / "cache" / "page4d").glob("measured_rates_*.json"))


def test_a_checkpoint_takes_its_operations_at_the_rate_of_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    tflop_per_second = 0.1
    monkeypatch.setattr(run_time, "cost_of", lambda *_: Cost(0, 2 * 1024**3 / 1e12 / tflop_per_second))
    per_chunk = 1.5 * 7.61  # TFLOP of 16 images of 518x392 px
    assert checkpoint_seconds("da3-base", torch.device("cpu")) == pytest.approx(
        per_chunk / 4 / tflop_per_second, rel=0.01
    )
    assert checkpoint_seconds("vggt-commercial", torch.device("cpu")) is None
