"""The reference view is the most balanced image, in any order of the images."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.networks.tokens import select_reference


def scores_by_hand(tokens: Tensor) -> list[float]:
    """Return the balanced score of every image of one scene."""
    count = len(tokens)
    cosine = [[float(functional.cosine_similarity(one, two, dim=0)) for two in tokens] for one in tokens]
    measures = [
        [(sum(row) - 1) / (count - 1) for row in cosine],
        [float(token.norm()) for token in tokens],
        [float((token / token.norm()).var(unbiased=True)) for token in tokens],
    ]
    scaled = [[(value - min(row)) / (max(row) - min(row) + 1e-8) for value in row] for row in measures]
    return [sum(abs(row[image] - 0.5) for row in scaled) for image in range(count)]


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(4, 5, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5


def test_the_balanced_image_is_selected_in_every_scene(tokens: Tensor) -> None:
    balanced = [min(range(5), key=scores_by_hand(scene).__getitem__) for scene in tokens]
    assert len(set(balanced)) > 1
    assert select_reference(tokens).tolist() == balanced


def test_the_selected_image_does_not_depend_on_the_order(tokens: Tensor) -> None:
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(order[select_reference(tokens[:, order])], select_reference(tokens))


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_of_up_to_two_images_is_the_reference(tokens: Tensor, count: int) -> None:
    assert select_reference(tokens[:, 1 : 1 + count]).tolist() == [0] * 4


def test_the_first_of_equal_images_is_the_reference(tokens: Tensor) -> None:
    equal = tokens[:, :1].expand(-1, 4, -1)
    assert select_reference(equal).tolist() == [0] * 4
