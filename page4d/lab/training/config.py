"""Configuration of supervised training and its presets, stored as JSON in the folder of a run and in its weights."""

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated

from pydantic import Field, NonNegativeInt

from page4d.choices import SceneFamily
from page4d.errors import UsageError, unknown_name
from page4d.io.json_records import config_record
from page4d.lab.synthetic.rigs import ImageSide, NumTimes, NumViews
from page4d.lab.training.losses import LossConfig, SceneUnit
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.lab.training.schedule import Fraction, RunConfig
from page4d.lab.training.validation import HeldOutScenes, NumScenes
from page4d.networks.config import NetworkConfig
from page4d.networks.presets import PRESETS

SYNTHETIC = "synthetic"
"""The source that renders its captures; every other source is a folder."""

_Side = Annotated[ImageSide, Field(ge=8)]
_Weight = Annotated[float, Field(ge=0, le=1e9)]


@config_record("sample shape")
class SampleShape:
    """Number of instants and views of a sample, with its relative frequency."""

    times: NumTimes
    views: NumViews
    weight: _Weight = 1.0


@config_record("scene family")
class FamilyConfig:
    """Relative frequency of a family of synthetic scenes among those that fit the number of views.

    `spacing_deg` between neighbouring cameras replaces the range of the family.
    """

    name: SceneFamily
    weight: _Weight = 1.0
    spacing_deg: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        low, high = self.spacing_deg or (0.0, 0.0)
        if not 0 <= low <= high <= 180:
            raise UsageError(
                f"scene family: spacing_deg of {self.name} is {self.spacing_deg}",
                "give angles in order from 0 to 180",
            )

    def fits(self, num_views: int) -> bool:
        """Return whether this family has rigs of this number of cameras."""
        return num_views == 1 or self.name is not SceneFamily.SINGLE


def _families(**weights: float) -> tuple[FamilyConfig, ...]:
    """Return families from relative frequencies by name."""
    return tuple(FamilyConfig(name=SceneFamily(name), weight=weight) for name, weight in weights.items())


ALL_FAMILIES = _families(arc=0.4, ring=0.15, stage=0.2, handheld=0.15, single=0.1)


class TrainedPart(StrEnum):
    """Part of a network that a curriculum stage trains; only that part is computed or differentiated."""

    ALL = "all"
    MATCHES = "matches"
    """The encoder and the matching; all of a network without matching."""

    MOTION = "motion"
    """The motion head."""


@config_record("stage")
class CurriculumStage:
    """A stage of the curriculum: the samples from `start` on.

    `start` is a fraction of the budget; `start_sample`, if given, is the sample at which the stage begins instead.
    One of `sizes`, (height, width), is drawn per step. A batch has about `images_per_batch` images.
    """

    start: Annotated[float, Field(ge=0, lt=1)] = 0.0
    start_sample: NonNegativeInt | None = None
    sizes: tuple[tuple[_Side, _Side], ...] = Field(min_length=1)
    shots: tuple[SampleShape, ...] = Field(min_length=1)
    families: tuple[FamilyConfig, ...] = ALL_FAMILIES
    images_per_batch: Annotated[int, Field(ge=1, le=2**16)] = 16
    learner: TrainedPart = TrainedPart.ALL

    def __post_init__(self) -> None:
        if self.learner is TrainedPart.MOTION and any(shape.times < 2 for shape in self.shots):
            raise UsageError(
                f"stage at {self.start:g}: motion in samples of one instant", "give shots of several times"
            )
        for shape in self.shots:
            if not any(family.fits(shape.views) and family.weight > 0 for family in self.families):
                raise UsageError(
                    f"stage at {self.start:g}: no family for {shape.views} views",
                    "name another family than single, which has one view",
                )
        if not any(shape.weight for shape in self.shots):
            raise UsageError(f"stage at {self.start:g}: no shot with a weight above 0", "give one a positive weight")


@config_record("source")
class SourceConfig:
    """A source of samples, `synthetic` or a folder with ground truth, with its relative frequency."""

    path: str = SYNTHETIC
    weight: _Weight = 1.0


@config_record("hints")
class ConditioningProbabilities:
    """Conditioning probabilities per step; `cameras` are intrinsics and poses, `intrinsics` intrinsics alone."""

    intrinsics: Fraction = 0.15
    cameras: Fraction = 0.25
    masks: Fraction = 0.0

    def __post_init__(self) -> None:
        if self.intrinsics + self.cameras > 1:
            raise UsageError(
                f"hints: intrinsics {self.intrinsics:g} and cameras {self.cameras:g}", "give at most 1 together"
            )


@config_record("evaluation")
class EvaluationConfig(HeldOutScenes):
    """Held-out scenes that are evaluated at the end and every `every_steps`; 0 is never."""

    every_steps: NonNegativeInt = 500
    scenes: NumScenes = 16
    families: tuple[SceneFamily, ...] = (SceneFamily.ARC, SceneFamily.RING)


@config_record("training")
class TrainConfig(RunConfig):
    """Configuration of a run; the same configuration and seed give the same weights on one machine.

    `model` is a preset of the network, or its configuration; a run that starts from weights keeps theirs.
    """

    model: str | NetworkConfig
    stages: tuple[CurriculumStage, ...]
    sources: tuple[SourceConfig, ...] = (SourceConfig(),)
    loss: LossConfig = LossConfig()
    hints: ConditioningProbabilities = ConditioningProbabilities()
    evaluation: EvaluationConfig = EvaluationConfig()
    compile: bool = False
    checkpoint_blocks: bool = False
    """Recompute activations of the blocks in the backward pass instead of storing them."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes that render batches ahead of time; 0 renders between steps."""

    COMMAND = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        starts = [stage.start for stage in self.stages]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise UsageError(f"stages start at {starts}", "begin at 0 and go up")
        if not any(source.weight for source in self.sources):
            raise UsageError(f"{len(self.sources)} sources without a weight above 0", "give one a positive weight")
        if self.hints.masks > 0 and any(stage.learner is TrainedPart.MOTION for stage in self.stages):
            raise UsageError(f"hints: masks {self.hints.masks:g} where motion is trained", "set masks to 0")

    @property
    def model_name(self) -> str:
        """Name of the network."""
        return self.model if isinstance(self.model, str) else f"a network on {self.model.encoder.kind}"

    def network(self) -> NetworkConfig:
        """Return the configuration of the network.

        Raises:
            UsageError: if no preset has that name.
        """
        if isinstance(self.model, NetworkConfig):
            return self.model
        if self.model not in PRESETS:
            raise unknown_name("network", self.model, PRESETS)
        return PRESETS[self.model]


def _shapes(weights: dict[tuple[int, int], float]) -> tuple[SampleShape, ...]:
    """Return shapes from relative frequencies by (times, views)."""
    return tuple(SampleShape(times=times, views=views, weight=weight) for (times, views), weight in weights.items())


_SMALL = ((64, 80), (80, 64), (72, 72))
_LARGE = ((96, 128), (112, 112), (128, 96))
_ALL = (*_LARGE, (64, 80), (80, 64))

_NEAR = (
    FamilyConfig(name=SceneFamily.ARC, weight=0.7, spacing_deg=(5, 25)),
    FamilyConfig(name=SceneFamily.HANDHELD, weight=0.3),
)
"""Rigs with covisible neighbours, for the first stages."""

_SEVERAL = _families(arc=0.6, handheld=0.3, ring=0.1)
"""Rigs of several views at all spacings, for matching."""

_FIRST_SHAPES = _shapes({(1, 2): 1, (1, 4): 2, (2, 2): 1})
_SHAPES = _shapes(
    {
        (1, 1): 0.3,
        (1, 2): 1,
        (1, 3): 1,
        (1, 4): 3,
        (1, 6): 0.5,
        (2, 2): 1,
        (2, 4): 1.5,
        (4, 1): 0.2,
        (4, 2): 0.3,
        (4, 4): 0.3,
    }
)
"""Mostly one instant: more scenes train better than more instants per scene."""

_LONG_SHAPES = (*_SHAPES, *_shapes({(8, 2): 0.5, (3, 5): 0.5}))

_matching = partial(CurriculumStage, shots=_FIRST_SHAPES, families=_SEVERAL, learner=TrainedPart.MATCHES)

_DEMO = TrainConfig(
    model="mv-demo",
    stages=(
        _matching(start=0.0, sizes=_SMALL, images_per_batch=32),
        _matching(start=0.1, sizes=_ALL, images_per_batch=24),
        CurriculumStage(start=0.2, sizes=_SMALL, shots=_FIRST_SHAPES, families=_NEAR, images_per_batch=16),
        CurriculumStage(start=0.3, sizes=_SMALL, shots=_SHAPES, images_per_batch=16),
        CurriculumStage(start=0.75, sizes=_LARGE, shots=_LONG_SHAPES, images_per_batch=16),
    ),
    loss=LossConfig(confidence=0.4, unit=SceneUnit.TYPICAL_DEPTH),
    workers=1,
)

_MOTION = replace(
    _DEMO,
    stages=(
        CurriculumStage(
            sizes=(*_SMALL, (96, 128), (96, 128), (128, 96), (112, 112)),
            shots=_shapes(
                {(2, 4): 3, (2, 2): 1.5, (4, 2): 1, (3, 2): 0.7, (4, 4): 0.7, (4, 1): 0.7, (6, 1): 0.3, (2, 1): 0.3}
            ),
            families=_families(arc=0.5, ring=0.15, handheld=0.3, single=0.05),
            learner=TrainedPart.MOTION,
        ),
    ),
    optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=20, weight_decay=0.01, average_decay=0.99),
    hints=ConditioningProbabilities(cameras=0.2, intrinsics=0.1),
    decay_fraction=0.6,
    workers=0,
)

_TINY = TrainConfig(
    model="mv-tiny",
    stages=(CurriculumStage(sizes=((28, 42), (42, 28)), shots=_shapes({(1, 2): 1, (2, 2): 1}), images_per_batch=4),),
    optimizer=OptimizerConfig(warmup_steps=5, average_decay=0.9),
    evaluation=EvaluationConfig(scenes=2, times=1, views=2, image_size=(28, 42), families=(SceneFamily.ARC,)),
    log_every_steps=1,
)

TRAINING_PRESETS: dict[str, TrainConfig] = {"demo": _DEMO, "motion": _MOTION, "tiny": _TINY}
"""The bundled network, its motion head, and a network for tests."""
