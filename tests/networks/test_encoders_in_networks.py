"""The view x time network on every encoder: learning, independent images, half precision, presets."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.lab.training.optimizers import OptimizerConfig, build_optimizer
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig
from page4d.networks.encoders.navit import NaViTConfig
from page4d.networks.encoders.swin import SwinConfig
from page4d.networks.encoders.twins import TwinsConfig, TwinsDesign
from page4d.networks.encoders.vit import PatchEmbedding, Pooling, ViTConfig
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.networks.presets import PRESETS
from page4d.weights.loading import LoadedNetwork
from tests.networks.small_networks import without_gradient

SWIN = SwinConfig(image_size=32, first_patch=2, dim=16, depths=(2, 2), num_heads=(2, 4), window=3)
TWINS = TwinsConfig(
    patches=(2, 2), dims=(16, 32), depths=(2, 2), num_heads=(2, 4), windows=(3, 3), reductions=(4, 2), image_size=32
)
VIT = ViTConfig(image_size=32, patch_size=4, embed_dim=32, depth=2, num_heads=2)
ENCODERS: dict[str, EncoderConfig] = {
    "vit": VIT,
    "vit-variant": replace(VIT, pooling=Pooling.MEAN, patch_embedding=PatchEmbedding.DUAL_NORMED, head_dim=8),
    "swin": SWIN,
    "swin-fused": replace(SWIN, dim=32, level=0),
    "twins": TWINS,
    "twins-fused": replace(TWINS, dims=(32, 48), level=0),
    "twins-document": replace(TWINS, design=TwinsDesign.DOCUMENT, norm_eps=1e-5),
    "navit": NaViTConfig(image_size=32, patch_size=4, embed_dim=32, depth=1, num_heads=2, head_dim=12),
}
SIZE = (16, 28)


def network_on(name: str) -> NetworkConfig:
    return replace(PRESETS["mv-tiny"], encoder=ENCODERS[name], point_head=None)


def images_of(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(1, 2, 2, 3, *SIZE, generator=torch.Generator().manual_seed(3), dtype=dtype)


def task_loss(out: NetworkOutput) -> Tensor:
    losses = [pose.square().mean() for pose in out.pose_encoding_iterations]
    return torch.stack([*losses, out.depth.log().square().mean(), out.depth_confidence.log().mean()]).sum()


@pytest.fixture(params=list(ENCODERS))
def network(request: pytest.FixtureRequest) -> ViewTimeNetwork:
    torch.manual_seed(0)
    return build_network(network_on(request.param))


def test_a_step_lowers_the_loss_and_every_encoder_parameter_gets_a_gradient(network: ViewTimeNetwork) -> None:
    with torch.no_grad():  # a clipped field of view has no gradient
        network.camera_head.pose_branch.fc2.bias[7:] += 2
    out = network(images_of())
    assert out.depth.shape == (1, 2, 2, *SIZE)
    before = task_loss(out)
    before.backward()
    assert without_gradient(network.encoder) == []
    torch.optim.AdamW(network.parameters(), lr=1e-3).step()
    assert task_loss(network(images_of())) < before


def test_images_are_encoded_independently(network: ViewTimeNetwork) -> None:
    network.double().eval()
    with torch.no_grad():
        whole = network(images_of(torch.float64))
        parts = network(images_of(torch.float64), limits=ForwardLimits(max_images=1))
        frames = images_of(torch.float64).flatten(0, 2)
        torch.testing.assert_close(
            network.encoder(frames[1:2]).tokens, network.encoder(frames).tokens[1:2], rtol=0, atol=1e-11
        )
    torch.testing.assert_close(parts.depth, whole.depth, rtol=0, atol=1e-11)
    patch = network.config.patch_size
    assert network.encoder(frames).grid == (SIZE[0] // patch, SIZE[1] // patch)


def test_half_precision_weights_equal_autocast(network: ViewTimeNetwork) -> None:
    half = LoadedNetwork(network.config, torch.bfloat16)
    half.load_state_dict(network.state_dict())
    with torch.no_grad():
        ours = half.eval()(images_of())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            theirs = network.eval()(images_of())
    assert torch.equal(ours.depth, theirs.depth)
    assert torch.equal(ours.pose_encoding, theirs.pose_encoding)
    linear = next(block for block in half.encoder.modules() if type(block).__name__ == "MixerBlock").mlp.fc1
    assert linear.weight.dtype is torch.bfloat16


def test_position_tables_and_gains_have_no_weight_decay(network: ViewTimeNetwork) -> None:
    encoder = network.encoder
    decaying = {
        id(value)
        for group in build_optimizer(encoder, OptimizerConfig()).param_groups
        if group["weight_decay"] > 0
        for value in group["params"]
    }
    found = {name for name, value in encoder.named_parameters() if id(value) in decaying}
    excluded = ("table", "pos_embed", "row_embed", "column_embed", "cls_token", "gamma", "bias", "norm")
    assert found
    assert not [name for name in found if name.rsplit(".", 1)[-1] in excluded or "norm" in name.split(".")[-2]]


@pytest.mark.parametrize("name", ["mv-vit", "mv-swin", "mv-twins", "mv-navit"])
def test_presets_on_published_encoders_can_be_built(name: str) -> None:
    with torch.device("meta"):
        network = build_network(PRESETS[name])
        encoded = network.encoder(torch.rand(2, 3, 64, 96))
    assert encoded.grid == (4, 6)
    assert encoded.tokens.shape == (2, 24, network.config.encoder.embed_dim)
