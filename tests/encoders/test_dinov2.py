"""The DINOv2 encoder at any size; its golden outputs are tested in tests/networks."""

from dataclasses import replace

import pytest
import torch

from page4d.errors import ShapeError, UsageError
from page4d.networks.encoders import DinoV2, DinoV2Config
from page4d.networks.layers.attention import TableResampling

CONFIG = DinoV2Config(image_size=56, embed_dim=16, depth=2, num_heads=2, num_registers=3)


@pytest.fixture(scope="module")
def encoder() -> DinoV2:
    torch.manual_seed(0)
    return DinoV2(CONFIG).double().eval()


def test_tokens_are_returned_with_their_grid(encoder: DinoV2) -> None:
    encoded = encoder(torch.randn(2, 3, 28, 70, dtype=torch.float64))
    assert (encoded.grid, encoded.tokens.shape) == ((2, 5), (2, 10, 16))
    assert encoded.tokens.dtype is torch.float64


def test_position_table_is_unchanged_at_its_native_size(encoder: DinoV2) -> None:
    assert encoder.position_table((4, 4)) is encoder.pos_embed


def test_position_table_is_resampled_not_transposed() -> None:
    """A table that increases along columns only still does so on a grid of another shape."""
    ramp = DinoV2(CONFIG).double()
    with torch.no_grad():
        ramp.pos_embed[0, 1:] = torch.arange(4.0, dtype=torch.float64).repeat(4)[:, None]
    table = ramp.position_table((2, 6))[0, 1:, 0].reshape(2, 6)
    torch.testing.assert_close(table[0], table[1])
    assert (table[:, 1:] > table[:, :-1]).all()
    assert torch.equal(ramp.position_table((2, 6))[0, 0], ramp.pos_embed[0, 0])


def test_registers_have_no_position_and_change_the_output(encoder: DinoV2) -> None:
    images = torch.randn(1, 3, 28, 42, dtype=torch.float64)
    tokens = encoder.embed(images)
    assert torch.equal(tokens[0, 1:4], encoder.register_tokens[0])
    other = DinoV2(CONFIG).double().eval()
    other.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        other.register_tokens.add_(torch.randn_like(other.register_tokens))
    assert not torch.allclose(other(images).tokens, encoder(images).tokens)


def test_stochastic_depth_rates_grow_with_depth_and_act_in_training_only(encoder: DinoV2) -> None:
    dropping = DinoV2(replace(CONFIG, depth=3, drop_path=0.4)).double()
    assert [block.drop_path.probability for block in dropping.blocks] == pytest.approx([0.0, 0.2, 0.4])
    images = torch.randn(8, 3, 28, 28, dtype=torch.float64)
    first, second = dropping(images).tokens, dropping(images).tokens
    assert not torch.equal(first, second)
    assert torch.equal(dropping.eval()(images).tokens, dropping(images).tokens)
    for drop_path in (-0.1, 1.0):
        with pytest.raises(UsageError, match="drop_path"):
            replace(CONFIG, drop_path=drop_path)
    assert encoder.config.drop_path == 0


def test_sizes_that_do_not_divide_into_patches_are_refused(encoder: DinoV2) -> None:
    with pytest.raises(ShapeError, match="patches of 14 px"):
        encoder(torch.randn(1, 3, 28, 40, dtype=torch.float64))


def test_class_tokens_are_those_that_enter_the_last_block(encoder: DinoV2) -> None:
    images = torch.randn(2, 3, 28, 42, dtype=torch.float64)
    expected = encoder.blocks[0](encoder.embed(images))[:, 0]
    torch.testing.assert_close(encoder(images).class_tokens, expected, rtol=0, atol=0)


def test_registers_and_the_last_norm_can_be_left_out() -> None:
    torch.manual_seed(0)
    bare = DinoV2(replace(CONFIG, num_registers=0, final_norm=False)).double().eval()
    assert not [name for name, _ in bare.named_parameters() if name.startswith(("register", "norm."))]
    images = torch.randn(1, 3, 28, 42, dtype=torch.float64)
    tokens = bare.embed(images)
    assert tokens.shape == (1, 7, 16)
    torch.testing.assert_close(bare(images).tokens, bare.blocks[1](bare.blocks[0](tokens))[:, 1:], rtol=0, atol=0)


def test_the_first_resampling_scales_coordinates_by_slightly_more_than_the_sides() -> None:
    """A ramp of a long table has the coordinates (i + 0.5) * old / (new + 0.1), up to 0.04 by the cubic kernel."""
    config = replace(CONFIG, image_size=560, table_resampling=TableResampling.OFFSET)
    ramp = DinoV2(config).double()
    with torch.no_grad():
        ramp.pos_embed[0, 1:] = torch.arange(40.0, dtype=torch.float64).repeat(40)[:, None]
    table = ramp.position_table((40, 20))[0, 1:, 0].reshape(40, 20)
    expected = (torch.arange(20, dtype=torch.float64) + 0.5) * 40 / 20.1 - 0.5
    torch.testing.assert_close(table[7, 2:-2], expected[2:-2], rtol=0, atol=0.05)
