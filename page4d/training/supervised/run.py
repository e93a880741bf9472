"""A run of supervised training: steps on batches with truth, and held-out scenes that judge what they taught."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from page4d.ground_truth import GroundTruth
from page4d.training.engine.loop import Loop, LoopContext
from page4d.training.engine.step_plan import Position, StepPlan, advance, plan_step
from page4d.training.supervised.checkpoint import write_checkpoint
from page4d.training.supervised.feed import Plans, open_feed
from page4d.training.supervised.sources import Source
from page4d.training.supervised.step import StepResult, prepare_forward, take_step
from page4d.training.supervised.training_state import RunState
from page4d.training.validation.periodic import Examiner


@dataclass(frozen=True, kw_only=True)
class RunContext(LoopContext):
    """What a run works with: that of every loop, and where its samples come from."""

    sources: Sequence[Source]


class Run(Loop[RunState, RunContext, StepPlan, GroundTruth]):
    """Trains until the budget is used up or somebody wants to stop."""

    def __init__(self, state: RunState, context: RunContext) -> None:
        super().__init__(state, context)
        self._examiner = Examiner(state.config.evaluation, context.device, context.precision)
        self._examined_step, self._examined_at_s = -1, state.position.seconds
        self._forward = prepare_forward(state.network, state.config)

    def _begin(self) -> None:
        at = self.state.position
        if at.samples == at.first_sample and self._context.team.leads:
            self._log("baselines", {"step": at.step, "figures": self._examiner.baselines()})

    def _advance(self, position: Position) -> Position:
        return advance(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> StepPlan:
        return plan_step(self.state.config, position, self._context.team.size)

    def _feed(
        self, plans: Plans, batches: Sequence[int]
    ) -> AbstractContextManager[Iterator[tuple[StepPlan, list[GroundTruth]]]]:
        context = self._context
        return open_feed(context.sources, plans, batches, context.device, self.state.config.workers)

    def _step(self, plan: StepPlan, batches: list[GroundTruth]) -> StepResult:
        return take_step(self._forward, self.state, plan, batches, self._context.precision, self._context.team)

    def _store(self, path: Path, position: Position) -> None:
        write_checkpoint(path, self.state.snapshot(position, self._context.budget))

    def _look(self, *, finished: bool) -> None:
        """Examine the averaged network; once only if a finished run was examined after its last step."""
        at = self.state.position
        if (
            not (finished or self._is_time_to_examine())
            or not self._context.team.leads
            or self._examined_step == at.step
        ):
            return
        self._examined_step, self._examined_at_s = at.step, self._seconds()
        figures = self._examiner.examine(self.state.average.network)
        self._log("evaluation", {"step": at.step, "samples": at.samples, "seconds": at.seconds, "figures": figures})
        self._context.observer.evaluation(at.step, figures)

    def _is_time_to_examine(self) -> bool:
        every = self.state.config.evaluation
        on_step = every.every_steps > 0 and self.state.position.step % every.every_steps == 0
        return on_step or 0 < every.every_seconds <= self._seconds() - self._examined_at_s
