"""Twins-SVT: recorded outputs, local attention against a block mask, sub-sampled keys of maps of any size."""

import pytest
import torch
from torch import Tensor

from page4d.networks.encoders.twins import SubSampledAttention, Twins, TwinsConfig, TwinsDesign
from page4d.weights.families.encoders import TWINS_TIMM
from tests.encoders.recorded import Recorded, assert_recorded, channels_last, load_recorded
from tests.keymaps import rename

SMALL = TwinsConfig(
    image_size=32, patches=(2, 2), dims=(8, 16), depths=(2, 4), num_heads=(2, 4), windows=(4, 3), reductions=(4, 2)
)


def document_weights(recorded: Recorded, config: TwinsConfig) -> dict[str, Tensor]:
    """Convert 1 x 1 convolutions to linear layers, and separate projections to fused ones."""
    theirs = recorded.part("weights/")
    ours = {}

    def take(name: str) -> Tensor:
        value = theirs.pop(name)
        return value.reshape(-1) if name.endswith((".g", ".b", "bias")) else value

    def norm(target: str, source: str) -> None:
        ours[f"{target}.weight"], ours[f"{target}.bias"] = take(f"{source}.g"), take(f"{source}.b")

    def linear(target: str, source: str) -> None:
        ours[f"{target}.weight"] = take(f"{source}.weight").flatten(1)
        ours[f"{target}.bias"] = take(f"{source}.bias")

    def feed_forward(target: str, source: str) -> None:
        norm(f"{target}.norm2", f"{source}.net.0")
        linear(f"{target}.mlp.fc1", f"{source}.net.1")
        linear(f"{target}.mlp.fc2", f"{source}.net.4")

    for stage, side in enumerate(config.patches):
        patches = f"stages.{stage}.patches.embed"
        norm(f"{patches}.patch_norm", f"layers.{stage}.0.proj.0")
        linear(f"{patches}.proj", f"layers.{stage}.0.proj.1")
        norm(f"{patches}.norm", f"layers.{stage}.0.proj.2")
        for name in ("patch_norm.weight", "patch_norm.bias", "proj.weight"):
            ours[f"{patches}.{name}"] = channels_last(ours[f"{patches}.{name}"], (side, side))
        ours[f"stages.{stage}.positions.proj.weight"] = theirs.pop(f"layers.{stage}.2.proj.fn.weight")
        ours[f"stages.{stage}.positions.proj.bias"] = take(f"layers.{stage}.2.proj.fn.bias")
        number = 0
        local = config.is_local(stage, 0)
        pairs = config.depths[stage] // (2 if local else 1)
        for source in [f"layers.{stage}.1.layers.0", *(f"layers.{stage}.3.layers.{i}" for i in range(pairs - 1))]:
            if local:
                block = f"stages.{stage}.blocks.{number}"
                norm(f"{block}.norm1", f"{source}.0.fn.norm")
                parts = [take(f"{source}.0.fn.{part}.weight").flatten(1) for part in ("to_q", "to_kv")]
                ours[f"{block}.attn.inside.qkv.weight"] = torch.cat(parts)
                linear(f"{block}.attn.inside.proj", f"{source}.0.fn.to_out.0")
                feed_forward(block, f"{source}.1.fn")
                number += 1
            block = f"stages.{stage}.blocks.{number}"
            norm(f"{block}.norm1", f"{source}.2.fn.norm")
            ours[f"{block}.attn.q.weight"] = take(f"{source}.2.fn.to_q.weight").flatten(1)
            ours[f"{block}.attn.kv.weight"] = take(f"{source}.2.fn.to_kv.weight").permute(0, 2, 3, 1).flatten(1)
            linear(f"{block}.attn.proj", f"{source}.2.fn.to_out.0")
            feed_forward(block, f"{source}.3.fn")
            number += 1
    ours["head.weight"], ours["head.bias"] = theirs.pop("layers.6.weight"), theirs.pop("layers.6.bias")
    assert not theirs
    return ours


def recorded_twins(recorded: Recorded) -> Twins:
    given = recorded.config
    stages = range(1, 5)
    config = TwinsConfig(
        image_size=recorded.meta["image_hw"][0],
        patches=tuple(given[f"s{i}_patch_size"] for i in stages),
        dims=tuple(given[f"s{i}_emb_dim"] for i in stages),
        depths=tuple((1 + given[f"s{i}_depth"]) * (2 if i < 4 else 1) for i in stages),
        num_heads=(recorded.meta["heads"],) * 4,
        head_dim=recorded.meta["dim_head"],
        windows=tuple(given[f"s{i}_local_patch_size"] for i in stages),
        reductions=tuple(given[f"s{i}_global_k"] for i in stages),
        position_kernel=given["peg_kernel_size"],
        norm_eps=1e-5,
        design=TwinsDesign.DOCUMENT,
        num_classes=given["num_classes"],
    )
    network = Twins(config)
    network.load_state_dict(document_weights(recorded, config))
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["twins_svt_a", "twins_svt_b"])
def test_outputs_match_the_recordings(name: str) -> None:
    recorded = load_recorded(name)
    network, images = recorded_twins(recorded), recorded["input/images"]

    def agrees(maps: Tensor, reference: str) -> None:
        assert_recorded(maps.movedim(-1, 1), recorded[f"mid/{reference}"])

    stage = network.stages[0]
    maps = stage.patches(images.movedim(1, -1))
    for block, names in zip(stage.blocks, (("lsa", "ff1"), ("gsa", "ff2")), strict=False):
        maps = maps + block.attn(block.norm1(maps))
        agrees(maps, f"stage0_{names[0]}_residual")
        maps = maps + block.mlp(block.norm2(maps))
        agrees(maps, f"stage0_{names[1]}_residual")
    maps = images.movedim(1, -1)
    for number, stage in enumerate(network.stages):
        agrees(stage.patches(maps), f"stage{number}_patch_embedding")
        seen = []
        handle = stage.positions.register_forward_hook(lambda *seen_by_hook: seen.append(seen_by_hook[2]))  # noqa: B023
        maps = stage(maps)
        handle.remove()
        agrees(seen[0], f"stage{number}_peg")
        agrees(maps, f"stage{number}_out")
    assert_recorded(network.forward_features(images), recorded["mid/pooled"])
    assert_recorded(network.classify(images), recorded["output/logits"])


def test_outputs_of_the_published_design_match_the_recordings() -> None:
    """Maps that neither windows nor reductions divide, and a stage without sub-sampling."""
    recorded = load_recorded("twins_paper")
    given = recorded.config
    config = TwinsConfig(
        patches=(given["patch_size"], 2, 2),
        dims=tuple(given["embed_dims"]),
        depths=tuple(given["depths"]),
        num_heads=tuple(given["num_heads"]),
        windows=tuple(given["wss"]),
        reductions=tuple(given["sr_ratios"]),
        mlp_ratio=given["mlp_ratios"][0],
        num_classes=given["num_classes"],
    )
    network = Twins(config).eval().requires_grad_(False)
    network.load_state_dict(rename(recorded.part("weights/"), TWINS_TIMM))
    images = recorded["input/images"]
    assert_recorded(network.levels(images)[-1].flatten(1, 2), recorded["mid/norm_out"].reshape(2, -1, 32))
    assert_recorded(network.classify(images), recorded["output/logits"])


@pytest.mark.parametrize("design", list(TwinsDesign))
def test_every_whole_square_has_one_key_and_a_small_map_has_one(design: TwinsDesign) -> None:
    layer = SubSampledAttention(TwinsConfig(**{**vars(SMALL), "design": design}), 0).double()
    for grid, keys in (((8, 12), 6), ((9, 7), 2), ((2, 3), 1)):
        maps = torch.randn(2, *grid, 8, dtype=torch.float64)
        assert layer.sub_sampled(maps).shape[1] == keys
        assert layer(maps).shape == maps.shape


@pytest.mark.parametrize("level", [None, 0])
def test_tokens_are_those_of_the_configured_level(level: int | None) -> None:
    config = TwinsConfig(**{**vars(SMALL), "level": level})
    network, images = Twins(config), torch.rand(2, 3, 20, 12)
    encoded = network(images)
    assert [maps.shape[1:3] for maps in network.levels(images)] == [(10, 6), (5, 3)]
    assert encoded.grid == ((5, 3) if level is None else (10, 6))
    assert encoded.tokens.shape[-1] == config.embed_dim == (16 if level is None else 8)
    assert config.patch_size == (4 if level is None else 2)
