"""Trunk, biased blocks and mask heads reproduce recorded numbers of the view x time reference."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.networks import tokens as tokens_module
from page4d.networks.config import NetworkConfig, Schedule, Step, images_together, merge, split
from page4d.networks.config_parts import DPTHeadConfig, MaskConfig, MaskHeadKind
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.heads.motion import MASK_HEADS
from page4d.networks.layers.attention import LogitsBias, rotary_tables
from page4d.networks.layers.block import Block, BlockConfig, PatchEmbed
from page4d.networks.tokens import MaskBias, Stream, token_positions
from page4d.networks.trunk import Aggregator
from tests.networks.naive_twin import run_on_tokens, run_trunk

GRID = (3, 4)
BLOCK = BlockConfig(dim=64, num_heads=4, qk_norm_eps=1e-5, layer_scale=0.01)

BIASES = {
    "view.unbiased": None,
    "view.key_bias_pose_lambda1.5": (Stream.POSE, 1.5),
    "view.key_bias_geo_lambda2": (Stream.GEOMETRY, 2.0),
    "view.row_masked_pose_lambda1.5": (Stream.POSE, 1.5),
    "time.unbiased": None,
    "time.key_bias_pose_lambda0.7": (Stream.POSE, 0.7),
    "time.key_bias_geo_lambda3": (Stream.GEOMETRY, 3.0),
}


def block_of(weights: dict[str, Tensor], name: str) -> Block:
    block = Block(BLOCK)
    block.load_state_dict({key.removeprefix(name): value for key, value in weights.items() if key.startswith(name)})
    return block.requires_grad_(False)


@pytest.mark.parametrize("variant", list(BIASES))
@pytest.mark.parametrize("learning", [False, True], ids=["additive", "folded"])
def test_biased_block(golden: Callable, agrees: Callable, variant: str, learning: bool):
    """With both implementations of a key bias: a broadcast mask, and extra channels if lambda has a gradient."""
    loaded = golden("mv_block_bias")
    step = Step(variant.split(".")[0])
    tokens, mask = loaded.tensors["input/tokens"], loaded.tensors["input/mask"]
    assert torch.equal(loaded.tensors["input/pos"][0, 0, 0], token_positions(GRID, 5))
    bias: LogitsBias | None = None
    if BIASES[variant] is not None:
        stream, value = BIASES[variant]
        rows = "special" if "row_masked" in variant else "all"
        weights = MaskBias(MaskConfig(bias_rows=rows), num_special=5).requires_grad_(learning)
        suffix = "" if step.across_views else "_t"
        chosen = getattr(weights, ("lambda_pose" if stream is Stream.POSE else "lambda_geo") + suffix)
        chosen.data.fill_(value)
        bias = weights(mask, stream, step)
    rope = rotary_tables(token_positions(GRID, 5), 16).repeat(images_together(step, 2, 3))
    out = block_of(loaded.part("weights/"), f"{step}_blocks.0.")(merge(tokens, step), rope, bias)
    agrees(split(out, step, (1, 2, 3, 17)), loaded.tensors[f"output/{variant}"])


def trunk_of(weights: dict[str, Tensor], schedule: Schedule, names: dict[Step, str]) -> Aggregator:
    head = DPTHeadConfig(layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 4, 4))
    encoder = DinoV2Config(image_size=28, embed_dim=64, depth=0, num_heads=4)
    config = NetworkConfig(encoder=encoder, depth=4, num_heads=4, schedule=schedule, depth_head=head)
    trunk = Aggregator(config)
    for step in schedule:
        for layer in range(4):
            block = block_of(weights, f"{names[step]}_blocks.{layer}.")
            trunk.blocks[step][layer].load_state_dict(block.state_dict())
    return trunk.requires_grad_(False)


@pytest.mark.parametrize(
    ("name", "schedule"), [("time_view", (Step.TIME, Step.VIEW)), ("view_time", (Step.VIEW, Step.TIME))]
)
def test_trunk(golden: Callable, agrees: Callable, name: str, schedule: Schedule):
    loaded = golden("mv_trunk")
    trunk = trunk_of(loaded.part("weights/"), schedule, {Step.TIME: "time", Step.VIEW: "view"})
    out = run_on_tokens(trunk, loaded.tensors["input/tokens"], GRID)
    for layer in (0, 3):
        agrees(out.levels[layer], loaded.tensors[f"output/{name}.layer{layer}"])


def test_the_unmodified_reference(golden: Callable, agrees: Callable, monkeypatch: pytest.MonkeyPatch):
    """From images to trunk tokens; the reference has special tokens at (1, 1) instead of (0, 0)."""
    loaded, blocks = golden("mv_aggregator_asis"), golden("mv_trunk").part("weights/")
    weights, images = loaded.part("weights/"), loaded.tensors["input/images"]
    grid = tuple(loaded.meta["patch_grid"])
    embed = PatchEmbed(64, 14).requires_grad_(False)
    embed.load_state_dict({name.removeprefix("patch_embed."): weights[name] for name in weights if "proj" in name})
    trunk = trunk_of(blocks, (Step.VIEW, Step.TIME), {Step.TIME: "time", Step.VIEW: "view"})
    trunk.special.load_state_dict({name: weights[name] for name in ("camera_token", "register_token")})
    monkeypatch.setattr(tokens_module, "token_positions", lambda *where: token_positions(*where).clamp(min=1))
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    patches = embed((images.flatten(0, 2) - mean) / deviation).unflatten(0, images.shape[:3])
    out = run_trunk(trunk, patches, grid)
    for layer in (0, 3):
        agrees(out.levels[layer], loaded.tensors[f"output/layer{layer}"])


@pytest.fixture(scope="module")
def features(golden: Callable) -> Tensor:
    tokens = golden("mv_mask_heads").tensors["input/tokens"]
    return tokens[0, :, 5:].transpose(1, 2).unflatten(2, GRID)


def head_output(loaded, prefix: str, kind: MaskHeadKind, features: Tensor) -> Tensor:
    head = MASK_HEADS[kind](64)
    own = set(head.state_dict())
    head.load_state_dict({name: value for name, value in loaded.part(f"weights/{prefix}.").items() if name in own})
    with torch.no_grad():
        return head(features).flatten(1)


def test_tempered_mask_head(golden: Callable, agrees: Callable, features: Tensor):
    loaded = golden("mv_mask_heads")
    ours = head_output(loaded, "ckpt150", MaskHeadKind.CKPT150, features)
    temperature = softplus(loaded.tensors["weights/ckpt150.tau_logit"]) + 1e-6
    agrees(-ours[None] * temperature, loaded.tensors["output/ckpt150.m_logit"])
    strength = softplus(loaded.tensors["weights/ckpt150.alpha_logit"]) + 1e-6
    key_bias = -0.5 * (strength * ours[None].sigmoid()).clamp(0, 1)
    agrees(key_bias, loaded.tensors["output/ckpt150.key_bias"][..., 5:])


def test_conv_mask_head(golden: Callable, agrees: Callable, features: Tensor):
    loaded = golden("mv_mask_heads")
    ours = head_output(loaded, "dynamic", MaskHeadKind.CONV, features)
    agrees(ours.reshape(1, 2, 3, 12), loaded.tensors["output/dynamic.M_tilde"])
    # The reference standardises the logits of each frame, which equalises the amount of motion; page4d does not.
    standard = (ours - ours.mean(-1, keepdim=True)) / ours.std(-1, keepdim=True)
    agrees(standard.sigmoid().reshape(1, 2, 3, 12), loaded.tensors["output/dynamic.M_reference_no_ext"])


def test_release_mask_head(golden: Callable, agrees: Callable, features: Tensor):
    loaded = golden("mv_mask_heads")
    ours = head_output(loaded, "official", MaskHeadKind.RELEASE, features)
    agrees((-ours[None]).sigmoid() - 0.5, loaded.tensors["output/official.key_value"][..., 5:])
