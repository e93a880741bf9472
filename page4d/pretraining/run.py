"""A run of pretraining: steps on crops that nobody has labelled."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from page4d.pretraining.crops import Crops, CropSource
from page4d.pretraining.footage import Footage, open_pool
from page4d.pretraining.learners import Taken
from page4d.pretraining.mae import MAEConfig
from page4d.pretraining.pretraining_state import PretrainState, write_pretraining
from page4d.training.engine.loop import Loop, LoopContext, Plans
from page4d.training.engine.optimizers import set_rate
from page4d.training.engine.step_plan import Position, begin_decay, fraction_done, rate_at
from page4d.training.supervised.step import StepResult, descend, step_seed


@dataclass(frozen=True, kw_only=True)
class PretrainPlan:
    """One step: its samples in batches, at what rate (1 is full), and the part of the run that lies behind."""

    step: int
    first_sample: int
    batch_size: int
    num_batches: int
    rate: float
    done: float

    @property
    def num_samples(self) -> int:
        """Samples of the step over all processes."""
        return self.batch_size * self.num_batches

    def samples(self, batch: int) -> range:
        """Return the samples of one of the step's batches."""
        first = self.first_sample + batch * self.batch_size
        return range(first, first + self.batch_size)


@dataclass(frozen=True, kw_only=True)
class PretrainContext(LoopContext):
    """What a run works with: that of every loop, and the frames."""

    footage: Footage


class Pretraining(Loop[PretrainState, PretrainContext, PretrainPlan, Crops]):
    """Learns until the budget is used up or somebody wants to stop."""

    def _advance(self, position: Position) -> Position:
        return begin_decay(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> PretrainPlan:
        config = self.state.config
        return PretrainPlan(
            step=position.step,
            first_sample=position.samples,
            batch_size=config.batch,
            num_batches=config.accumulation * self._context.team.size,
            rate=rate_at(config, position),
            done=fraction_done(position, self._context.budget),
        )

    @contextmanager
    def _feed(
        self, plans: Plans[PretrainPlan], batches: Sequence[int]
    ) -> Iterator[Iterator[tuple[PretrainPlan, list[Crops]]]]:
        config, device = self.state.config, self._context.device
        rows, columns = (config.crops.size // side for side in config.encoder.patch)
        patches = rows * columns if isinstance(config.method, MAEConfig) else 0
        frames = open_pool(self._context.footage, config.seed, frames=config.pool_frames, repeats=config.repeats)
        with frames as pool:
            source = CropSource(pool, config.crops, config.seed, patches)

            def given() -> Iterator[tuple[PretrainPlan, list[Crops]]]:
                while (plan := plans()) is not None:
                    yield plan, [source.read(plan.samples(batch), device) for batch in batches]

            yield given()

    def _step(self, plan: PretrainPlan, batches: list[Crops]) -> StepResult:
        state, context = self.state, self._context
        torch.manual_seed(step_seed(state.config.seed, plan.step))
        set_rate(state.optimizers, plan.rate)
        limit = state.config.optimizer.max_gradient_norm
        measured = (self._measure(crops) for crops in batches)
        network = state.learner.network
        result = descend(network, state.optimizers, measured, len(batches), limit, context.team)
        state.learner.follow(Taken(step=plan.step, done=plan.done, team=context.team, moved=result.moved))
        return result

    def _measure(self, crops: Crops) -> Mapping[str, Tensor]:
        precision, kind = self._context.precision, self._context.device.type
        with torch.autocast(kind, dtype=precision) if precision is not torch.float32 else nullcontext():
            return self.state.learner.losses(crops)

    def _store(self, path: Path, position: Position) -> None:
        write_pretraining(path, self.state, position, self._context.budget)
