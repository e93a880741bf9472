"""A run from where it stands to the end of its budget."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from page4d.errors import UsageError
from page4d.training.checkpoint import write_checkpoint
from page4d.training.examiner import Examiner
from page4d.training.feed import open_feed
from page4d.training.folder import RunFolder
from page4d.training.logs import Log
from page4d.training.parallel import Team
from page4d.training.plan import Budget, Position, StepPlan, advance, after, is_finished, plan_step
from page4d.training.progress import StepReport, TrainObserver
from page4d.training.sources import Source
from page4d.training.state import RunState
from page4d.training.step import StepResult, prepare_forward, take_step

_RATE_WINDOW = 100
"""Steps over which the speed is measured."""

_STEPS_TO_TELL = 4
"""Steps that say too little of the speed."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a run works with. `logs` are empty in all processes but the first; `stop` is asked between steps."""

    folder: RunFolder
    budget: Budget
    device: torch.device
    precision: torch.dtype
    team: Team
    sources: Sequence[Source]
    logs: Sequence[Log]
    observer: TrainObserver
    stop: Callable[[], bool]


class Run:
    """Trains until the budget is used up or somebody wants to stop."""

    def __init__(self, state: RunState, context: RunContext) -> None:
        self.state = state
        self._context = context
        self._examiner = Examiner(state.config.evaluation, context.device, context.precision)
        self._planned = state.position
        self._stopping = False
        self._started = time.monotonic() - state.position.seconds
        self._saved = time.monotonic()
        self._examined_step, self._examined_at_s = -1, state.position.seconds
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)
        self._results: list[StepResult] = []
        self._skipped_in_a_row = 0

    def train(self) -> bool:
        """Train; return whether the end of the budget was reached.

        Raises:
            UsageError: if too many steps in a row have no finite gradient.
            InputError: if a source cannot be read.
            OutputError: if a file cannot be written.
        """
        state, config, context = self.state, self.state.config, self._context
        if state.position.samples == state.position.first_sample and context.team.leads:
            self._log("baselines", {"step": state.position.step, "figures": self._examiner.baselines()})
        forward = prepare_forward(state.network, config)
        batches = context.team.batches(config.accumulation * context.team.size)
        self._recent.append((self._seconds(), state.position.samples))
        with open_feed(context.sources, self._next_plan, batches, context.device, config.workers) as feed:
            for plan, truths in feed:
                self._keep_stable(plan)
                result = take_step(forward, state, plan, truths, context.precision, context.team)
                self._after(plan, result)
                if self._stopping:
                    break
        self._save()
        finished = is_finished(state.position, context.budget)
        if finished:
            self._examine()
        return finished

    def _next_plan(self) -> StepPlan | None:
        """Plan the next step, which may be a few ahead of the one that is trained on."""
        config, context = self.state.config, self._context
        clock = (self._seconds(), self._samples_per_second())
        (seconds, speed), stop = context.team.agree(clock, context.stop(), context.device)
        self._stopping = self._stopping or stop
        position = replace(self._planned, seconds=seconds, samples_per_second=speed)
        self._planned = position = advance(position, config, context.budget)
        if self._stopping or is_finished(position, context.budget):
            return None
        plan = plan_step(config, position, context.team.size)
        self._planned = after(position, plan)
        return plan

    def _keep_stable(self, plan: StepPlan) -> None:
        """Keep the run as it was before its rate began to fall."""
        if plan.first_sample == self._planned.decay_start and self._context.team.leads:
            position = replace(self._position(), decay_start=None, decay_samples=0)
            write_checkpoint(self._context.folder.stable, self.state.snapshot(position, self._context.budget))

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

    def _after(self, plan: StepPlan, result: StepResult) -> None:
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
        if self._is_time_to_examine():
            self._examine()
        if config.save_every_seconds and time.monotonic() - self._saved >= config.save_every_seconds:
            self._save()

    def _skip(self, plan: StepPlan) -> None:
        """Count a step that could not be taken."""
        self._skipped_in_a_row += 1
        self.state.position = replace(self.state.position, skipped=self.state.position.skipped + 1)
        self._context.observer.message(f"step {plan.step}: the gradient is not finite, nothing was changed")
        if self._skipped_in_a_row >= self.state.config.optimizer.max_skipped:
            raise UsageError(
                f"{self._skipped_in_a_row} steps in a row had no finite gradient, the last one was step {plan.step}",
                f"continue from '{self._context.folder.checkpoint}' with a lower learning rate",
            )

    def _report(self, plan: StepPlan) -> None:
        results, self._results = self._results, []
        position = self.state.position
        report = StepReport(
            step=position.step,
            samples=position.samples,
            seconds=position.seconds,
            samples_per_second=self._samples_per_second(),
            eta_s=self._eta(),
            rate=plan.rate,
            stage=plan.stage,
            gradient_norm=results[-1].gradient_norm,
            skipped=position.skipped,
            losses=_means(results),
        )
        self._log("step", vars(report))
        if self._context.team.leads:
            self._context.observer.step(report)

    def _is_time_to_examine(self) -> bool:
        every = self.state.config.evaluation
        on_step = every.every_steps > 0 and self.state.position.step % every.every_steps == 0
        return on_step or 0 < every.every_seconds <= self._seconds() - self._examined_at_s

    def _examine(self) -> None:
        at = self.state.position
        if not self._context.team.leads or self._examined_step == at.step:
            return
        self._examined_step, self._examined_at_s = at.step, self._seconds()
        figures = self._examiner.examine(self.state.average.network)
        self._log("evaluation", {"step": at.step, "samples": at.samples, "seconds": at.seconds, "figures": figures})
        self._context.observer.evaluation(at.step, figures)

    def _log(self, kind: str, values: dict[str, object]) -> None:
        for log in self._context.logs:
            log.write(kind, values)

    def _save(self) -> None:
        if self._context.team.leads:
            snapshot = self.state.snapshot(self._position(), self._context.budget)
            write_checkpoint(self._context.folder.checkpoint, snapshot)
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
