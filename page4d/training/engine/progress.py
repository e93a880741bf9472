"""What a run tells whoever watches it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from page4d.training.validation.validation_metrics import Figures


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The mean over the steps since the last report. `eta_s` is None where the end is not known."""

    step: int
    samples: int
    seconds: float
    samples_per_second: float
    eta_s: float | None
    rate: float
    stage: int
    gradient_norm: float
    skipped: int
    losses: Mapping[str, float]


class TrainObserver(Protocol):
    """Shown what happens; changes nothing."""

    def step(self, report: StepReport) -> None:
        """Take note of the latest steps."""
        ...

    def evaluation(self, step: int, figures: Mapping[str, Mapping[str, Figures]]) -> None:
        """Take note of held-out figures of every family."""
        ...

    def message(self, text: str) -> None:
        """Take note of something worth a line."""
        ...


class SilentObserver:
    """Shows nothing."""

    def step(self, report: StepReport) -> None:
        """Ignore a report."""

    def evaluation(self, step: int, figures: Mapping[str, Mapping[str, Figures]]) -> None:
        """Ignore figures."""

    def message(self, text: str) -> None:
        """Ignore a message."""
