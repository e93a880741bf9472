"""Stop requests and the time budget are obeyed before the first step; a diverged run is not saved."""

import signal
import time

import pytest
import torch

from page4d.errors import InterruptedRunError, UsageError
from page4d.lab.training import train as training
from page4d.lab.training.config import TRAINING_PRESETS
from page4d.lab.training.logs import SilentTrainingObserver, read_metrics
from page4d.lab.training.schedule import Budget
from page4d.lab.training.train import TrainRequest, train
from tests.training.training_runs import train_tiny


def test_a_stop_request_before_the_first_step_is_obeyed_and_the_run_resumed(tmp_path):
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(samples=8))
    with pytest.raises(InterruptedRunError, match="interrupted after step 0") as caught:
        train(request, SilentTrainingObserver(), lambda: signal.SIGTERM)
    assert caught.value.exit_code == 143
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    with pytest.raises(InterruptedRunError, match="interrupted after step 0"):
        train(TrainRequest(out=request.out, resume=True), SilentTrainingObserver(), lambda: signal.SIGTERM)
    assert [line["kind"] for line in read_metrics(request.out / "metrics.jsonl")] == ["baselines"]


def test_the_time_budget_ends_a_run_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(training.SupervisedTraining, "_begin", lambda _: time.sleep(0.2))
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(seconds=0.1))
    with pytest.raises(UsageError, match=r"no step was complete after 0\.\d s"):
        train(request, SilentTrainingObserver(), lambda: None)


@pytest.mark.parametrize(("spoiled", "found"), [("gradient", "the last 5 of 7 steps"), ("weights", "after step 1")])
def test_a_diverged_run_ends_with_an_error_and_without_weights(spoiled: str, found: str, tmp_path, monkeypatch):
    take = training.SupervisedTraining._take

    def diverge(self: training.SupervisedTraining, *arguments: object) -> object:
        result = take(self, *arguments)
        parameter = next(self.state.network.parameters())
        with torch.no_grad():
            parameter[:] = float("nan") if spoiled == "weights" or self.state.position.step > 0 else parameter
        return result

    monkeypatch.setattr(training.SupervisedTraining, "_take", diverge)
    with pytest.raises(UsageError, match=f"the training diverged: .*{found}") as caught:
        train_tiny(tmp_path / "run", 1 if spoiled == "weights" else 7)
    assert "lower learning_rate" in caught.value.hint
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
