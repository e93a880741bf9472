"""Steps of the curriculum: functions of the configuration, the seed and the position."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from page4d.training.engine.step_plan import Budget, PlannedStep, Position, begin_decay, fraction_done, rate_at
from page4d.training.supervised.config import CurriculumStage, FamilyConfig, TrainConfig, TrainedPart

_STREAM = 0x7061
"""Separates the random draws of steps from all other uses of the run's seed."""


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """Properties that the samples of a step share; only the synthetic source has families."""

    family: FamilyConfig
    num_times: int
    num_views: int
    image_size: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class CurriculumStep(PlannedStep):
    """A step: its curriculum stage and source, the known inputs of the network, and the part that it trains."""

    stage: int
    source: int
    request: BatchRequest
    intrinsics_known: bool
    poses_known: bool
    masks_known: bool
    trained_part: TrainedPart


def advance(position: Position, config: TrainConfig, budget: Budget) -> Position:
    """Begin the next curriculum stages, and the learning rate decay, that are due."""
    done = fraction_done(position, budget)
    starts = position.stage_starts
    while len(starts) < len(config.stages) and _is_due(config.stages[len(starts)], position, done):
        starts = (*starts, position.samples)
    return begin_decay(replace(position, stage_starts=starts), config, budget)


def plan_step(config: TrainConfig, position: Position, num_processes: int = 1) -> CurriculumStep:
    """Draw the next step from the run's seed and the number of the step alone."""
    random = np.random.default_rng((config.seed, _STREAM, position.step))
    number = position.stage_at(position.samples)
    stage = config.stages[number]
    source = _draw(random, [source.weight for source in config.sources])
    shape = stage.shots[_draw(random, [shape.weight for shape in stage.shots])]
    size = stage.sizes[int(random.integers(len(stage.sizes)))]
    fitting = [family for family in stage.families if family.fits(shape.views)]
    family = fitting[_draw(random, [family.weight for family in fitting])]
    cameras, masks = random.random(2)
    return CurriculumStep(
        step=position.step,
        first_sample=position.samples,
        batch_size=max(1, stage.images_per_batch // (shape.times * shape.views)),
        num_batches=config.accumulation * num_processes,
        rate=rate_at(config, position),
        stage=number,
        source=source,
        request=BatchRequest(family=family, num_times=shape.times, num_views=shape.views, image_size=size),
        intrinsics_known=bool(cameras < config.hints.cameras + config.hints.intrinsics),
        poses_known=bool(cameras < config.hints.cameras),
        masks_known=bool(masks < config.hints.masks),
        trained_part=stage.learner,
    )


def _is_due(stage: CurriculumStage, position: Position, done: float) -> bool:
    return position.samples >= stage.start_sample if stage.start_sample is not None else done >= stage.start


def _draw(random: np.random.Generator, weights: Sequence[float]) -> int:
    return int(random.choice(len(weights), p=np.asarray(weights) / np.sum(weights)))
