"""Training runs by name."""

from dataclasses import replace

from page4d.synthetic.sampler import SceneFamily
from page4d.training.supervised.config import (
    EvaluationConfig,
    Family,
    HintConfig,
    Learner,
    OptimizerConfig,
    Shot,
    Stage,
    TrainConfig,
)
from page4d.training.supervised.losses import LossConfig
from page4d.training.supervised.targets import SceneUnit
from page4d.weights.placement import Precision

_SMALL = ((64, 80), (80, 64), (72, 72))
_LARGE = ((96, 128), (112, 112), (128, 96))
_ALL = (*_LARGE, (64, 80), (80, 64))

_NEAR = (
    Family(name=SceneFamily.ARC, weight=0.7, spacing_deg=(5, 25)),
    Family(name=SceneFamily.HANDHELD, weight=0.3),
)
"""Neighbours that see much of the same, to begin with."""

_SEVERAL = (
    Family(name=SceneFamily.ARC, weight=0.6),
    Family(name=SceneFamily.HANDHELD, weight=0.3),
    Family(name=SceneFamily.RING, weight=0.1),
)
"""Several views, at all distances: for matches."""

_FIRST_SHOTS = (Shot(times=1, views=2, weight=1), Shot(times=1, views=4, weight=2), Shot(times=2, views=2, weight=1))
_SHOTS = (
    Shot(times=1, views=1, weight=0.3),
    Shot(times=1, views=2, weight=1),
    Shot(times=1, views=3, weight=1),
    Shot(times=1, views=4, weight=3),
    Shot(times=1, views=6, weight=0.5),
    Shot(times=2, views=2, weight=1),
    Shot(times=2, views=4, weight=1.5),
    Shot(times=4, views=1, weight=0.2),
    Shot(times=4, views=2, weight=0.3),
    Shot(times=4, views=4, weight=0.3),
)
"""Mostly one instant: another scene teaches more than another moment of the same."""

_LONG_SHOTS = (*_SHOTS, Shot(times=8, views=2, weight=0.5), Shot(times=3, views=5, weight=0.5))

_DEMO = TrainConfig(
    model="mv-demo",
    stages=(
        Stage(
            start=0.0,
            sizes=_SMALL,
            shots=_FIRST_SHOTS,
            families=_SEVERAL,
            images_per_batch=32,
            learner=Learner.MATCHES,
        ),
        Stage(
            start=0.1, sizes=_ALL, shots=_FIRST_SHOTS, families=_SEVERAL, images_per_batch=24, learner=Learner.MATCHES
        ),
        Stage(start=0.2, sizes=_SMALL, shots=_FIRST_SHOTS, families=_NEAR, images_per_batch=16),
        Stage(start=0.3, sizes=_SMALL, shots=_SHOTS, images_per_batch=16),
        Stage(start=0.75, sizes=_LARGE, shots=_LONG_SHOTS, images_per_batch=16),
    ),
    loss=LossConfig(confidence=0.4, unit=SceneUnit.TYPICAL_DEPTH),
    workers=1,
)

_DEMO_GPU = replace(
    _DEMO,
    stages=(
        Stage(
            start=0.0,
            sizes=_ALL,
            shots=_FIRST_SHOTS,
            families=_SEVERAL,
            images_per_batch=256,
            learner=Learner.MATCHES,
        ),
        Stage(start=0.1, sizes=_SMALL, shots=_FIRST_SHOTS, families=_NEAR, images_per_batch=256),
        Stage(start=0.15, sizes=_SMALL, shots=_SHOTS, images_per_batch=256),
        Stage(start=0.6, sizes=_LARGE, shots=_LONG_SHOTS, images_per_batch=256),
    ),
    evaluation=EvaluationConfig(scenes=32),
    workers=0,
    precision=Precision.BF16,
)

_MOTION = replace(
    _DEMO,
    stages=(
        Stage(
            sizes=(*_SMALL, (96, 128), (96, 128), (128, 96), (112, 112)),
            shots=(
                Shot(times=2, views=4, weight=3),
                Shot(times=2, views=2, weight=1.5),
                Shot(times=4, views=2, weight=1),
                Shot(times=3, views=2, weight=0.7),
                Shot(times=4, views=4, weight=0.7),
                Shot(times=4, views=1, weight=0.7),
                Shot(times=6, views=1, weight=0.3),
                Shot(times=2, views=1, weight=0.3),
            ),
            families=(
                Family(name=SceneFamily.ARC, weight=0.5),
                Family(name=SceneFamily.RING, weight=0.15),
                Family(name=SceneFamily.HANDHELD, weight=0.3),
                Family(name=SceneFamily.SINGLE, weight=0.05),
            ),
            learner=Learner.MOTION,
        ),
    ),
    optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=20, weight_decay=0.01, average_decay=0.99),
    hints=HintConfig(cameras=0.2, intrinsics=0.1),
    decay_fraction=0.6,
    workers=0,
)

_TINY = TrainConfig(
    model="mv-tiny",
    stages=(
        Stage(sizes=((28, 42), (42, 28)), shots=(Shot(times=1, views=2), Shot(times=2, views=2)), images_per_batch=4),
    ),
    optimizer=OptimizerConfig(warmup_steps=5, average_decay=0.9),
    evaluation=EvaluationConfig(scenes=2, times=1, views=2, image_size=(28, 42), families=(SceneFamily.ARC,)),
    log_every_steps=1,
)

PRESETS: dict[str, TrainConfig] = {
    "demo": _DEMO,
    "demo-gpu": _DEMO_GPU,
    "motion": _MOTION,
    "tiny": _TINY,
}
"""The default that is shipped, on a CPU and on a GPU; its motion head, taught at the end; and for tests."""
