"""Stop requests and the time budget are obeyed before the first step; a diverged run is not saved."""

import os
import signal
import time
from contextlib import suppress

import pytest
import torch

from page4d.errors import InterruptedRunError, UsageError
from page4d.lab.training import engine
from page4d.lab.training import train as training
from page4d.lab.training.config import TRAINING_PRESETS
from page4d.lab.training.engine import FirstStep
from page4d.lab.training.logs import SilentTrainingObserver
from page4d.lab.training.schedule import Budget
from page4d.lab.training.train import TrainRequest, train


@pytest.fixture(autouse=True, scope="module")
def imported() -> None:
    """Import what torch imports with the first optimizer: a stop meanwhile leaves it incomplete for later tests."""
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).zero_grad()


def waiting(_: object) -> list[object]:
    """Open sources that take long."""
    time.sleep(20)
    return []


def test_a_stop_request_ends_a_run_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "open_training_sources", waiting)
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(samples=8))
    started = time.monotonic()
    with pytest.raises(InterruptedRunError, match="before the first step") as caught:
        train(request, SilentTrainingObserver(), lambda: signal.SIGTERM if time.monotonic() > started + 0.5 else None)
    assert caught.value.exit_code == 143
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_stop_request_that_a_callback_swallows_is_repeated(monkeypatch):
    monkeypatch.setattr(engine, "_AGAIN_S", 0.05)

    def swallowing() -> None:
        with suppress(BaseException):
            time.sleep(20)
        time.sleep(20)

    with pytest.raises(InterruptedRunError, match="before the first step"), FirstStep(lambda: 15).watched():
        swallowing()


def test_the_time_budget_ends_a_run_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(training.SupervisedTraining, "_begin", lambda _: time.sleep(20))
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(seconds=0.5))
    with pytest.raises(UsageError, match=r"no step was complete after 0\.5 s"):
        train(request, SilentTrainingObserver(), lambda: None)


def test_an_earlier_timer_continues_after_the_first_step():
    calls: list[int] = []
    earlier = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        signal.signal(signal.SIGALRM, lambda number, _: calls.append(number))
        with FirstStep(lambda: None).watched():
            assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        os.kill(os.getpid(), signal.SIGALRM)
        assert calls == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, earlier[0])
        signal.setitimer(signal.ITIMER_REAL, *earlier[1])


@pytest.mark.parametrize("spoiled", ["gradient", "weights"])
def test_a_diverged_run_ends_with_an_error_and_without_weights(spoiled: str, tmp_path, monkeypatch):
    take = training.SupervisedTraining._take

    def diverge(self: training.SupervisedTraining, *arguments: object) -> object:
        result = take(self, *arguments)
        parameter = next(self.state.network.parameters())
        with torch.no_grad():
            parameter[:] = float("nan") if spoiled == "weights" or self.state.position.step > 0 else parameter
        return result

    monkeypatch.setattr(training.SupervisedTraining, "_take", diverge)
    samples = 4 if spoiled == "weights" else 24
    request = TrainRequest(out=tmp_path / "run", config=TRAINING_PRESETS["tiny"], budget=Budget(samples=samples))
    with pytest.raises(UsageError, match="the training diverged: ") as caught:
        train(request, SilentTrainingObserver(), lambda: None)
    assert "lower learning_rate" in caught.value.hint
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
