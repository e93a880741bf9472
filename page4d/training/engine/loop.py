"""Steps from where a run stands to the end of its budget, whatever it is that learns."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from page4d.errors import UsageError
from page4d.training.engine.distributed import Team
from page4d.training.engine.logs import Log
from page4d.training.engine.progress import StepReport, TrainObserver
from page4d.training.engine.run_folder import RunFolder
from page4d.training.engine.step_plan import Budget, Planned, Position, after, is_finished
from page4d.training.supervised.config import OptimizerConfig
from page4d.training.supervised.step import StepResult

_RATE_WINDOW = 100
"""Steps over which the speed is measured."""

_STEPS_TO_TELL = 4
"""Steps that say too little of the speed."""

Plan = TypeVar("Plan", bound=Planned)
Batch = TypeVar("Batch")
Plans = Callable[[], Plan | None]
"""Gives the next step, or None after the last one."""


class LoopConfig(Protocol):
    """What a configuration says of the loop."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """How many steps in a row may fail."""
        ...

    @property
    def accumulation(self) -> int:
        """Batches of a step in every process."""
        ...

    @property
    def log_every_steps(self) -> int:
        """Steps between reports."""
        ...

    @property
    def save_every_seconds(self) -> float:
        """Seconds between checkpoints; 0 saves at the end only."""
        ...


class LoopState(Protocol):
    """What a loop moves on."""

    position: Position

    @property
    def config(self) -> LoopConfig:
        """What the run does."""
        ...


State = TypeVar("State", bound=LoopState)


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """What a loop works with. `logs` are empty in all processes but the first; `stop` is asked between steps."""

    folder: RunFolder
    budget: Budget
    device: torch.device
    precision: torch.dtype
    team: Team
    logs: Sequence[Log]
    observer: TrainObserver
    stop: Callable[[], bool]


Context = TypeVar("Context", bound=LoopContext)


class Loop(ABC, Generic[State, Context, Plan, Batch]):
    """Takes steps until the budget is used up or somebody wants to stop."""

    def __init__(self, state: State, context: Context) -> None:
        self.state = state
        self._context = context
        self._planned = state.position
        self._stopping = False
        self._started = time.monotonic() - state.position.seconds
        self._saved = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)
        self._results: list[StepResult] = []
        self._skipped_in_a_row = 0

    @abstractmethod
    def _advance(self, position: Position) -> Position:
        """Return the position with what begins there."""

    @abstractmethod
    def _plan(self, position: Position) -> Plan:
        """Say what the next step does."""

    @abstractmethod
    def _feed(
        self, plans: "Plans[Plan]", batches: Sequence[int]
    ) -> AbstractContextManager[Iterator[tuple[Plan, list[Batch]]]]:
        """Give every step with those of its batches that this process trains on."""

    @abstractmethod
    def _step(self, plan: Plan, batches: list[Batch]) -> StepResult:
        """Take a step, unless its gradient is not finite."""

    @abstractmethod
    def _store(self, path: Path, position: Position) -> None:
        """Write everything as it stands."""

    def _begin(self) -> None:
        """Do what comes before the first step."""

    def _look(self, *, finished: bool) -> None:
        """Look at what has been learned, if it is time for it."""

    def train(self) -> bool:
        """Train; return whether the end of the budget was reached.

        Raises:
            UsageError: if too many steps in a row have no finite gradient.
            InputError: if a source cannot be read.
            OutputError: if a file cannot be written.
        """
        state, context = self.state, self._context
        self._begin()
        batches = context.team.batches(state.config.accumulation * context.team.size)
        self._recent.append((self._seconds(), state.position.samples))
        with self._feed(self._next_plan, batches) as feed:
            for plan, given in feed:
                self._keep_stable(plan)
                self._after(plan, self._step(plan, given))
                if self._stopping:
                    break
        self._save()
        finished = is_finished(state.position, context.budget)
        if finished:
            self._look(finished=True)
        return finished

    def _next_plan(self) -> Plan | None:
        """Plan the next step, which may be a few ahead of the one that is trained on."""
        context = self._context
        clock = (self._seconds(), self._samples_per_second())
        (seconds, speed), stop = context.team.agree(clock, context.stop(), context.device)
        self._stopping = self._stopping or stop
        position = replace(self._planned, seconds=seconds, samples_per_second=speed)
        self._planned = position = self._advance(position)
        if self._stopping or is_finished(position, context.budget):
            return None
        plan = self._plan(position)
        self._planned = after(position, plan)
        return plan

    def _keep_stable(self, plan: Plan) -> None:
        """Keep the run as it was before its rate began to fall."""
        if plan.first_sample == self._planned.decay_start and self._context.team.leads:
            self._store(self._context.folder.stable, replace(self._position(), decay_start=None, decay_samples=0))

    def _position(self) -> Position:
        """Return where the training stands, with what the planning, which is ahead, has fixed."""
        at = self.state.position
        return replace(
            self._planned,
            step=at.step,
            samples=at.samples,
            skipped=at.skipped,
            seconds=self._seconds(),
            samples_per_second=self._samples_per_second(),
        )

    def _after(self, plan: Plan, result: StepResult) -> None:
        state, config = self.state, self.state.config
        state.position = after(state.position, plan)
        if result.moved:
            self._skipped_in_a_row = 0
        else:
            self._skip(plan)
        state.position = self._position()
        self._recent.append((self._seconds(), state.position.samples))
        self._results.append(result)
        if state.position.step % config.log_every_steps == 0:
            self._report(plan)
        self._look(finished=False)
        if config.save_every_seconds and time.monotonic() - self._saved >= config.save_every_seconds:
            self._save()

    def _skip(self, plan: Plan) -> None:
        """Count a step that could not be taken."""
        self._skipped_in_a_row += 1
        self.state.position = replace(self.state.position, skipped=self.state.position.skipped + 1)
        self._context.observer.message(f"step {plan.step}: the gradient is not finite, nothing was changed")
        if self._skipped_in_a_row >= self.state.config.optimizer.max_skipped:
            raise UsageError(
                f"{self._skipped_in_a_row} steps in a row had no finite gradient, the last one was step {plan.step}",
                f"continue from '{self._context.folder.checkpoint}' with a lower learning rate",
            )

    def _report(self, plan: Plan) -> None:
        results, self._results = self._results, []
        position = self.state.position
        report = StepReport(
            step=position.step,
            samples=position.samples,
            seconds=position.seconds,
            samples_per_second=self._samples_per_second(),
            eta_s=self._eta(),
            rate=plan.rate,
            stage=position.stage_at(plan.first_sample),
            gradient_norm=results[-1].gradient_norm,
            skipped=position.skipped,
            losses=_means(results),
        )
        self._log("step", vars(report))
        if self._context.team.leads:
            self._context.observer.step(report)

    def _log(self, kind: str, values: Mapping[str, object]) -> None:
        for log in self._context.logs:
            log.write(kind, values)

    def _save(self) -> None:
        if self._context.team.leads:
            self._store(self._context.folder.checkpoint, self._position())
        self._saved = time.monotonic()

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _samples_per_second(self) -> float:
        """Return the speed of the last steps, or, for a start, that of the run so far; 0 where nobody knows."""
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        if len(self._recent) <= _STEPS_TO_TELL:
            return self.state.position.samples_per_second
        return (last - first) / (end - start)

    def _eta(self) -> float | None:
        """Return the seconds that are left; None where nobody knows yet."""
        position, budget, speed = self.state.position, self._context.budget, self._samples_per_second()
        if not speed:
            return None
        if position.decay_start is not None:
            return max(0.0, (position.decay_start + position.decay_samples - position.samples) / speed)
        left = []
        if budget.seconds is not None:
            left.append(budget.seconds - position.seconds)
        if budget.samples is not None:
            left.append((position.first_sample + budget.samples - position.samples) / speed)
        return max(0.0, min(left))


def _means(results: Sequence[StepResult]) -> dict[str, float]:
    """Average every loss over the steps that have it."""
    names = dict.fromkeys(name for result in results for name in result.losses)
    values = {name: [result.losses[name] for result in results if name in result.losses] for name in names}
    return {name: math.fsum(those) / len(those) for name, those in values.items()}
