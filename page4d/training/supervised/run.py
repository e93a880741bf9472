"""The loop of supervised training, with periodic validation."""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from page4d.ground_truth import GroundTruth
from page4d.training.engine.loop import Loop, LoopContext
from page4d.training.engine.step import StepResult
from page4d.training.engine.step_plan import Position
from page4d.training.supervised.checkpoint import write_checkpoint
from page4d.training.supervised.curriculum import CurriculumStep, advance, plan_step
from page4d.training.supervised.feed import feed_batches
from page4d.training.supervised.sources import Source
from page4d.training.supervised.step import prepare_forward, take_step
from page4d.training.supervised.training_state import TrainingState
from page4d.training.validation.validation import Validator


class SupervisedTraining(Loop[TrainingState, CurriculumStep, GroundTruth]):
    """Trains a network on batches with ground truth."""

    def __init__(self, state: TrainingState, context: LoopContext, sources: Sequence[Source]) -> None:
        super().__init__(state, context)
        self._sources = sources
        self._validator = Validator(state.config.evaluation, context.device, context.precision)
        self._validated_step, self._validated_at_s = -1, state.position.seconds
        self._forward = prepare_forward(state.network, state.config)

    def _begin(self) -> None:
        """Log the baselines of a new run or branch."""
        position = self.state.position
        if position.samples == position.first_sample and self._context.group.is_main:
            self._log("baselines", {"step": position.step, "figures": self._validator.baselines()})

    def _advance(self, position: Position) -> Position:
        return advance(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> CurriculumStep:
        return plan_step(self.state.config, position, self._context.group.size)

    def _feed(
        self, steps: Iterator[CurriculumStep], batches: Sequence[int]
    ) -> Generator[tuple[CurriculumStep, list[GroundTruth]]]:
        return feed_batches(self._sources, steps, batches, self._context.device, self.state.config.workers)

    def _take(self, step: CurriculumStep, batches: list[GroundTruth]) -> StepResult:
        return take_step(self._forward, self.state, step, batches, self._context.precision, self._context.group)

    def _store(self, path: Path, position: Position) -> None:
        write_checkpoint(path, self.state.snapshot(position, self._context.budget))

    def _validate(self, *, finished: bool) -> None:
        """Validate the EMA network if it is due, at most once per step."""
        position = self.state.position
        is_due = (finished or self._is_due()) and self._validated_step != position.step
        if not is_due or not self._context.group.is_main:
            return
        self._validated_step, self._validated_at_s = position.step, self._seconds()
        metrics = self._validator.validate(self.state.average.network)
        progress = {"step": position.step, "samples": position.samples, "seconds": position.seconds}
        self._log("evaluation", {**progress, "figures": metrics})
        self._context.observer.evaluation(position.step, metrics)

    def _is_due(self) -> bool:
        config = self.state.config.evaluation
        on_step = config.every_steps > 0 and self.state.position.step % config.every_steps == 0
        return on_step or 0 < config.every_seconds <= self._seconds() - self._validated_at_s
