"""Presets of supervised training."""

from dataclasses import replace

from page4d.choices import Precision, SceneFamily
from page4d.training.engine.optimizers import OptimizerConfig
from page4d.training.supervised.config import (
    ConditioningProbabilities,
    CurriculumStage,
    EvaluationConfig,
    FamilyConfig,
    SampleShape,
    TrainConfig,
    TrainedPart,
)
from page4d.training.supervised.losses import LossConfig
from page4d.training.supervised.targets import SceneUnit


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

_SEVERAL = (
    FamilyConfig(name=SceneFamily.ARC, weight=0.6),
    FamilyConfig(name=SceneFamily.HANDHELD, weight=0.3),
    FamilyConfig(name=SceneFamily.RING, weight=0.1),
)
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

_DEMO = TrainConfig(
    model="mv-demo",
    stages=(
        CurriculumStage(
            start=0.0,
            sizes=_SMALL,
            shots=_FIRST_SHAPES,
            families=_SEVERAL,
            images_per_batch=32,
            learner=TrainedPart.MATCHES,
        ),
        CurriculumStage(
            start=0.1,
            sizes=_ALL,
            shots=_FIRST_SHAPES,
            families=_SEVERAL,
            images_per_batch=24,
            learner=TrainedPart.MATCHES,
        ),
        CurriculumStage(start=0.2, sizes=_SMALL, shots=_FIRST_SHAPES, families=_NEAR, images_per_batch=16),
        CurriculumStage(start=0.3, sizes=_SMALL, shots=_SHAPES, images_per_batch=16),
        CurriculumStage(start=0.75, sizes=_LARGE, shots=_LONG_SHAPES, images_per_batch=16),
    ),
    loss=LossConfig(confidence=0.4, unit=SceneUnit.TYPICAL_DEPTH),
    workers=1,
)

_DEMO_GPU = replace(
    _DEMO,
    stages=(
        CurriculumStage(
            start=0.0,
            sizes=_ALL,
            shots=_FIRST_SHAPES,
            families=_SEVERAL,
            images_per_batch=256,
            learner=TrainedPart.MATCHES,
        ),
        CurriculumStage(start=0.1, sizes=_SMALL, shots=_FIRST_SHAPES, families=_NEAR, images_per_batch=256),
        CurriculumStage(start=0.15, sizes=_SMALL, shots=_SHAPES, images_per_batch=256),
        CurriculumStage(start=0.6, sizes=_LARGE, shots=_LONG_SHAPES, images_per_batch=256),
    ),
    evaluation=EvaluationConfig(scenes=32),
    workers=0,
    precision=Precision.BF16,
)

_MOTION = replace(
    _DEMO,
    stages=(
        CurriculumStage(
            sizes=(*_SMALL, (96, 128), (96, 128), (128, 96), (112, 112)),
            shots=_shapes(
                {(2, 4): 3, (2, 2): 1.5, (4, 2): 1, (3, 2): 0.7, (4, 4): 0.7, (4, 1): 0.7, (6, 1): 0.3, (2, 1): 0.3}
            ),
            families=(
                FamilyConfig(name=SceneFamily.ARC, weight=0.5),
                FamilyConfig(name=SceneFamily.RING, weight=0.15),
                FamilyConfig(name=SceneFamily.HANDHELD, weight=0.3),
                FamilyConfig(name=SceneFamily.SINGLE, weight=0.05),
            ),
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

PRESETS: dict[str, TrainConfig] = {"demo": _DEMO, "demo-gpu": _DEMO_GPU, "motion": _MOTION, "tiny": _TINY}
"""The bundled network on a CPU and on a GPU, its motion head, and a network for tests."""
