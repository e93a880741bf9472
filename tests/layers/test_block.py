"""The block, its parts and the names under which their parameters are known elsewhere."""

import pytest
import torch

from page4d.errors import ShapeError
from page4d.layers.block import Block, BlockConfig, DropPath
from page4d.layers.embed import PatchEmbed, patch_grid
from page4d.layers.feed_forward import FeedForward


def test_parameter_names_are_those_of_public_checkpoints() -> None:
    block = Block(BlockConfig(dim=8, num_heads=2, qk_norm_eps=1e-5, layer_scale=0.1))
    linear = [
        f"{layer}.{kind}" for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2") for kind in ("weight", "bias")
    ]
    norms = [f"{n}.{kind}" for n in ("norm1", "norm2", "attn.q_norm", "attn.k_norm") for kind in ("weight", "bias")]
    assert set(block.state_dict()) == {*linear, *norms, "ls1.gamma", "ls2.gamma"}
    plain = Block(BlockConfig(dim=8, num_heads=2))
    assert set(plain.state_dict()) == {*linear, *(name for name in norms if "attn" not in name)}


def test_zero_layer_scale_is_the_identity() -> None:
    tokens = torch.randn(2, 5, 8)
    assert torch.equal(Block(BlockConfig(dim=8, num_heads=2, layer_scale=0.0))(tokens), tokens)


def test_epsilon_acts_on_small_tokens() -> None:
    torch.manual_seed(0)
    one, other = (Block(BlockConfig(dim=8, num_heads=2, norm_eps=eps)) for eps in (1e-5, 1e-6))
    other.load_state_dict(one.state_dict())
    small = 1e-3 * torch.randn(1, 4, 8)
    assert (one(small) - other(small)).abs().max() > 1e-3


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop, ones = DropPath(0.25), torch.ones(4000, 2, 3)
    dropped = drop(ones)
    per_sample = dropped.flatten(1)
    assert ((per_sample == 0).all(1) | torch.isclose(per_sample, torch.tensor(4 / 3)).all(1)).all()
    assert dropped.mean() == pytest.approx(1, abs=0.03)
    assert torch.equal(drop.eval()(ones), ones)


def test_feed_forward_uses_the_exact_gelu() -> None:
    torch.manual_seed(0)
    layer = FeedForward(4, 8, 3).double()
    tokens = torch.randn(5, 4, dtype=torch.float64)
    hidden = tokens @ layer.fc1.weight.T + layer.fc1.bias
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    torch.testing.assert_close(layer(tokens), gelu @ layer.fc2.weight.T + layer.fc2.bias)


def test_patches_are_rows_of_the_image() -> None:
    """The token of a patch is the projection of its own pixels, counted row by row."""
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
