"""Settings that all training runs share."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from page4d.choices import Precision
from page4d.errors import UsageError
from page4d.io.config import config_record
from page4d.training.engine.optimizers import OptimizerConfig

Fraction = Annotated[float, Field(ge=0, le=1)]


@config_record("training")
class RunConfig:
    """Random seed, optimizer, learning rate decay, arithmetic and intervals of a run.

    `decay_fraction` is the part of the budget, at its end, over which the learning rate decays to `final_rate` of its
    peak; `decay_start_sample`, if given, is the sample at which that begins.
    """

    seed: NonNegativeInt = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    decay_fraction: Fraction = 0.2
    decay_start_sample: int | None = None
    final_rate: Fraction = 0.0
    accumulation: PositiveInt = 1
    """Batches per step in every process."""
    precision: Precision = Precision.AUTO
    save_every_seconds: NonNegativeFloat = 120.0
    """Seconds between checkpoints; 0 saves at the end only."""
    log_every_steps: PositiveInt = 20

    def __post_init__(self) -> None:
        if self.precision is Precision.FP16:
            raise UsageError("training in fp16", "use bf16, auto or fp32")
