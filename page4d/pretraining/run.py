"""The loop of pretraining, on crops of the frames of recordings."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from page4d.pretraining.crops import Crops, CropSource
from page4d.pretraining.footage import Footage, open_pool
from page4d.pretraining.mae import MAEConfig
from page4d.pretraining.pretraining_state import PretrainState, write_checkpoint
from page4d.pretraining.tasks import PretrainStep
from page4d.training.engine.loop import Loop, LoopContext
from page4d.training.engine.step import StepResult, autocast, optimize
from page4d.training.engine.step_plan import Position, begin_decay, fraction_done, rate_at


class Pretraining(Loop[PretrainState, PretrainStep, Crops]):
    """Trains an encoder on crops."""

    def __init__(self, state: PretrainState, context: LoopContext, footage: Footage) -> None:
        super().__init__(state, context)
        self._footage = footage

    def _advance(self, position: Position) -> Position:
        return begin_decay(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> PretrainStep:
        config = self.state.config
        return PretrainStep(
            step=position.step,
            first_sample=position.samples,
            batch_size=config.batch,
            num_batches=config.accumulation * self._context.group.size,
            rate=rate_at(config, position),
            done=fraction_done(position, self._context.budget),
        )

    def _feed(
        self, steps: Iterator[PretrainStep], batches: Sequence[int]
    ) -> Generator[tuple[PretrainStep, list[Crops]]]:
        config = self.state.config
        rows, columns = (config.crops.size // side for side in config.encoder.patch)
        patches = rows * columns if isinstance(config.method, MAEConfig) else 0
        with open_pool(self._footage, config.seed, frames=config.pool_frames, repeats=config.repeats) as pool:
            source = CropSource(pool, config.crops, config.seed, patches)
            for step in steps:
                yield step, [source.read(step.samples(batch), self._context.device) for batch in batches]

    def _take(self, step: PretrainStep, batches: list[Crops]) -> StepResult:
        result = optimize(self.state, step, batches, self._losses, self._context.group)
        self.state.task.after_step(step, self._context.group, moved=result.moved)
        return result

    def _losses(self, crops: Crops) -> Mapping[str, Tensor]:
        with autocast(self._context.device, self._context.precision):
            return self.state.task.losses(crops)

    def _store(self, path: Path, position: Position) -> None:
        write_checkpoint(path, self.state, position, self._context.budget)
