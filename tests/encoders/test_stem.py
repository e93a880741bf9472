"""The stem encoder: images of any size, fine maps, independent images."""

import pytest
import torch

from page4d.errors import ShapeError
from page4d.networks.encoders.build import build_encoder
from page4d.networks.encoders.dino import DinoV2, DinoV2Config
from page4d.networks.encoders.stem import Stem, StemConfig

SMALL = StemConfig(image_size=64, embed_dim=16, fine_dim=4, depth=1, num_heads=2)


@pytest.fixture
def stem() -> Stem:
    torch.manual_seed(0)
    return Stem(SMALL).double()


@pytest.mark.parametrize("size", [(16, 24), (64, 8), (40, 40)])
def test_images_of_any_size_give_one_token_per_patch_and_a_half_resolution_map(stem: Stem, size: tuple) -> None:
    encoded = stem(torch.rand(3, 3, *size).double())
    grid = (size[0] // 8, size[1] // 8)
    assert encoded.grid == grid
    assert encoded.tokens.shape == (3, grid[0] * grid[1], 16)
    assert encoded.fine.shape == (3, 4, size[0] // 2, size[1] // 2)


def test_tokens_depend_on_relative_positions(stem: Stem) -> None:
    images = torch.rand(1, 3, 8, 32).double()
    swapped = torch.cat([images[..., 16:], images[..., :16]], dim=-1)
    tokens, moved = stem(images).tokens, stem(swapped).tokens
    assert (tokens[:, 0] - moved[:, 2]).abs().max() > 1e-4


def test_sizes_that_do_not_divide_are_refused(stem: Stem) -> None:
    with pytest.raises(ShapeError, match="20 x 16 px"):
        stem(torch.rand(1, 3, 16, 20).double())


def test_the_configuration_selects_the_encoder_class() -> None:
    assert isinstance(build_encoder(SMALL), Stem)
    assert isinstance(build_encoder(DinoV2Config(image_size=28, embed_dim=16, depth=0, num_heads=2)), DinoV2)
