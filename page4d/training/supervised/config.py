"""What a training run does, as frozen records that live as JSON in its folder and in the weights it makes."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from page4d.errors import UsageError
from page4d.models.config import PRESETS, NetworkConfig
from page4d.synthetic.sampler import SceneFamily
from page4d.training.supervised.losses import LossConfig
from page4d.weights.placement import Precision

_STRICT = {"extra": "forbid"}

SYNTHETIC = "synthetic"
"""The source that renders its captures; every other source is a folder."""


class OptimizerKind(StrEnum):
    """What turns gradients into steps."""

    ADAMW = "adamw"
    MUON = "muon"
    """Muon for the matrices inside the network, AdamW for everything else."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Step sizes and what guards them; `muon_learning_rate` is for the matrices that Muon moves."""

    __pydantic_config__ = _STRICT

    kind: OptimizerKind = OptimizerKind.ADAMW
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.02
    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95
    warmup_steps: int = 300
    max_gradient_norm: float = 1.0
    average_decay: float = 0.999
    """Of the moving average of the weights, which is what is evaluated and written."""
    max_skipped: int = 50
    """Steps in a row whose gradient is not finite, before the run gives up."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", OptimizerKind(self.kind))
        positive = (self.learning_rate, self.muon_learning_rate, self.max_gradient_norm, self.max_skipped)
        fractions = (*self.betas, self.muon_momentum, self.average_decay)
        if min(positive) <= 0 or self.weight_decay < 0 or self.warmup_steps < 0:
            raise UsageError(
                f"optimizer: {asdict(self)}", "give positive rates and norms, and no negative decay or warm-up"
            )
        if not all(0 <= value < 1 for value in fractions):
            raise UsageError(f"optimizer: {asdict(self)}", "give betas, momentum and average_decay from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class Shot:
    """How many instants and views a sample has; `weight` says how often, relative to the others."""

    __pydantic_config__ = _STRICT

    times: int
    views: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.times < 1 or self.views < 1 or self.weight < 0:
            raise UsageError(
                f"shot of {self.times} times and {self.views} views, weight {self.weight:g}", "give at least one each"
            )


@dataclass(frozen=True, kw_only=True)
class Family:
    """How often a family of synthetic scenes is drawn, relative to the others that fit the number of views.

    `spacing_deg` between neighbouring cameras replaces the family's own range.
    """

    __pydantic_config__ = _STRICT

    name: SceneFamily
    weight: float = 1.0
    spacing_deg: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", SceneFamily(self.name))
        low, high = self.spacing_deg or (0.0, 0.0)
        if self.weight < 0 or not 0 <= low <= high <= 180:
            raise UsageError(
                f"family {self.name}: weight {self.weight:g}, spacing_deg {self.spacing_deg}",
                "give no negative weight, and angles in order from 0 to 180",
            )

    def fits(self, num_views: int) -> bool:
        """Tell whether this family has rigs of so many cameras."""
        return num_views == 1 or self.name is not SceneFamily.SINGLE


ALL_FAMILIES = (
    Family(name=SceneFamily.ARC, weight=0.5),
    Family(name=SceneFamily.RING, weight=0.25),
    Family(name=SceneFamily.HANDHELD, weight=0.15),
    Family(name=SceneFamily.SINGLE, weight=0.1),
)
"""Every family; the last one has one camera."""


class Learner(StrEnum):
    """The part of a network that learns in a stage; the rest waits, at a fraction of the cost."""

    ALL = "all"
    MATCHES = "matches"
    """The encoder and its matches; a network that looks for none learns as ever."""

    MOTION = "motion"
    """The head that refines the mask to pixels."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the curriculum: what samples are like from `start` on.

    `start` is a fraction of the run's budget; `start_sample`, if given, says it in samples instead. `sizes` are
    (height, width), one of which is drawn for every step. A batch holds as many samples as make up
    `images_per_batch` images.
    """

    __pydantic_config__ = _STRICT

    start: float = 0.0
    start_sample: int | None = None
    sizes: tuple[tuple[int, int], ...]
    shots: tuple[Shot, ...]
    families: tuple[Family, ...] = ALL_FAMILIES
    images_per_batch: int = 16
    learner: Learner = Learner.ALL

    def __post_init__(self) -> None:
        object.__setattr__(self, "learner", Learner(self.learner))
        if self.learner is Learner.MOTION and any(shot.times < 2 for shot in self.shots):
            raise UsageError(
                f"stage at {self.start:g}: motion in shots of one instant", "give shots of several times"
            )
        for shot in self.shots:
            if not any(family.fits(shot.views) and family.weight > 0 for family in self.families):
                raise UsageError(
                    f"stage at {self.start:g}: no family for {shot.views} views",
                    "name another family than single, which has one view",
                )
        if not self.sizes or not self.shots or self.images_per_batch < 1 or not 0 <= self.start < 1:
            raise UsageError(
                f"stage at {self.start:g} with {len(self.sizes)} sizes, {len(self.shots)} shots, "
                f"{self.images_per_batch} images a batch",
                "give a start from 0 to below 1 and at least one of each",
            )
        if sum(shot.weight for shot in self.shots) <= 0 or min(min(size) for size in self.sizes) < 8:
            raise UsageError(
                f"stage at {self.start:g}: sizes {self.sizes}, no shot with a weight above 0"
                if sum(shot.weight for shot in self.shots) <= 0
                else f"stage at {self.start:g}: sizes {self.sizes}",
                "give sides of at least 8 px and a positive weight",
            )


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """Where samples come from: `synthetic`, or a folder with truth; `weight` says how often, relative to others."""

    __pydantic_config__ = _STRICT

    path: str = SYNTHETIC
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class HintConfig:
    """How often a step tells the network what it may be told in use; `cameras` are intrinsics with poses."""

    __pydantic_config__ = _STRICT

    intrinsics: float = 0.15
    cameras: float = 0.25
    masks: float = 0.0

    def __post_init__(self) -> None:
        if min(asdict(self).values()) < 0 or self.intrinsics + self.cameras > 1 or self.masks > 1:
            raise UsageError(f"hints: {asdict(self)}", "give probabilities")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured at the end and on the way: `scenes` held-out seeds a family.

    That is every so many steps, or seconds; 0 is never. `image_size` is (height, width).
    """

    __pydantic_config__ = _STRICT

    every_steps: int = 500
    every_seconds: float = 0.0
    scenes: int = 16
    times: int = 2
    views: int = 4
    image_size: tuple[int, int] = (64, 80)
    families: tuple[SceneFamily, ...] = (SceneFamily.ARC, SceneFamily.RING)

    def __post_init__(self) -> None:
        if (
            min(self.every_steps, self.every_seconds) < 0
            or min(self.scenes, self.times, self.views, *self.image_size) < 1
        ):
            raise UsageError(f"evaluation: {asdict(self)}", "give positive numbers")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides what a run learns; the same record and seed give the same weights on one machine.

    `model` names a preset of the network, or is one; weights to start from, if any, are given to the run and bring
    their own configuration. `decay_fraction` is the part of the budget at its end over which the rate falls to
    `final_rate` of its height; `decay_start_sample`, if given, says in samples where that begins. `workers` processes
    render ahead; 0 renders in between.
    """

    __pydantic_config__ = _STRICT

    model: str | NetworkConfig
    seed: int = 0
    stages: tuple[Stage, ...]
    sources: tuple[SourceConfig, ...] = (SourceConfig(),)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    hints: HintConfig = field(default_factory=HintConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    decay_fraction: float = 0.2
    decay_start_sample: int | None = None
    final_rate: float = 0.0
    accumulation: int = 1
    precision: Precision = Precision.AUTO
    compile: bool = False
    checkpoint_blocks: bool = False
    """Compute activations of the blocks again in the backward pass instead of keeping them."""
    workers: int = 0
    save_every_seconds: float = 120.0
    log_every_steps: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", Precision(self.precision))
        starts = [stage.start for stage in self.stages]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise UsageError(f"stages start at {starts}", "begin at 0 and go up")
        if not self.sources or sum(source.weight for source in self.sources) <= 0 or self.seed < 0:
            raise UsageError(f"{len(self.sources)} sources, seed {self.seed}", "give a source with a positive weight")
        if self.hints.masks > 0 and any(stage.learner is Learner.MOTION for stage in self.stages):
            raise UsageError(f"hints: masks {self.hints.masks:g} where motion is taught", "set masks to 0")
        if Precision.FP16 is self.precision:
            raise UsageError("training in fp16", "use bf16, auto or fp32")
        if not (0 <= self.decay_fraction <= 1 and 0 <= self.final_rate <= 1):
            raise UsageError(
                f"decay_fraction {self.decay_fraction:g}, final_rate {self.final_rate:g}", "give numbers from 0 to 1"
            )
        if self.accumulation < 1 or self.workers < 0 or self.log_every_steps < 1 or self.save_every_seconds < 0:
            raise UsageError(
                f"accumulation {self.accumulation}, workers {self.workers}, log_every_steps {self.log_every_steps}, "
                f"save_every_seconds {self.save_every_seconds:g}",
                "give at least 1 batch, 1 step, and no negative number",
            )

    @property
    def model_name(self) -> str:
        """Return what the network is called."""
        return self.model if isinstance(self.model, str) else f"a network on {self.model.encoder.kind}"

    def network(self) -> NetworkConfig:
        """Return what the network is.

        Raises:
            UsageError: if no preset has that name.
        """
        if isinstance(self.model, NetworkConfig):
            return self.model
        if self.model not in PRESETS:
            raise UsageError(f"no network is called '{self.model}'", f"choose from {', '.join(PRESETS)}")
        return PRESETS[self.model]

    def to_json(self, indent: int | None = None) -> str:
        """Write the record as JSON with sorted keys, on one line unless `indent` is given; equal records alike."""
        typed = _ADAPTER.validate_python(asdict(self))  # 1 where a float belongs is written as 1.0
        return json.dumps(asdict(typed), sort_keys=True, indent=indent)

    @staticmethod
    def from_json(text: str) -> "TrainConfig":
        """Read what `to_json` wrote; what is left out takes its default.

        Raises:
            UsageError: if the text is no such record, names an unknown field or holds a wrong type.
        """
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise UsageError(
                f"training configuration: {place or 'text'}: {first['msg']}",
                "page4d train --dry-run prints a whole one",
            ) from error


_ADAPTER = TypeAdapter(TrainConfig)
