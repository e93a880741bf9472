"""Profiles of encoders on the meta device against runs on the CPU and published numbers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from page4d.errors import ShapeError, UsageError
from page4d.lab.pretraining.mae import MAEConfig, MaskedAutoencoder
from page4d.lab.pretraining.profiles import profile_mae
from page4d.networks.encoders.build import ENCODER_PRESETS, ClassifierConfig, build_encoder
from page4d.networks.encoders.vit import Pooling, ViTConfig
from page4d.networks.profile.encoders import profile_encoder
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.table import Profile, axis_length

SHALLOW: dict[str, ClassifierConfig] = {
    "vit": replace(ENCODER_PRESETS["vit-s16"], depth=2),
    "vit without a class token": replace(ENCODER_PRESETS["vit-s16"], depth=1, pooling=Pooling.MEAN),
    "swin": replace(ENCODER_PRESETS["swin-t"], depths=(1, 2, 2, 1), absolute_positions=True),
    "twins": replace(ENCODER_PRESETS["twins-svt-s"], depths=(2, 1, 1, 2)),
    "navit": replace(ENCODER_PRESETS["navit"], depth=1, embed_dim=192, num_heads=3, max_tokens=90),
}
FUSED = {"class token", "one vector per image", "class token (not used)"}
"""Stages whose output is not a tensor of a run."""
BATCH, SIZE = 3, (64, 160)
MAE = MAEConfig(
    encoder=ViTConfig(image_size=96, embed_dim=96, depth=2, num_heads=3),
    decoder_dim=64,
    decoder_depth=1,
    decoder_heads=2,
)


def classify(config: ClassifierConfig) -> tuple[Profile, nn.Module, Callable[[], object]]:
    torch.manual_seed(0)
    encoder = build_encoder(config).eval().requires_grad_(False)
    return (
        profile_encoder(config, batch=BATCH, size=SIZE),
        encoder,
        lambda: encoder.classify(torch.rand(BATCH, 3, *SIZE)),
    )


def reconstruct() -> tuple[Profile, nn.Module, Callable[[], object]]:
    network = MaskedAutoencoder(MAE).eval().requires_grad_(False)
    return profile_mae(MAE, batch=BATCH, size=SIZE), network, lambda: network(torch.rand(BATCH, 3, *SIZE))


CASES = {**{name: lambda config=config: classify(config) for name, config in SHALLOW.items()}, "mae": reconstruct}


class Shapes(TorchDispatchMode):
    """Collects the shapes of all tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        self.seen |= {tuple(value.shape) for value in tree_iter((args, results)) if isinstance(value, torch.Tensor)}
        return results


@pytest.mark.parametrize("name", list(CASES))
def test_shapes_flops_memory_and_parameters_equal_a_run(name: str) -> None:
    profile, encoder, run = CASES[name]()
    with Shapes() as shapes:
        run()
    for stage in profile.stages:
        assert stage.shape == tuple(axis_length(axis, profile.symbols) for axis in stage.symbolic)
        merged = (stage.shape[0], stage.shape[1] * stage.shape[2], stage.shape[3]) if len(stage.shape) == 4 else ()
        assert {stage.shape, merged} & shapes.seen or stage.name in FUSED, (stage.name, stage.shape)
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        run()
    assert profile.flops == counted.get_total_flops()
    with LiveBytes() as held:
        run()
    # NaViT packs outside of the profile, and its masks are built from boolean tables.
    assert profile.computed_bytes == pytest.approx(held.peak, rel=0.1 if name == "navit" else 0.01)
    total = sum(value.numel() for value in encoder.parameters())
    assert profile.parameters == total == sum(stage.parameters for stage in profile.stages)


def test_vit_b16_has_the_published_shapes_and_parameters() -> None:
    profile = profile_encoder(ENCODER_PRESETS["vit-b16"], batch=2)
    shapes = [stage.shape for stage in profile.stages]
    assert shapes[:4] == [(2, 3, 224, 224), (2, 196, 768), (2, 197, 768), (2, 197, 768)]
    assert shapes[4:-3] == [(2, 197, 768)] * 12
    assert shapes[-3:] == [(2, 197, 768), (2, 768), (2, 1000)]
    assert profile.parameters == 86_567_656
    assert [stage.parameters for stage in profile.stages[1:5]] == [589_824 + 768, 768, 151_296, 7_087_872]
    assert profile.stages[-1].parameters == 768_000 + 1000


@pytest.mark.parametrize(("name", "giga_macs"), [("vit-b16", 17.56), ("swin-t", 4.49), ("twins-svt-s", 2.93)])
def test_flops_equal_the_published_ones(name: str, giga_macs: float) -> None:
    """Source: tables of the papers and of the public timm code, in multiply-adds."""
    assert profile_encoder(ENCODER_PRESETS[name]).flops / 2e9 == pytest.approx(giga_macs, rel=0.005)


@pytest.mark.parametrize("name", ["swin", "twins"])
def test_fused_levels_count_their_parameters(name: str) -> None:
    profile = profile_encoder(replace(SHALLOW[name], num_classes=None, level=1))
    assert profile.parameters == sum(stage.parameters for stage in profile.stages)
    fusion = profile.stages[-1]
    assert (fusion.name, fusion.shape) == ("fused levels from 1 on", (1, 28, 28, profile.symbols["C1"]))
    assert fusion.parameters > 0


def test_images_share_sequences_up_to_max_tokens() -> None:
    profile = profile_encoder(replace(ENCODER_PRESETS["navit"], depth=1), batch=5, size=(384, 512))
    assert profile.stages[1].shape == (3, 2 * 24 * 32, 768)
    assert [stage.shape for stage in profile.stages[-3:]] == [(3, 2, 768), (5, 768), (5, 1000)]


def test_images_of_unsupported_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="patches of 16 px"):
        profile_encoder(ENCODER_PRESETS["vit-s16"], size=(200, 224))
    with pytest.raises(ShapeError, match="patches of 32 px"):
        profile_encoder(ENCODER_PRESETS["swin-t"], size=(240, 224))
    with pytest.raises(ShapeError, match="the position tables cover 32 x 32"):
        profile_encoder(ENCODER_PRESETS["navit"], size=(224, 528))
    with pytest.raises(UsageError, match="0 images"):
        profile_encoder(ENCODER_PRESETS["vit-s16"], batch=0)
