"""Training configurations: JSON round trip and validation."""

import json
from dataclasses import replace
from typing import Any

import pytest

from page4d.errors import UsageError
from page4d.io.json_records import config_to_json
from page4d.lab.training.config import (
    TRAINING_PRESETS,
    ConditioningProbabilities,
    EvaluationConfig,
    FamilyConfig,
    SampleShape,
    SourceConfig,
    TrainConfig,
)
from page4d.lab.training.optimizers import OptimizerConfig
from page4d.networks.presets import PRESETS as NETWORKS
from tests.training.training_runs import TINY

STAGE = TINY.stages[0]


@pytest.mark.parametrize("name", list(TRAINING_PRESETS))
def test_a_preset_survives_json(name):
    config = TRAINING_PRESETS[name]
    assert TrainConfig.from_json(config.to_json()) == config
    assert TrainConfig.from_json(config_to_json(config, indent=1)) == config


@pytest.mark.parametrize("name", list(TRAINING_PRESETS))
def test_a_preset_names_a_network_and_sizes_in_whole_patches(name):
    network = NETWORKS[TRAINING_PRESETS[name].model]
    sizes = [size for stage in TRAINING_PRESETS[name].stages for size in stage.sizes]
    sizes.append(TRAINING_PRESETS[name].evaluation.image_size)
    assert all(side % network.patch_size == 0 for size in sizes for side in size)


def test_missing_fields_take_their_defaults():
    short = {"model": "mv-tiny", "stages": [{"sizes": [[28, 42]], "shots": [{"times": 1, "views": 2}]}]}
    config = TrainConfig.from_json(json.dumps(short))
    assert config.optimizer == OptimizerConfig()
    assert config.stages[0].sizes == ((28, 42),)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "text"),
        ('{"model": "mv-tiny", "stages": [], "speed": 3}', "speed"),
        ('{"model": "mv-tiny"}', "stages"),
        ('{"model": 3, "stages": []}', "model"),
    ],
)
def test_invalid_json_is_refused_with_the_field(text, place):
    with pytest.raises(UsageError) as raised:
        TrainConfig.from_json(text)
    assert place in raised.value.message
    assert raised.value.hint


INVALID: list[tuple[Any, dict[str, list]]] = [
    (
        TINY,
        {"stages": [(), (replace(STAGE, start=0.5),), (STAGE, replace(STAGE, start=0.5), replace(STAGE, start=0.2))]},
    ),
    (TINY, {"sources": [(), (SourceConfig(weight=0),)], "seed": [-1], "decay_fraction": [1.5], "accumulation": [0]}),
    (TINY, {"workers": [-1], "precision": ["fp16"]}),
    (STAGE, {"shots": [(), (SampleShape(times=1, views=2, weight=0),)], "sizes": [((4, 40),)], "start": [1.0]}),
    (STAGE, {"families": [(FamilyConfig(name="single"),)]}),
    (SampleShape(times=1, views=2), {"times": [0]}),
    (FamilyConfig(name="arc"), {"spacing_deg": [(20, 10)]}),
    (OptimizerConfig(), {"learning_rate": [0], "betas": [(0.9, 1.0)]}),
    (ConditioningProbabilities(cameras=0, intrinsics=0.7), {"cameras": [0.7]}),
    (EvaluationConfig(), {"scenes": [0]}),
]


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [(config, name, value) for config, changes in INVALID for name, values in changes.items() for value in values],
    ids=lambda value: str(value) if isinstance(value, str) else type(value).__name__,
)
def test_invalid_values_are_refused_with_advice(config: Any, name: str, value: object):
    with pytest.raises(UsageError) as raised:
        replace(config, **{name: value})
    assert raised.value.message
    assert raised.value.hint
