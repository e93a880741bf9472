"""Progress of a training run: a status line on a terminal, a line at intervals elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from page4d_cli import console
from page4d_cli.progress_display import duration

if TYPE_CHECKING:
    from rich.live import Live

    from page4d.lab.training.logs import Evaluation, StepReport

_INTERVAL_S = 15.0
"""Seconds between lines without a terminal."""

_SHOWN = ("abs_rel", "rotation_deg", "direction_deg", "focal", "mask_iou")


class TrainingProgress:
    """Shows reports on stderr; created by `observed_training`."""

    def __init__(self, live: "Live | None") -> None:
        self._live = live
        self._shown = -_INTERVAL_S

    def step(self, report: "StepReport") -> None:
        """Update the status line, or print a line after an interval."""
        if self._live is not None:
            width = console.columns_of(sys.stderr) or 0
            self._live.update("\n".join(console.wrapped(describe_step(report), width)))
        elif time.monotonic() - self._shown >= _INTERVAL_S:
            self._shown = time.monotonic()
            self.message(describe_step(report))

    def evaluation(self, step: int, metrics: "Evaluation") -> None:
        """Print metrics on held-out scenes of every family."""
        for family, rows in metrics.items():
            for row, found in rows.items():
                values = [f"{name} {value:.3g}" for name in _SHOWN if (value := found.get(name)) is not None]
                self.message(f"step {step}: {family}, {row}: {', '.join(values)}")

    def message(self, text: str) -> None:
        """Print a line above the status line."""
        console.print_message(text, target=None if self._live is None else self._live.console)


class Quiet:
    """Shows messages only."""

    def step(self, report: "StepReport") -> None:
        """Show nothing."""

    def evaluation(self, step: int, metrics: "Evaluation") -> None:
        """Show nothing."""

    def message(self, text: str) -> None:
        """Print a message."""
        console.print_message(text)


@contextmanager
def observed_training(quiet: bool) -> Iterator[TrainingProgress | Quiet]:
    """Show the progress of the body on stderr."""
    if quiet:
        yield Quiet()
        return
    if not console.has_live_lines():
        yield TrainingProgress(None)
        return
    from rich.live import Live

    with Live("", console=console.error_console(), refresh_per_second=4) as live:
        yield TrainingProgress(live)


def describe_step(report: "StepReport") -> str:
    """Format a report, most important values first."""
    losses = report.losses
    left = "" if report.eta_s is None else f"  {duration(report.eta_s)} left"
    skipped = f"  {report.skipped} skipped" if report.skipped else ""
    parts = "".join(f"  {name} {losses[name]:.3f}" for name in ("depth", "rotation", "translation") if name in losses)
    return (
        f"step {report.step:,}  {report.samples:,} samples  {report.samples_per_second:.1f}/s{left}{skipped}  "
        f"loss {losses.get('total', float('nan')):.3f}{parts}  rate {report.rate:.3f}  {duration(report.seconds)}"
    )
