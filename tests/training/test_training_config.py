"""Configurations are JSON and back, and nonsense is refused when they are made."""

import json
from dataclasses import replace

import pytest
from training_runs import TINY

from page4d.errors import UsageError
from page4d.models.config import PRESETS as NETWORKS
from page4d.training.supervised.config import (
    EvaluationConfig,
    Family,
    HintConfig,
    OptimizerConfig,
    Shot,
    Stage,
    TrainConfig,
)
from page4d.training.supervised.presets import PRESETS

STAGE = TINY.stages[0]


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_is_json_and_back(name):
    config = PRESETS[name]
    assert TrainConfig.from_json(config.to_json()) == config
    assert TrainConfig.from_json(config.to_json(indent=1)) == config


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_trains_a_network_that_exists_at_sizes_that_it_takes(name):
    network = NETWORKS[PRESETS[name].model]
    sizes = [size for stage in PRESETS[name].stages for size in stage.sizes]
    sizes.append(PRESETS[name].evaluation.image_size)
    assert all(side % network.patch_size == 0 for size in sizes for side in size)


def test_what_is_left_out_takes_its_default():
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
def test_text_that_is_no_configuration_names_the_place(text, place):
    with pytest.raises(UsageError) as raised:
        TrainConfig.from_json(text)
    assert place in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(TINY, stages=()),
        lambda: replace(TINY, stages=(replace(STAGE, start=0.5),)),
        lambda: replace(TINY, stages=(STAGE, replace(STAGE, start=0.5), replace(STAGE, start=0.2))),
        lambda: replace(TINY, sources=()),
        lambda: replace(TINY, seed=-1),
        lambda: replace(TINY, decay_fraction=1.5),
        lambda: replace(TINY, accumulation=0),
        lambda: replace(TINY, workers=-1),
        lambda: replace(TINY, precision="fp16"),
        lambda: replace(STAGE, shots=()),
        lambda: replace(STAGE, sizes=((4, 40),)),
        lambda: replace(STAGE, shots=(Shot(times=1, views=2, weight=0),)),
        lambda: replace(STAGE, families=(Family(name="single"),)),
        lambda: Stage(start=1.0, sizes=((28, 42),), shots=(Shot(times=1, views=2),)),
        lambda: Shot(times=0, views=2),
        lambda: Family(name="arc", spacing_deg=(20, 10)),
        lambda: OptimizerConfig(learning_rate=0),
        lambda: OptimizerConfig(betas=(0.9, 1.0)),
        lambda: HintConfig(cameras=0.7, intrinsics=0.7),
        lambda: EvaluationConfig(scenes=0),
    ],
)
def test_nonsense_is_refused_with_numbers_and_advice(make):
    with pytest.raises(UsageError) as raised:
        make()
    assert raised.value.message
    assert raised.value.hint
