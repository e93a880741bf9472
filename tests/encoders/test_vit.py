"""ViT: recorded outputs, position tables of other sizes, initialization, and a training step."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from page4d.errors import UsageError
from page4d.networks.encoders.vit import PatchEmbedding, Pooling, ViT, ViTConfig
from tests.encoders.recorded import VIT_RULES, Recorded, assert_recorded, load_recorded, translated, vit_config

SMALL = ViTConfig(
    image_size=32,
    patch_size=8,
    embed_dim=64,
    depth=2,
    num_heads=4,
    norm_eps=1e-5,
    patch_embedding=PatchEmbedding.NORMED,
    num_classes=10,
)
"""A small classifier of 10 classes."""


def recorded_vit(recorded: Recorded) -> ViT:
    document = recorded.meta.get("variant") == "document_era"
    config = vit_config(recorded.config, num_classes=recorded.config["num_classes"], document=document)
    weights = translated(recorded.part("weights/"), VIT_RULES)
    if config.pooling is Pooling.MEAN:
        assert weights.pop("cls_token").numel() == 0
    network = ViT(config)
    for index in range(config.depth):  # the public code has no output projection for a single head of full width
        weights.setdefault(f"blocks.{index}.attn.proj.weight", torch.eye(config.embed_dim))
        weights.setdefault(f"blocks.{index}.attn.proj.bias", torch.zeros(config.embed_dim))
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["vit_cls_a", "vit_cls_b", "vit_mean_a", "vit_docmean_a"])
def test_outputs_match_the_recordings(name: str) -> None:
    recorded = load_recorded(name)
    network, images = recorded_vit(recorded), recorded["input/images"]
    assert_recorded(network.patches(images), recorded["mid/patch_embedding"])
    tokens = network.embed(images)
    assert_recorded(tokens, recorded["mid/tokens_in"])
    block = network.blocks[0]
    attended = block.attn(block.norm1(tokens))
    assert_recorded(attended, recorded["mid/block0_attn_out"])
    assert_recorded(block.mlp(block.norm2(tokens + attended)), recorded["mid/block0_ff_out"])
    assert_recorded(network.transform(tokens), recorded["mid/transformer_out"])
    assert_recorded(network.forward_features(images), recorded["mid/pooled"])
    assert_recorded(network.classify(images), recorded["output/logits"])
    special = network.config.num_special
    assert torch.equal(network(images).tokens, network.transform(tokens)[:, special:])


def cubic(offset: np.ndarray) -> np.ndarray:
    """Keys' cubic convolution kernel with a = -0.5."""
    distance = np.abs(offset)
    near = 1.5 * distance**3 - 2.5 * distance**2 + 1
    far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def resampling_matrix(old: int, new: int) -> np.ndarray:
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = cubic((centres[:, None] - np.arange(old)[None, :]) / max(old / new, 1))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("grid", [(24, 24), (10, 31)])
def test_a_position_table_is_resampled_with_the_cubic_kernel(grid: tuple[int, int]) -> None:
    """From the 14 x 14 patches of 224 px to the 24 x 24 of 384 px; the entry of the class token is kept."""
    network = ViT(ViTConfig(embed_dim=8, depth=0, num_heads=1)).double()
    ours = network.position_table(grid)[0].detach().numpy()
    old = network.pos_embed[0].detach().numpy()
    rows, columns = (resampling_matrix(14, side) for side in grid)
    expected = np.einsum("ri,cj,ijk->rck", rows, columns, old[1:].reshape(14, 14, 8))
    np.testing.assert_allclose(ours[1:], expected.reshape(-1, 8), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours[0], old[0])
    assert network.position_table((14, 14)) is network.pos_embed


def test_initial_weights_are_truncated_normals_with_std_0_02_and_norms_are_the_identity() -> None:
    for name, value in ViT(SMALL).named_parameters():
        if "norm" in name:
            assert torch.equal(value, torch.full_like(value, float(name.endswith("weight"))))
        elif name.endswith("bias") and "patches" not in name:
            assert not value.any()
        elif "patches" not in name:
            assert value.detach().std().item() == pytest.approx(0.02, rel=0.3)


def test_a_training_step_lowers_the_loss_and_every_parameter_gets_a_gradient() -> None:
    """The initial loss is that of uniform logits, ln 10."""
    network = ViT(SMALL)
    images, classes = torch.randn(2, 3, 32, 32), torch.tensor([3, 7])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def loss() -> Tensor:
        logits = network.classify(images)
        assert logits.shape == (2, 10)
        return functional.cross_entropy(logits, classes)

    before = loss()
    assert before.item() == pytest.approx(np.log(10), abs=0.5)
    before.backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []
    optimizer.step()
    assert loss() < before
    assert network.forward_features(images).shape == (2, 64)


def test_without_classes_there_is_no_head() -> None:
    network = ViT(ViTConfig(image_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2))
    assert not any(isinstance(part, nn.Linear) and part.out_features == 10 for part in network.modules())
    with pytest.raises(UsageError, match="no classification head"):
        network.classify(torch.rand(1, 3, 16, 16))
