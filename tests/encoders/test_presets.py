"""Claims of all encoders: numbers of parameters, independent images, gradients, refused configurations."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from page4d.errors import ShapeError, UsageError
from page4d.networks.encoders.build import ENCODER_PRESETS, EncoderConfig, build_encoder, without_head
from page4d.networks.encoders.dino import DinoV2Config, DinoV3Config
from page4d.networks.encoders.navit import NaViTConfig
from page4d.networks.encoders.stem import Stem, StemConfig
from page4d.networks.encoders.swin import SwinConfig
from page4d.networks.encoders.twins import TwinsConfig
from page4d.networks.encoders.vit import PatchEmbedding, ViTConfig
from page4d.networks.layers.block import DropPath, FeedForwardKind

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

DINOV2 = DinoV2Config(image_size=56, embed_dim=16, depth=2, num_heads=2, num_registers=3)
STEM = StemConfig(image_size=64, embed_dim=16, fine_dim=4, depth=1, num_heads=2)
VIT = ViTConfig(image_size=28, patch_size=14, embed_dim=16, depth=2, num_heads=2)
ENCODERS: dict[str, EncoderConfig] = {
    "dinov2": DINOV2,
    "dinov2, swiglu": replace(DINOV2, feed_forward=FeedForwardKind.SWIGLU),
    "dinov3": DinoV3Config(image_size=28, patch_size=14, embed_dim=16, depth=2, num_heads=2, num_registers=3),
    "stem": STEM,
    "vit": VIT,
}
"""Those of tests/networks/test_encoders_in_networks.py are compared there."""

SIZE = (56, 112)
SWIN = SwinConfig(image_size=32, first_patch=2, dim=8, depths=(2, 2), num_heads=(2, 4), window=4)
TWINS = TwinsConfig(
    image_size=32, patches=(2, 2), dims=(8, 16), depths=(2, 4), num_heads=(2, 4), windows=(4, 3), reductions=(4, 2)
)
NAVIT = NaViTConfig(image_size=64, patch_size=8, embed_dim=32, depth=1, num_heads=2)
INVALID: list[tuple[EncoderConfig, dict[str, list]]] = [
    (VIT, {"image_size": [30], "embed_dim": [15], "num_classes": [0], "depth": [-1], "drop_path": [1.0]}),
    (VIT, {"patch_width": [4], "num_heads": [0]}),
    (SWIN, {"depths": [(2,)], "num_heads": [(3, 4)], "level": [2], "window": [0], "image_size": [33]}),
    (SWIN, {"drop_path": [-0.1]}),
    (TWINS, {"dims": [(8,)], "num_heads": [(3, 4)], "level": [5], "position_kernel": [2], "windows": [(0, 3)]}),
    (NAVIT, {"image_size": [60], "token_dropout": [1.0], "max_tokens": [0], "depth": [-1], "num_classes": [0]}),
    (STEM, {"image_size": [60, 0], "embed_dim": [18], "fine_dim": [0], "depth": [-1]}),
    (DINOV2, {"drop_path": [-0.1, 1.0]}),
    (ENCODERS["dinov3"], {"embed_dim": [18], "image_size": [500]}),
]


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
    assert count(built(ViTConfig(num_classes=1000, qkv_bias=False))) == 86_540_008
    dual = ViTConfig(num_classes=1000, qkv_bias=False, patch_embedding=PatchEmbedding.DUAL_NORMED)
    assert count(built(dual)) == 86_543_080


@pytest.mark.parametrize("name", ["vit-s16", "swin-t", "twins-svt-s", "navit"])
def test_encoders_of_networks_have_no_head(name: str) -> None:
    config = without_head(ENCODER_PRESETS[name], level=2)
    assert config.num_classes is None
    assert config.patch_size == 16
    assert built(config).head is None


@pytest.mark.parametrize("name", list(ENCODERS))
def test_images_are_encoded_independently_and_every_parameter_gets_a_gradient(name: str) -> None:
    encoder = build_encoder(ENCODERS[name]).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    images = torch.rand(3, 3, *SIZE, dtype=torch.float64)
    together = encoder(images)
    patch = ENCODERS[name].patch_size
    assert together.grid == (SIZE[0] // patch, SIZE[1] // patch)
    assert together.tokens.shape == (3, together.grid[0] * together.grid[1], ENCODERS[name].embed_dim)
    assert together.tokens.dtype is torch.float64
    outputs = [value for value in (together.tokens, together.fine) if value is not None]
    if isinstance(encoder, Stem):
        assert together.fine.shape == (3, STEM.fine_dim, SIZE[0] // 2, SIZE[1] // 2)
    for index in range(3):
        alone = encoder(images[index : index + 1])
        torch.testing.assert_close(alone.tokens[0], together.tokens[index], rtol=0, atol=1e-11)
        if together.fine is not None:
            torch.testing.assert_close(alone.fine[0], together.fine[index], rtol=0, atol=1e-11)
    sum(value.square().sum() for value in outputs).backward()
    assert [name for name, value in encoder.named_parameters() if value.grad is None or not value.grad.any()] == []


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [(config, name, value) for config, changes in INVALID for name, values in changes.items() for value in values],
    ids=lambda value: str(value) if isinstance(value, str) else type(value).__name__,
)
def test_invalid_configurations_are_refused(config: EncoderConfig, name: str, value: object) -> None:
    build_encoder(config)
    with pytest.raises(UsageError) as caught:
        replace(config, **{name: value})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("config", "patch"),
    [(DINOV2, 14), (ENCODERS["dinov3"], 14), (STEM, 8), (VIT, 14), (SWIN, 4), (TWINS, 4)],
    ids=lambda value: type(value).__name__,
)
def test_sizes_that_do_not_divide_into_patches_are_refused(config: EncoderConfig, patch: int) -> None:
    encoder = build_encoder(config)
    for size in ((3 * patch, 5 * patch - 2), (3 * patch - 2, 5 * patch)):
        with pytest.raises(ShapeError, match=f"{size[1]} x {size[0]} px .* patches of {patch} px"):
            encoder(torch.rand(1, 3, *size))


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (replace(DINOV2, depth=3), [0, 0.15, 0.3]),
        (replace(VIT, depth=4), [0, 0.1, 0.2, 0.3]),
        (SWIN, [0, 0.1, 0.2, 0.3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rates_of_stochastic_depth_grow_with_depth_and_act_in_training_only(
    config: EncoderConfig, rates: list[float]
) -> None:
    dropping = build_encoder(replace(config, drop_path=0.3))
    found = [part.probability for part in dropping.modules() if isinstance(part, DropPath)]
    assert found == pytest.approx(rates)
    images = torch.randn(8, 3, 28, 28)
    assert not torch.equal(dropping(images).tokens, dropping(images).tokens)
    assert torch.equal(dropping.eval()(images).tokens, dropping(images).tokens)


def test_tokens_of_the_stem_depend_on_relative_positions() -> None:
    stem, images = build_encoder(STEM), torch.rand(1, 3, 8, 32)
    swapped = torch.cat([images[..., 16:], images[..., :16]], dim=-1)
    assert (stem(images).tokens[:, 0] - stem(swapped).tokens[:, 2]).abs().max() > 1e-4
