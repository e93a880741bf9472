"""What every step does, as a function of the configuration and of where the run stands: nothing is left to chance."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from page4d.errors import UsageError
from page4d.training.supervised.config import Family, Learner, OptimizerConfig, Stage, TrainConfig

_CHOICES = 0x7061
"""Keeps the choices of steps apart from every other use of the run's seed."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run ends, counted from where it began; None is no limit."""

    seconds: float | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.samples is None:
            raise UsageError("a run without an end", "pass --until-seconds or --until-samples")
        if not all(limit is None or 0 < limit < float("inf") for limit in (self.seconds, self.samples)):
            raise UsageError(
                f"--until-seconds {self.seconds}, --until-samples {self.samples}", "give positive numbers"
            )


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands. Stages and the decay are fixed in samples once they begin, whatever the clock says later.

    `seconds` and `first_sample` are those since the run, or the branch off another run, began. `samples_per_second`
    is 0 as long as nobody knows.
    """

    step: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_sample: int = 0
    stage_starts: tuple[int, ...] = (0,)
    decay_start: int | None = None
    decay_samples: int = 0
    skipped: int = 0
    samples_per_second: float = 0.0

    def stage_at(self, sample: int) -> int:
        """Return the number of the stage that a sample belongs to."""
        return max(index for index, start in enumerate(self.stage_starts) if start <= sample)


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What all samples of a step have in common; sources other than the synthetic one have no families."""

    family: Family
    num_times: int
    num_views: int
    image_size: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One step: which samples of which source, in batches for every process, and at what rate (1 is full)."""

    step: int
    first_sample: int
    batch_size: int
    num_batches: int
    stage: int
    source: int
    request: BatchRequest
    tells_intrinsics: bool
    tells_poses: bool
    tells_masks: bool
    learner: Learner
    rate: float

    @property
    def num_samples(self) -> int:
        """Samples of the step over all processes."""
        return self.batch_size * self.num_batches

    def samples(self, batch: int) -> range:
        """Return the samples of one of the step's batches."""
        first = self.first_sample + batch * self.batch_size
        return range(first, first + self.batch_size)


class Planned(Protocol):
    """What every loop asks of the plan of a step."""

    @property
    def step(self) -> int:
        """Number of the step."""
        ...

    @property
    def first_sample(self) -> int:
        """Number of its first sample."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples of the step over all processes."""
        ...

    @property
    def rate(self) -> float:
        """Share of the full rate."""
        ...


class RateConfig(Protocol):
    """What a configuration says of the rate."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """How many steps the warm-up has."""
        ...

    @property
    def decay_fraction(self) -> float:
        """Part of the budget, at its end, over which the rate falls."""
        ...

    @property
    def decay_start_sample(self) -> int | None:
        """Where that begins, if it is known in samples."""
        ...

    @property
    def final_rate(self) -> float:
        """Share of the full rate at the end."""
        ...


def advance(position: Position, config: TrainConfig, budget: Budget) -> Position:
    """Begin the next stage, and the decay, if the run has come so far."""
    done = fraction_done(position, budget)
    starts = position.stage_starts
    while len(starts) < len(config.stages) and _has_begun(config.stages[len(starts)], position, done):
        starts = (*starts, position.samples)
    return begin_decay(replace(position, stage_starts=starts), config, budget)


def begin_decay(position: Position, config: RateConfig, budget: Budget) -> Position:
    """Begin the decay if the run has come so far.

    It waits until its length is known: that of a number of seconds follows from the speed.
    """
    if position.decay_start is None and _decays(config, position, fraction_done(position, budget)):
        remaining = _remaining_samples(position, budget)
        if remaining is not None:
            return replace(position, decay_start=position.samples, decay_samples=max(1, remaining))
    return position


def is_finished(position: Position, budget: Budget) -> bool:
    """Tell whether the run has reached its end."""
    if position.decay_start is not None:
        return position.samples >= position.decay_start + position.decay_samples
    return fraction_done(position, budget) >= 1


def plan_step(config: TrainConfig, position: Position, num_processes: int = 1) -> StepPlan:
    """Draw what the next step does, from the run's seed and the step's number alone."""
    random = np.random.default_rng((config.seed, _CHOICES, position.step))
    number = position.stage_at(position.samples)
    stage = config.stages[number]
    source = _draw(random, [source.weight for source in config.sources])
    shot = stage.shots[_draw(random, [shot.weight for shot in stage.shots])]
    size = stage.sizes[int(random.integers(len(stage.sizes)))]
    fitting = [family for family in stage.families if family.fits(shot.views)]
    family = fitting[_draw(random, [family.weight for family in fitting])]
    told_cameras, told_masks = random.random(2)
    return StepPlan(
        step=position.step,
        first_sample=position.samples,
        batch_size=max(1, stage.images_per_batch // (shot.times * shot.views)),
        num_batches=config.accumulation * num_processes,
        stage=number,
        source=source,
        request=BatchRequest(family=family, num_times=shot.times, num_views=shot.views, image_size=size),
        tells_intrinsics=bool(told_cameras < config.hints.cameras + config.hints.intrinsics),
        tells_poses=bool(told_cameras < config.hints.cameras),
        tells_masks=bool(told_masks < config.hints.masks),
        learner=stage.learner,
        rate=rate_at(config, position),
    )


def after(position: Position, plan: Planned) -> Position:
    """Return where the run stands after a step."""
    return replace(position, step=plan.step + 1, samples=plan.first_sample + plan.num_samples)


def rate_at(config: RateConfig, position: Position) -> float:
    """Warm up over steps, stay, decay linearly over samples.

    Source: Hu et al., "MiniCPM", 2024, section 4 (warmup-stable-decay).
    """
    warmup = config.optimizer.warmup_steps
    rate = min(1.0, (position.step + 1) / warmup) if warmup else 1.0
    if position.decay_start is not None:
        done = min(1.0, (position.samples - position.decay_start) / position.decay_samples)
        rate *= 1 - (1 - config.final_rate) * done
    return rate


def fraction_done(position: Position, budget: Budget) -> float:
    """Return which part of the budget is used up."""
    fractions = [0.0]
    if budget.seconds is not None:
        fractions.append(position.seconds / budget.seconds)
    if budget.samples is not None:
        fractions.append((position.samples - position.first_sample) / budget.samples)
    return max(fractions)


def _remaining_samples(position: Position, budget: Budget) -> int | None:
    """Return how many samples are left; None if only the clock knows and it is too early to tell."""
    remaining = []
    if budget.seconds is not None and position.samples_per_second > 0:
        remaining.append(round((budget.seconds - position.seconds) * position.samples_per_second))
    if budget.samples is not None:
        remaining.append(position.first_sample + budget.samples - position.samples)
    return min(remaining, default=None)


def _has_begun(stage: Stage, position: Position, done: float) -> bool:
    return position.samples >= stage.start_sample if stage.start_sample is not None else done >= stage.start


def _decays(config: RateConfig, position: Position, done: float) -> bool:
    if config.decay_start_sample is not None:
        return position.samples >= config.decay_start_sample
    return config.decay_fraction > 0 and 1 - config.decay_fraction <= done < 1


def _draw(random: np.random.Generator, weights: Sequence[float]) -> int:
    return int(random.choice(len(weights), p=np.asarray(weights) / np.sum(weights)))
