"""Transformer blocks, their parts and their parameter names."""

import pytest
import torch

from page4d.errors import ShapeError
from page4d.networks.layers.attention import Context
from page4d.networks.layers.block import (
    Block,
    BlockConfig,
    DropPath,
    FeedForward,
    PatchEmbed,
    SwiGLU,
    drop_path_rates,
    patch_grid,
)


def test_a_layer_scale_of_zero_is_the_identity() -> None:
    tokens = torch.randn(2, 5, 8)
    assert torch.equal(Block(BlockConfig(dim=8, num_heads=2, layer_scale=0.0))(tokens), tokens)


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, ones = DropPath(0.25), torch.ones(4000, 2, 3)
    dropped = drop(ones)
    per_sample = dropped.flatten(1)
    assert ((per_sample == 0).all(1) | torch.isclose(per_sample, torch.tensor(4 / 3)).all(1)).all()
    assert dropped.mean() == pytest.approx(1, abs=0.03)
    assert torch.equal(drop.eval()(ones), ones)


def test_drop_path_rates_grow_evenly_from_zero() -> None:
    assert drop_path_rates(5, 0.4) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert drop_path_rates(1, 0.4) == [0.0]
    assert drop_path_rates(0, 0.4) == []


def test_swiglu_is_a_gated_product() -> None:
    torch.manual_seed(0)
    layer = SwiGLU(6, 24).double()
    tokens = torch.randn(5, 6, dtype=torch.float64)
    gate, value = (tokens @ layer.w12.weight.T + layer.w12.bias).split(16, dim=-1)
    expected = (gate / (1 + torch.exp(-gate)) * value) @ layer.w3.weight.T + layer.w3.bias
    torch.testing.assert_close(layer(tokens), expected)
    layer(tokens).square().sum().backward()
    assert all(parameter.grad.any() for parameter in layer.parameters())


@pytest.mark.parametrize(("dim", "hidden", "expected"), [(1536, 6144, 4096), (8, 32, 24), (12, 48, 32), (10, 25, 16)])
def test_swiglu_has_about_as_many_parameters_as_the_mlp(dim: int, hidden: int, expected: int) -> None:
    """Two thirds of the hidden width, rounded up to a multiple of 8: 4096 in DINOv2's giant model."""
    with torch.device("meta"):
        layer, plain = SwiGLU(dim, hidden), FeedForward(dim, hidden)
    assert layer.w3.in_features == expected
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == {
        "w12.weight": (2 * expected, dim),
        "w12.bias": (2 * expected,),
        "w3.weight": (dim, expected),
        "w3.bias": (dim,),
    }
    if hidden % 24 == 0:
        assert layer.w12.weight.numel() + layer.w3.weight.numel() == 2 * plain.fc1.weight.numel()


def test_chunks_bound_the_tokens_in_the_feed_forward_network_and_keep_the_output() -> None:
    torch.manual_seed(0)
    block = Block(BlockConfig(dim=16, num_heads=2, qk_norm_eps=1e-5, layer_scale=1.0)).double()
    tokens, widest = torch.randn(3, 10, 16, dtype=torch.float64), []
    whole = block(tokens)
    block.mlp.register_forward_hook(lambda _, inputs, __: widest.append(inputs[0].shape[1]))
    torch.testing.assert_close(block(tokens, max_queries=4), whole, rtol=0, atol=1e-13)
    assert widest == [4, 4, 2]


def test_a_context_of_the_tokens_themselves_is_self_attention() -> None:
    """In any order: attention is invariant to the order of keys."""
    torch.manual_seed(0)
    block = Block(BlockConfig(dim=16, num_heads=2, qk_norm_eps=1e-5, layer_scale=1.0)).double()
    tokens = torch.randn(2, 7, 16, dtype=torch.float64)
    expected = block(tokens)
    for order in (slice(None), [6, 1, 0, 5, 3, 2, 4]):
        ours = block(tokens, context=Context(tokens=tokens[:, order]))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_patch_tokens_are_row_by_row() -> None:
    """The token of a patch is the projection of its pixels."""
    torch.manual_seed(0)
    embed = PatchEmbed(dim=5, patch_size=4).double()
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    tokens = embed(images)
    assert tokens.shape == (2, 6, 5)
    pixels = images[1, :, 4:8, 8:12].flatten()
    torch.testing.assert_close(tokens[1, 5], embed.proj.weight.flatten(1) @ pixels + embed.proj.bias)


@pytest.mark.parametrize("size", [(27, 42), (28, 43), (0, 28), (7, 14)])
def test_sides_must_be_multiples_of_the_patch(size: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match=f"{size[1]} x {size[0]} px"):
        patch_grid(*size, 14)


def test_grid_is_rows_then_columns() -> None:
    assert patch_grid(392, 518, 14) == (28, 37)
