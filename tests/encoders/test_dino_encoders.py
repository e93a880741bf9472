"""DINOv2 and DINOv3 at any size; golden outputs are tested in tests/networks."""

from dataclasses import replace

import pytest
import torch

from page4d.errors import UsageError
from page4d.io.json_records import config_to_json
from page4d.networks.encoders.build import build_encoder, encoder_from_json
from page4d.networks.encoders.dino import DinoV2, DinoV2Config, DinoV3, DinoV3Config
from page4d.networks.layers.attention import TableResampling, centered_positions

V2 = DinoV2Config(image_size=56, embed_dim=16, depth=2, num_heads=2, num_registers=3)
V3 = DinoV3Config(image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_registers=3)


@pytest.fixture(scope="module")
def encoder() -> DinoV2:
    torch.manual_seed(0)
    return DinoV2(V2).double().eval()


def test_position_table_is_unchanged_at_its_native_size(encoder: DinoV2) -> None:
    assert encoder.position_table((4, 4)) is encoder.pos_embed


def test_position_table_is_resampled_not_transposed() -> None:
    """A table that increases along columns only still does so on a grid of another shape."""
    ramp = DinoV2(V2).double()
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
    other = DinoV2(V2).double().eval()
    other.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        other.register_tokens.add_(torch.randn_like(other.register_tokens))
    assert not torch.allclose(other(images).tokens, encoder(images).tokens)


def test_class_tokens_are_those_that_enter_the_last_block(encoder: DinoV2) -> None:
    images = torch.randn(2, 3, 28, 42, dtype=torch.float64)
    expected = encoder.blocks[0](encoder.embed(images))[:, 0]
    torch.testing.assert_close(encoder(images).class_tokens, expected, rtol=0, atol=0)


def test_registers_and_the_last_norm_can_be_left_out() -> None:
    torch.manual_seed(0)
    bare = DinoV2(replace(V2, num_registers=0, final_norm=False)).double().eval()
    assert not [name for name, _ in bare.named_parameters() if name.startswith(("register", "norm."))]
    images = torch.randn(1, 3, 28, 42, dtype=torch.float64)
    tokens = bare.embed(images)
    assert tokens.shape == (1, 7, 16)
    torch.testing.assert_close(bare(images).tokens, bare.blocks[1](bare.blocks[0](tokens))[:, 1:], rtol=0, atol=0)


def test_the_first_resampling_scales_coordinates_by_slightly_more_than_the_sides() -> None:
    """A ramp of a long table has the coordinates (i + 0.5) * old / (new + 0.1), up to 0.04 by the cubic kernel."""
    config = replace(V2, image_size=560, table_resampling=TableResampling.OFFSET)
    ramp = DinoV2(config).double()
    with torch.no_grad():
        ramp.pos_embed[0, 1:] = torch.arange(40.0, dtype=torch.float64).repeat(40)[:, None]
    table = ramp.position_table((40, 20))[0, 1:, 0].reshape(40, 20)
    expected = (torch.arange(20, dtype=torch.float64) + 0.5) * 40 / 20.1 - 0.5
    torch.testing.assert_close(table[7, 2:-2], expected[2:-2], rtol=0, atol=0.05)


@pytest.fixture
def rotary() -> DinoV3:
    torch.manual_seed(0)
    encoder = DinoV3(V3).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return encoder


def test_positions_are_fractions_of_the_longer_side() -> None:
    """Hence the patches of a landscape and of a portrait image have the same positions with swapped axes."""
    landscape = centered_positions((2, 4)).unflatten(0, (2, 4)) / torch.pi
    assert landscape[0, 0].tolist() == [-1.5, -1.5]
    assert landscape[1, 3].tolist() == [-0.5, 1.5]
    portrait = centered_positions((4, 2)).unflatten(0, (4, 2)) / torch.pi
    assert torch.equal(portrait.flip(-1).transpose(0, 1), landscape)


def test_order_matters_through_rotary_positions_alone(rotary: DinoV3) -> None:
    """An image whose patches are permuted gives other tokens; without depth it gives permuted ones."""
    image = torch.rand(1, 3, 8, 24, dtype=torch.float64)
    flipped = image.unflatten(-1, (3, 8)).flip(-2).flatten(-2)
    assert (rotary(flipped).tokens.flip(1) - rotary(image).tokens).abs().max() > 1e-3
    same = rotary.embed(image)[:, 4:]
    torch.testing.assert_close(rotary.embed(flipped)[:, 4:].flip(1), same, rtol=0, atol=1e-13)


def test_the_configuration_round_trips_and_is_checked() -> None:
    assert encoder_from_json(config_to_json(V3)) == V3
    assert isinstance(build_encoder(V3), DinoV3)
    with pytest.raises(UsageError, match=r"embed_dim 20 is not a multiple of 4 \* num_heads \(8\)"):
        DinoV3Config(embed_dim=20, num_heads=2)
    with pytest.raises(UsageError, match="image_size 500"):
        DinoV3Config(image_size=500)
