"""Sharing evidence along lines gives what trying all labels gives where lines are chains."""

from itertools import product

import pytest
import torch
from torch import Tensor

from page4d.refinement.semi_global import aggregate


def steps(count: int, weight: float, largest: float) -> Tensor:
    label = torch.arange(count, dtype=torch.float64)
    return (weight * (label[:, None] - label).abs()).clamp(max=largest)


def best_of_all(score: Tensor, penalty: Tensor) -> Tensor:
    """Return for every place and label the score of the best labels of the whole row that have it there."""
    length, count = score.shape
    best = torch.full_like(score, -torch.inf)
    for labels in product(range(count), repeat=length):
        total = sum(score[place, label] for place, label in enumerate(labels))
        total = total - sum(penalty[a, b] for a, b in zip(labels, labels[1:], strict=False))
        for place, label in enumerate(labels):
            best[place, label] = torch.maximum(best[place, label], total)
    return best


@pytest.mark.parametrize("count", [2, 4, 7])
@pytest.mark.parametrize(("weight", "largest"), [(0.4, 9.0), (0.4, 1.0), (0.5, 0.4), (0.0, 2.0)])
def test_a_row_alone_is_solved_exactly(count: int, weight: float, largest: float) -> None:
    torch.manual_seed(0)
    score, length = 2 * torch.randn(4, count).double(), 4
    wanted = best_of_all(score, steps(count, weight, largest))
    for image in (score[None, None], score[None, :, None]):
        found = aggregate(image, weight, largest).reshape(length, count)
        torch.testing.assert_close(found - found.amax(-1, keepdim=True), wanted - wanted.amax(-1, keepdim=True))


def test_rows_and_columns_count_alike() -> None:
    torch.manual_seed(1)
    score = torch.randn(2, 4, 6, 5).double()
    turned = aggregate(score.transpose(1, 2), 0.3, 1.0).transpose(1, 2)
    torch.testing.assert_close(turned, aggregate(score, 0.3, 1.0))


def test_one_who_knows_nothing_follows_the_neighbours() -> None:
    score = torch.zeros(1, 3, 3, 7).double()
    score[..., 5] = 2.0
    score[0, 1, 1] = 0.0
    assert aggregate(score, 0.0, 3.0)[0, 1, 1].eq(0).all()
    assert int(aggregate(score, 0.5, 3.0)[0, 1, 1].argmax()) == 5
