"""Presets have the published numbers of parameters."""

import pytest
import torch
from torch import nn

from page4d.networks.encoders.build import ENCODER_PRESETS, build_encoder, without_head
from page4d.networks.encoders.vit import PatchEmbedding, ViTConfig

PUBLISHED = {
    "vit-s16": 22_050_664,
    "vit-b16": 86_567_656,
    "vit-b32": 88_224_232,
    "vit-l16": 304_326_632,
    "vit-h14": 632_045_800,
    "swin-t": 28_288_354,
    "swin-s": 49_606_258,
    "swin-b": 87_768_224,
    "twins-svt-s": 24_060_776,
}
ROUNDED = {"twins-svt-b": 56.07e6, "twins-svt-l": 99.27e6}


def count(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def built(config: object) -> nn.Module:
    with torch.device("meta"):
        return build_encoder(config)


@pytest.mark.parametrize("name", list(ENCODER_PRESETS))
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    number = count(built(ENCODER_PRESETS[name]))
    if name in PUBLISHED:
        assert number == PUBLISHED[name]
    elif name in ROUNDED:
        assert number == pytest.approx(ROUNDED[name], abs=5e3)
    else:
        assert name == "navit"


def test_the_parts_of_vit_b16_have_their_numbers_of_parameters() -> None:
    network = built(ENCODER_PRESETS["vit-b16"])
    assert network.patches.embed.proj.weight.numel() == 589_824
    assert network.pos_embed.numel() == 151_296
    assert [count(block) for block in network.blocks] == [7_087_872] * 12
    assert network.head.weight.numel() == 768_000


def test_variants_of_vit_b16_have_their_numbers_of_parameters() -> None:
    """Without biases of queries, keys and values; and with norms before and after the patch embedding."""
    plain = ViTConfig(num_classes=1000, qkv_bias=False)
    assert count(built(plain)) == 86_540_008
    dual = ViTConfig(num_classes=1000, qkv_bias=False, patch_embedding=PatchEmbedding.DUAL_NORMED)
    assert count(built(dual)) == 86_543_080


@pytest.mark.parametrize("name", ["vit-s16", "swin-t", "twins-svt-s", "navit"])
def test_encoders_of_networks_have_no_head(name: str) -> None:
    config = without_head(ENCODER_PRESETS[name], level=2)
    assert config.num_classes is None
    assert config.patch_size == 16
    assert built(config).head is None
