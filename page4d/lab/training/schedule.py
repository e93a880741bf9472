"""Configuration, budget and position of a run, and the learning rate schedule as a function of them."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

from page4d.choices import Precision
from page4d.errors import UsageError
from page4d.io.json_records import config_from_json, config_record, config_to_json
from page4d.lab.training.optimizers import OptimizerConfig

Fraction = Annotated[float, Field(ge=0, le=1)]

MAX_SECONDS = 1e9
"""Longest run in seconds: 31 years."""

MAX_SAMPLES = 2**53
"""Longest run in samples: a float64 counts up to it."""


@config_record("training")
class RunConfig:
    """Random seed, optimizer, learning rate decay, arithmetic and intervals of a run.

    `decay_fraction` is the part of the budget, at its end, over which the learning rate decays to `final_rate` of its
    peak; `decay_start_sample`, if given, is the sample at which that begins.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    decay_fraction: Fraction = 0.2
    decay_start_sample: NonNegativeInt | None = None
    final_rate: Fraction = 0.0
    accumulation: Annotated[int, Field(ge=1, le=4096)] = 1
    """Batches per step in every process."""
    precision: Precision = Precision.AUTO
    save_every_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 120.0
    """Seconds between checkpoints; 0 saves at the end only."""
    log_every_steps: PositiveInt = 20

    def __post_init__(self) -> None:
        if self.precision is Precision.FP16:
            raise UsageError("training in fp16", "use bf16, auto or fp32")

    COMMAND: ClassVar[str]
    """Command that runs it, which also names it in messages."""

    def to_json(self) -> str:
        """Write the record as one line of JSON with sorted keys."""
        return config_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; fields that are left out take their defaults.

        Raises:
            UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
        """
        hint = f"page4d {cls.COMMAND} ⟨dry_run⟩ prints a complete one"
        return config_from_json(TypeAdapter(cls), text, f"{cls.COMMAND}ing", hint)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of a run, counted from its first sample; None is no limit."""

    seconds: float | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.samples is None:
            raise UsageError("a run without an end", "pass ⟨until_seconds⟩ or ⟨until_samples⟩")
        if self.seconds is not None and not 0 < self.seconds <= MAX_SECONDS:
            raise UsageError(
                f"a run of {self.seconds:g} seconds", f"give ⟨until_seconds⟩ above 0 and up to {MAX_SECONDS:g}"
            )
        if self.samples is not None and not 0 < self.samples <= MAX_SAMPLES:
            raise UsageError(f"a run of {self.samples:g} samples", f"give ⟨until_samples⟩ from 1 to {MAX_SAMPLES:,}")


@dataclass(frozen=True, kw_only=True)
class Position:
    """Progress of a run. Curriculum stages and the decay are fixed in samples once they begin.

    `samples_per_second` is 0 until it is measured.
    """

    step: int = 0
    samples: int = 0
    seconds: float = 0.0
    stage_starts: tuple[int, ...] = (0,)
    decay_start: int | None = None
    decay_samples: int = 0
    skipped: int = 0
    samples_per_second: float = 0.0

    def stage_at(self, sample: int) -> int:
        """Return the index of the curriculum stage of a sample."""
        return max(index for index, start in enumerate(self.stage_starts) if start <= sample)


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """Samples of a step, in batches over all processes, and its learning rate as a fraction of the peak."""

    step: int
    first_sample: int
    batch_size: int
    num_batches: int
    rate: float

    @property
    def num_samples(self) -> int:
        """Number of samples over all processes."""
        return self.batch_size * self.num_batches

    def samples(self, batch: int) -> range:
        """Return the sample numbers of one batch."""
        first = self.first_sample + batch * self.batch_size
        return range(first, first + self.batch_size)


def after(position: Position, step: PlannedStep) -> Position:
    """Return the position after a step."""
    return replace(position, step=step.step + 1, samples=step.first_sample + step.num_samples)


def begin_decay(position: Position, config: RunConfig, budget: Budget) -> Position:
    """Begin the learning rate decay if it is due and its number of samples is known.

    With a budget in seconds that number follows from the measured speed.
    """
    is_due = config.decay_fraction > 0 and 1 - config.decay_fraction <= fraction_done(position, budget) < 1
    if config.decay_start_sample is not None:
        is_due = position.samples >= config.decay_start_sample
    remaining = remaining_samples(position, budget)
    if position.decay_start is not None or not is_due or remaining is None:
        return position
    return replace(position, decay_start=position.samples, decay_samples=max(1, remaining))


def is_finished(position: Position, budget: Budget) -> bool:
    """Return whether the run has reached its end."""
    if position.decay_start is not None:
        return position.samples >= position.decay_start + position.decay_samples
    return fraction_done(position, budget) >= 1


def rate_at(config: RunConfig, position: Position) -> float:
    """Return the learning rate as a fraction of its peak: warm-up over steps, constant, linear decay over samples.

    Source: Hu et al., "MiniCPM", 2024, section 4 (warmup-stable-decay).
    """
    warmup = config.optimizer.warmup_steps
    rate = min(1.0, (position.step + 1) / warmup) if warmup else 1.0
    if position.decay_start is not None:
        done = min(1.0, (position.samples - position.decay_start) / position.decay_samples)
        rate *= 1 - (1 - config.final_rate) * done
    return rate


def fraction_done(position: Position, budget: Budget) -> float:
    """Return the fraction of the budget that is used."""
    fractions = [0.0]
    if budget.seconds is not None:
        fractions.append(position.seconds / budget.seconds)
    if budget.samples is not None:
        fractions.append(position.samples / budget.samples)
    return max(fractions)


def remaining_samples(position: Position, budget: Budget) -> int | None:
    """Return the number of samples up to the end; None with a budget in seconds before the speed is measured."""
    if position.decay_start is not None:
        return position.decay_start + position.decay_samples - position.samples
    remaining = []
    if budget.seconds is not None and position.samples_per_second > 0:
        remaining.append(round((budget.seconds - position.seconds) * position.samples_per_second))
    if budget.samples is not None:
        remaining.append(budget.samples - position.samples)
    return min(remaining, default=None)
