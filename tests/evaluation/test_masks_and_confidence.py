"""Motion masks by hand; confidence that orders errors well, not at all, and wrongly."""

import pytest
import torch

from page4d.evaluation.confidence import STEPS, sparsify
from page4d.evaluation.masks import iou, mask_overlap, recall


def test_overlaps_are_those_worked_out_by_hand() -> None:
    true = torch.zeros(4, 2, 4, dtype=torch.bool)
    true[0, 0], true[1, 0, :2], true[2, 1] = True, True, True
    predicted = torch.zeros_like(true)
    predicted[0, 0, 1:], predicted[1, 0, 2:] = True, True
    predicted[2] = True
    frames = iou(*mask_overlap(predicted, true))
    assert frames.tolist() == pytest.approx([3 / 4, 0.0, 1 / 2, 1.0])
    assert float(recall(frames)) == pytest.approx(3 / 4)


@pytest.fixture
def errors() -> torch.Tensor:
    return torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).square()


def test_confidence_that_falls_with_the_error_orders_perfectly(errors: torch.Tensor) -> None:
    curves = sparsify(errors, 1 / (1 + errors))
    assert curves.ause == pytest.approx(0.0, abs=1e-12)
    assert curves.ordering == pytest.approx(1.0)


def test_confidence_without_information_orders_nothing(errors: torch.Tensor) -> None:
    constant = sparsify(errors, torch.full_like(errors, 0.5))
    assert constant.ordering == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(constant.by_confidence, errors.mean().expand(STEPS))
    random = sparsify(errors, torch.rand(2000, generator=torch.Generator().manual_seed(1)))
    assert abs(random.ordering) < 0.1


def test_confidence_that_grows_with_the_error_misleads(errors: torch.Tensor) -> None:
    assert sparsify(errors, errors).ordering < -0.5


def test_curves_are_means_of_what_is_left() -> None:
    errors = torch.arange(100, dtype=torch.float64)
    curves = sparsify(errors, errors)
    # By error the worst go first, by this confidence the best.
    assert curves.by_error.tolist() == pytest.approx([(99 - gone) / 2 for gone in range(100)])
    assert curves.by_confidence.tolist() == pytest.approx([(99 + gone) / 2 for gone in range(100)])


def test_equal_errors_leave_nothing_to_order() -> None:
    assert sparsify(torch.ones(50), torch.rand(50)).ordering is None
    assert sparsify(torch.zeros(50), torch.rand(50)).ordering is None
