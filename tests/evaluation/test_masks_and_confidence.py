"""Mask metrics with hand-computed values; sparsification by ideal, uninformative and misleading confidence."""

import pytest
import torch

from page4d.evaluation.depth import _scores, mask_overlap
from page4d.evaluation.scores import STEPS, sparsify


def test_overlaps_equal_hand_computed_values() -> None:
    true = torch.zeros(4, 2, 4, dtype=torch.bool)
    true[0, 0], true[1, 0, :2], true[2, 1] = True, True, True
    predicted = torch.zeros_like(true)
    predicted[0, 0, 1:], predicted[1, 0, 2:] = True, True
    predicted[2] = True
    scores = [_scores(frame[None]) for frame in torch.stack(mask_overlap(predicted, true), dim=-1)]
    assert [frame.jm for frame in scores] == pytest.approx([3 / 4, 0.0, 1 / 2, 1.0])
    assert [frame.jr for frame in scores] == [1.0, 0.0, 1.0, 1.0]


@pytest.fixture
def errors() -> torch.Tensor:
    return torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).square()


def test_confidence_that_decreases_with_the_error_has_zero_ause(errors: torch.Tensor) -> None:
    curves = sparsify(errors, 1 / (1 + errors))
    assert curves.ause == pytest.approx(0.0, abs=1e-12)
    assert curves.ordering == pytest.approx(1.0)


def test_uninformative_confidence_equals_a_random_order(errors: torch.Tensor) -> None:
    constant = sparsify(errors, torch.full_like(errors, 0.5))
    assert constant.ordering == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(constant.by_confidence, errors.mean().expand(STEPS))
    random = sparsify(errors, torch.rand(2000, generator=torch.Generator().manual_seed(1)))
    assert abs(random.ordering) < 0.1


def test_confidence_that_increases_with_the_error_is_worse_than_random(errors: torch.Tensor) -> None:
    assert sparsify(errors, errors).ordering < -0.5


def test_curves_are_mean_errors_of_the_remaining_pixels() -> None:
    errors = torch.arange(100, dtype=torch.float64)
    curves = sparsify(errors, errors)
    # By error the largest errors are removed first, by this confidence the smallest.
    assert curves.by_error.tolist() == pytest.approx([(99 - gone) / 2 for gone in range(100)])
    assert curves.by_confidence.tolist() == pytest.approx([(99 + gone) / 2 for gone in range(100)])


def test_the_normalized_ause_of_equal_errors_is_undefined() -> None:
    assert sparsify(torch.ones(50), torch.rand(50)).ordering is None
    assert sparsify(torch.zeros(50), torch.rand(50)).ordering is None
