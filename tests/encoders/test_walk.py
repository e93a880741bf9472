"""The walk of shapes through an encoder is the specification's, and accounts for every parameter."""

from dataclasses import replace

import pytest
import torch

from page4d.encoders.build import build_encoder
from page4d.encoders.presets import ENCODER_PRESETS
from page4d.encoders.vit import Pooling
from page4d.encoders.walk import walk_encoder
from page4d.errors import ShapeError


def test_vit_b16_walks_as_specified() -> None:
    stages = walk_encoder(ENCODER_PRESETS["vit-b16"], batch=2)
    shapes = [stage.shape for stage in stages]
    assert shapes[:3] == [(2, 3, 224, 224), (2, 196, 768), (2, 197, 768)]
    assert shapes[3:-3] == [(2, 197, 768)] * 12
    assert shapes[-3:] == [(2, 197, 768), (2, 768), (2, 1000)]
    assert sum(stage.parameters for stage in stages) == 86_567_656
    assert [stage.parameters for stage in stages[1:4]] == [590_592, 151_296 + 768, 7_087_872]


SHALLOW = {
    "vit-s16": {"depth": 1},
    "swin-t": {"depths": (1, 1, 2, 1)},
    "twins-svt-s": {"depths": (2, 1, 1, 2)},
    "navit": {"depth": 1},
}


@pytest.mark.parametrize("name", list(SHALLOW))
def test_the_parts_have_all_parameters(name: str) -> None:
    config = replace(ENCODER_PRESETS[name], **SHALLOW[name])
    level = {"level": 1} if "depths" in SHALLOW[name] else {}
    for chosen in (config, replace(config, num_classes=None, **level)):
        with torch.device("meta"):
            total = sum(value.numel() for value in build_encoder(chosen).parameters())
        assert sum(stage.parameters for stage in walk_encoder(chosen)) == total


def test_pyramids_halve_their_sides_and_images_share_sequences() -> None:
    swin = walk_encoder(ENCODER_PRESETS["swin-t"], batch=3, size=(224, 448))
    last_of_stages = {stage.part: stage.shape for stage in swin if stage.name.startswith("block")}
    assert list(last_of_stages.values()) == [(3, 56, 112, 96), (3, 28, 56, 192), (3, 14, 28, 384), (3, 7, 14, 768)]
    twins = walk_encoder(replace(ENCODER_PRESETS["twins-svt-s"], depths=(1, 1, 1, 1)))
    assert [stage.shape for stage in twins if stage.name == "patches"][-1] == (1, 7, 7, 512)
    navit = walk_encoder(replace(ENCODER_PRESETS["navit"], depth=1), batch=5, size=(384, 512))
    assert navit[1].shape == (3, 2 * 24 * 32, 768)
    assert [stage.shape for stage in navit[-3:]] == [(3, 2, 768), (5, 768), (5, 1000)]


def test_without_a_class_token_the_patches_stay_alone() -> None:
    stages = walk_encoder(replace(ENCODER_PRESETS["vit-s16"], pooling=Pooling.MEAN))
    assert {stage.shape for stage in stages[1:-2]} == {(1, 196, 384)}
    with pytest.raises(ShapeError, match="patches of 16 px"):
        walk_encoder(ENCODER_PRESETS["vit-s16"], size=(200, 224))
