"""Progress reports of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Means over the steps since the previous report. `eta_s` is None while it cannot be estimated."""

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


Evaluation = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Metrics by scene family, row of the table, and metric."""


class TrainObserver(Protocol):
    """Receives progress reports."""

    def step(self, report: StepReport) -> None:
        """Receive the report on the latest steps."""
        ...

    def evaluation(self, step: int, metrics: Evaluation) -> None:
        """Receive metrics on held-out scenes after a step."""
        ...

    def message(self, text: str) -> None:
        """Receive a line of text."""
        ...


class SilentObserver:
    """Discards all reports."""

    def step(self, report: StepReport) -> None:
        """Discard a report."""

    def evaluation(self, step: int, metrics: Evaluation) -> None:
        """Discard metrics."""

    def message(self, text: str) -> None:
        """Discard a message."""
