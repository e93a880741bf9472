"""Minimal training runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from page4d.choices import SceneFamily
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.lab.training import data, validation
from page4d.lab.training.checkpoint import RunFolder
from page4d.lab.training.config import CurriculumStage, EvaluationConfig, FamilyConfig, SampleShape, TrainConfig
from page4d.lab.training.logs import SilentTrainingObserver, StepReport
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.lab.training.schedule import Budget
from page4d.lab.training.state import TrainCheckpoint
from page4d.lab.training.train import TrainOutcome, TrainRequest, train
from page4d.networks.presets import PRESETS
from page4d.records import GroundTruth

SIZE = (28, 42)

TINY = TrainConfig(
    model=replace(PRESETS["mv-tiny"], point_head=None),
    stages=(
        CurriculumStage(
            sizes=(SIZE,),
            shots=(SampleShape(times=1, views=2), SampleShape(times=2, views=1)),
            families=(FamilyConfig(name=SceneFamily.ARC), FamilyConfig(name=SceneFamily.SINGLE)),
            images_per_batch=2,
        ),
    ),
    optimizer=OptimizerConfig(warmup_steps=2, average_decay=0.9),
    evaluation=EvaluationConfig(
        scenes=1, times=1, views=2, image_size=SIZE, families=(SceneFamily.ARC,), every_steps=0
    ),
    save_every_seconds=0,
    decay_fraction=0.5,
    log_every_steps=1,
)
"""One sample per step."""


_rendered = cache(sample_truth)


def rendered_once(seeds: Sequence[int], request: SceneRequest, device: torch.device | str = "cpu") -> GroundTruth:
    """Return the scenes of `sample_truth`, which all runs of a process share."""
    return _rendered(tuple(seeds), request, device)


def never() -> None:
    """Never stop."""


def train_tiny(
    out: Path,
    samples: int,
    *,
    config: TrainConfig | None = TINY,
    stop: Callable[[], int | None] = never,
    observer: SilentTrainingObserver | None = None,
    **more: Any,
) -> TrainOutcome:
    """Train without rendering a scene again."""
    more = {"device": "cpu", "half": False, **more}
    request = TrainRequest(out=out, config=config, budget=Budget(samples=samples), **more)
    with patch.object(data, "sample_truth", rendered_once), patch.object(validation, "sample_truth", rendered_once):
        return train(request, observer or SilentTrainingObserver(), stop)


def checkpoint_of(out: Path) -> TrainCheckpoint:
    return TrainCheckpoint.read(RunFolder(out).checkpoint)


def stop_after(calls: int) -> Callable[[], int | None]:
    """Request a stop at the nth poll; there is at least one poll per step."""
    polls = iter(range(10**6))
    return lambda: 2 if next(polls) >= calls else None


def assert_equal_runs(first: Path, second: Path) -> None:
    """Compare network, EMA, optimizer and position of two runs, bit for bit."""
    one, two = checkpoint_of(first), checkpoint_of(second)
    for part in ("network", "average"):
        for name, value in getattr(one, part).items():
            assert torch.equal(value, getattr(two, part)[name]), (part, name)
    for key, state in one.optimizer["state"].items():
        assert all(
            torch.equal(torch.as_tensor(v), torch.as_tensor(two.optimizer["state"][key][n])) for n, v in state.items()
        )
    clock = {"seconds": 0.0, "samples_per_second": 0.0}
    assert replace(one.position, **clock) == replace(two.position, **clock)


class Recorder(SilentTrainingObserver):
    """Records reports and messages."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.messages: list[str] = []

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def message(self, text: str) -> None:
        self.messages.append(text)
