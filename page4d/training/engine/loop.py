"""The training loop: steps from the current position to the end of the budget."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch

from page4d.errors import InterruptedRunError, UsageError
from page4d.training.engine.checkpoint import RunFolder
from page4d.training.engine.distributed import ProcessGroup
from page4d.training.engine.first_step import FirstStep
from page4d.training.engine.logs import Log, StepReport, TrainObserver
from page4d.training.engine.step import LoopState, StepResult
from page4d.training.engine.step_plan import Budget, PlannedStep, Position, after, is_finished, remaining_samples
from page4d.weights.store import is_finite

_SPEED_WINDOW = 100
"""Steps over which the speed is measured."""

_MIN_SPEED_STEPS = 4
"""Steps that are too few to measure the speed."""

_FAILED_AT_END = 5
"""Steps without a finite gradient at the end of a run that make its result useless."""

State = TypeVar("State", bound=LoopState)
Step = TypeVar("Step", bound=PlannedStep)
Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """Context of a loop. Only the main process has `logs`.

    `stop` is polled between steps; it returns the number of the signal that requests a stop.
    """

    folder: RunFolder
    budget: Budget
    device: torch.device
    precision: torch.dtype
    group: ProcessGroup
    logs: Sequence[Log]
    observer: TrainObserver
    stop: Callable[[], int | None]
    first_step: FirstStep = field(default_factory=FirstStep)


class Loop(ABC, Generic[State, Step, Batch]):
    """Trains until the budget is used or a stop is requested."""

    def __init__(self, state: State, context: LoopContext) -> None:
        self.state = state
        self._context = context
        self._planned = state.position
        self._stopping = False
        self._started = time.monotonic() - state.position.seconds
        self._saved = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SPEED_WINDOW)
        self._results: list[StepResult] = []
        self._skipped_in_a_row = 0
        self._first_step = state.position.step

    @abstractmethod
    def _advance(self, position: Position) -> Position:
        """Return the position with the curriculum stage and the decay that begin there."""

    @abstractmethod
    def _plan(self, position: Position) -> Step:
        """Return the step at a position."""

    @abstractmethod
    def _feed(self, steps: Iterator[Step], batches: Sequence[int]) -> Generator[tuple[Step, list[Batch]]]:
        """Yield every step with those of its batches that this process trains on."""

    @abstractmethod
    def _take(self, step: Step, batches: list[Batch]) -> StepResult:
        """Take a step, unless its gradient is not finite."""

    @abstractmethod
    def _store(self, path: Path, position: Position) -> None:
        """Write a checkpoint."""

    def _begin(self) -> None:
        """Prepare the first step."""

    def _validate(self, *, finished: bool) -> None:
        """Evaluate the network if it is due."""

    def train(self) -> None:
        """Train to the end of the budget and save.

        Raises:
            InterruptedRunError: if a stop was requested; everything is saved.
            UsageError: if too many consecutive steps have no finite gradient, or there is no time for any.
            InputError: if a source cannot be read.
            OutputError: if a file cannot be written.
        """
        state, context = self.state, self._context
        if context.budget.seconds is not None:
            context.first_step.limit(context.budget.seconds, self._started)
        self._begin()
        batches = context.group.batches(state.config.accumulation * context.group.size)
        self._recent.append((self._seconds(), state.position.samples))
        with closing(self._feed(_Steps(self._next_step), batches)) as feed:
            for step, given in feed:
                self._keep_stable(step)
                self._finish_step(step, self._take(step, given))
                if self._stopping:
                    break
        self._refuse_useless_end()
        self._save()
        if not is_finished(state.position, context.budget):
            raise InterruptedRunError(
                f"interrupted after step {state.position.step}, which is saved in '{context.folder.checkpoint}'",
                "continue with --resume",
                context.stop() or 15,
            )
        self._validate(finished=True)

    def _next_step(self) -> Step | None:
        """Plan the next step, which may be a few ahead of the training; None at the end or after a stop request."""
        context = self._context
        clock = (self._seconds(), self._samples_per_second())
        (seconds, speed), stop = context.group.synchronize(clock, context.stop() is not None, context.device)
        self._stopping = self._stopping or stop
        position = replace(self._planned, seconds=seconds, samples_per_second=speed)
        self._planned = position = self._advance(position)
        if self._stopping or is_finished(position, context.budget):
            return None
        step = self._plan(position)
        self._planned = after(position, step)
        return step

    def _keep_stable(self, step: Step) -> None:
        """Store a checkpoint before the learning rate decay."""
        if step.first_sample == self._planned.decay_start and self._context.group.is_main:
            self._store(self._context.folder.stable, self._position())

    def _position(self) -> Position:
        """Return the position of the training, with the stages and, once it has begun, the decay that are planned."""
        trained, planned = self.state.position, self._planned
        if planned.decay_start is not None and trained.samples <= planned.decay_start:
            planned = replace(planned, decay_start=None, decay_samples=0)
        return replace(
            planned,
            step=trained.step,
            samples=trained.samples,
            skipped=trained.skipped,
            seconds=self._seconds(),
            samples_per_second=self._samples_per_second(),
        )

    def _finish_step(self, step: Step, result: StepResult) -> None:
        state, config = self.state, self.state.config
        self._context.first_step.end()
        state.position = after(state.position, step)
        if result.moved:
            self._skipped_in_a_row = 0
        else:
            self._count_skipped(step)
        state.position = self._position()
        self._recent.append((self._seconds(), state.position.samples))
        self._results.append(result)
        if state.position.step % config.log_every_steps == 0:
            self._report(step)
        self._validate(finished=False)
        if config.save_every_seconds and time.monotonic() - self._saved >= config.save_every_seconds:
            self._save()

    def _count_skipped(self, step: Step) -> None:
        self._skipped_in_a_row += 1
        self.state.position = replace(self.state.position, skipped=self.state.position.skipped + 1)
        self._context.observer.message(f"step {step.step}: the gradient is not finite, the weights are unchanged")
        if self._skipped_in_a_row >= self.state.config.optimizer.max_skipped:
            raise self._diverged(
                f"{self._skipped_in_a_row} steps in a row had no finite gradient, the last one was step {step.step}"
            )

    def _refuse_useless_end(self) -> None:
        """Refuse to save a run whose last steps all failed.

        Raises:
            UsageError: if several in a row, or all, had no finite gradient.
        """
        taken = self.state.position.step - self._first_step
        if self._skipped_in_a_row and self._skipped_in_a_row >= min(taken, _FAILED_AT_END):
            raise self._diverged(f"the last {self._skipped_in_a_row} of {taken} steps had no finite gradient")

    def _diverged(self, found: str) -> UsageError:
        checkpoint = self._context.folder.checkpoint
        hint = "start again with a lower --learning-rate"
        if checkpoint.is_file():
            hint = f"continue from '{checkpoint}' with --resume, --config and a lower learning rate, or start again"
        return UsageError(f"the training diverged: {found}", hint)

    def _report(self, step: Step) -> None:
        results, self._results = self._results, []
        position, speed = self.state.position, self._samples_per_second()
        left = remaining_samples(replace(position, samples_per_second=speed), self._context.budget)
        report = StepReport(
            step=position.step,
            samples=position.samples,
            seconds=position.seconds,
            samples_per_second=speed,
            eta_s=max(0.0, left / speed) if speed and left is not None else None,
            rate=step.rate,
            stage=position.stage_at(step.first_sample),
            gradient_norm=results[-1].gradient_norm,
            skipped=position.skipped,
            losses=_means(results),
        )
        self._log("step", vars(report))
        if self._context.group.is_main:
            self._context.observer.step(report)

    def _log(self, kind: str, values: Mapping[str, object]) -> None:
        for log in self._context.logs:
            log.write(kind, values)

    def _save(self) -> None:
        infinite = [name for name, value in self.state.network.named_parameters() if not is_finite(value)]
        if infinite:
            raise self._diverged(f"'{infinite[0]}' is not finite after step {self.state.position.step}")
        if self._context.group.is_main:
            self._store(self._context.folder.checkpoint, self._position())
        self._saved = time.monotonic()

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _samples_per_second(self) -> float:
        """Return the speed of the latest steps, or the stored one after a start; 0 if neither is known."""
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        if len(self._recent) <= _MIN_SPEED_STEPS:
            return self.state.position.samples_per_second
        return (last - first) / (end - start)


class _Steps(Iterator[Step]):
    """Steps as they are planned; the planning is asked again after the end, to notice late stop requests."""

    def __init__(self, plan: Callable[[], Step | None]) -> None:
        self._plan = plan

    def __next__(self) -> Step:
        if (step := self._plan()) is None:
            raise StopIteration
        return step


def _means(results: Sequence[StepResult]) -> dict[str, float]:
    """Average every loss over the steps that have it."""
    names = dict.fromkeys(name for result in results for name in result.losses)
    values = {name: [result.losses[name] for result in results if name in result.losses] for name in names}
    return {name: math.fsum(items) / len(items) for name, items in values.items()}
