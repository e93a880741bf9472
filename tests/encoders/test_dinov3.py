"""The DINOv3 encoder at any size; its golden outputs are tested in tests/networks."""

import pytest
import torch

from page4d.errors import ShapeError, UsageError
from page4d.io.json_records import config_to_json
from page4d.networks.encoders.build import build_encoder, encoder_from_json
from page4d.networks.encoders.dino import DinoV3, DinoV3Config
from page4d.networks.layers.attention import centered_positions

CONFIG = DinoV3Config(image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_registers=3)


@pytest.fixture
def encoder() -> DinoV3:
    torch.manual_seed(0)
    encoder = DinoV3(CONFIG).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return encoder


def test_patches_are_encoded_at_any_size(encoder: DinoV3) -> None:
    encoded = encoder(torch.rand(2, 3, 16, 40, dtype=torch.float64))
    assert (encoded.grid, encoded.tokens.shape) == ((2, 5), (2, 10, 16))
    with pytest.raises(ShapeError):
        encoder(torch.rand(2, 3, 16, 42, dtype=torch.float64))


def test_positions_are_fractions_of_the_longer_side() -> None:
    """Hence the patches of a landscape and of a portrait image have the same positions with swapped axes."""
    landscape = centered_positions((2, 4)).unflatten(0, (2, 4)) / torch.pi
    assert landscape[0, 0].tolist() == [-1.5, -1.5]
    assert landscape[1, 3].tolist() == [-0.5, 1.5]
    portrait = centered_positions((4, 2)).unflatten(0, (4, 2)) / torch.pi
    assert torch.equal(portrait.flip(-1).transpose(0, 1), landscape)


def test_order_matters_through_rotary_positions_alone(encoder: DinoV3) -> None:
    """An image whose patches are permuted gives other tokens; without depth it gives permuted ones."""
    image = torch.rand(1, 3, 8, 24, dtype=torch.float64)
    flipped = image.unflatten(-1, (3, 8)).flip(-2).flatten(-2)
    assert (encoder(flipped).tokens.flip(1) - encoder(image).tokens).abs().max() > 1e-3
    same = encoder.embed(image)[:, 4:]
    torch.testing.assert_close(encoder.embed(flipped)[:, 4:].flip(1), same, rtol=0, atol=1e-13)


def test_the_configuration_round_trips_and_is_checked() -> None:
    assert encoder_from_json(config_to_json(CONFIG)) == CONFIG
    assert isinstance(build_encoder(CONFIG), DinoV3)
    with pytest.raises(UsageError, match=r"embed_dim 20 is not a multiple of 4 \* num_heads \(8\)"):
        DinoV3Config(embed_dim=20, num_heads=2)
    with pytest.raises(UsageError, match="image_size 500"):
        DinoV3Config(image_size=500)
