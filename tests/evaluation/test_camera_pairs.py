"""Relative pose errors: hand-computed values, the public histogram, and invariance to similarities."""

import math

import numpy as np
import pytest
import torch

from page4d.errors import ShapeError
from page4d.evaluation.cameras import area_under_curve, fraction_below, pair_errors, report_pairs
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from tests.evaluation.rigs import random_rig, random_similarity


def camera(center: tuple[float, float, float], turn_deg: float = 0.0) -> torch.Tensor:
    """A camera at `center`, rotated about its vertical axis."""
    angle = torch.tensor([0.0, math.radians(turn_deg), 0.0], dtype=torch.float64)
    rotation = matrix_from_rotation_vector(angle)
    return rigid(rotation, -rotation @ torch.tensor(center, dtype=torch.float64))


def test_rotation_and_direction_errors_equal_hand_computed_values() -> None:
    true = torch.stack([camera((0, 0, 0)), camera((1, 0, 0)), camera((0, 1, 0))])
    predicted = torch.stack([camera((0, 0, 0)), camera((1, 0, 1), 10.0), camera((0, -1, 0))])
    errors = pair_errors(predicted, true)
    # T_0 T_j^-1 translates by the centre of camera j: (1, 0, 1) instead of (1, 0, 0), and the opposite of (0, 1, 0).
    assert errors.rotation_deg.tolist() == pytest.approx([10.0, 0.0, 10.0])
    assert errors.signed_direction_deg[:2].tolist() == pytest.approx([45.0, 180.0])
    assert errors.direction_deg[:2].tolist() == pytest.approx([45.0, 0.0], abs=1e-9)
    assert errors.has_baseline.all()


def test_the_folded_direction_error_is_the_smaller_of_both_signs() -> None:
    errors = pair_errors(random_rig(0, 8), random_rig(1, 8))
    folded = torch.minimum(errors.signed_direction_deg, 180 - errors.signed_direction_deg)
    torch.testing.assert_close(errors.direction_deg, folded)
    assert float(errors.direction_deg.max()) <= 90
    assert float(errors.signed_direction_deg.max()) > 90


def test_pair_errors_are_invariant_to_similarities() -> None:
    predicted, true = random_rig(2, 6), random_rig(3, 6)
    before = pair_errors(predicted, true)
    after = pair_errors(random_similarity(4).apply_to_cameras(predicted), true)
    for name in ("rotation_deg", "direction_deg", "signed_direction_deg"):
        torch.testing.assert_close(vars(after)[name], vars(before)[name], atol=1e-9, rtol=1e-9)


def test_pairs_with_coincident_true_centres_have_no_baseline() -> None:
    true = torch.stack([camera((1, 2, 3)), camera((1, 2, 3), 20.0), camera((4, 0, 0))])
    assert pair_errors(true, true).has_baseline.tolist() == [False, True, True]
    assert pair_errors(true.float(), true.float()).has_baseline.tolist() == [False, True, True]


def test_coincident_predicted_centres_have_the_maximum_error() -> None:
    true = torch.stack([camera((0, 0, 0)), camera((1, 0, 0))])
    errors = pair_errors(torch.eye(4, dtype=torch.float64).expand(2, 4, 4), true)
    assert (float(errors.direction_deg), float(errors.signed_direction_deg)) == (90.0, 180.0)


def test_leading_axes_are_scenes() -> None:
    predicted, true = random_rig(5, 2 * 3 * 4).reshape(2, 3, 4, 4, 4), random_rig(6, 24).reshape(2, 3, 4, 4, 4)
    errors = pair_errors(predicted, true)
    assert errors.rotation_deg.shape == errors.has_baseline.shape == (2, 3, 6)
    alone = pair_errors(predicted[1, 2], true[1, 2])
    torch.testing.assert_close(errors.direction_deg[1, 2], alone.direction_deg)
    assert area_under_curve(errors.rotation_deg, 30, errors.has_baseline).shape == (2, 3)


@pytest.mark.parametrize("threshold", [3, 5, 15, 30])
def test_the_auc_is_that_of_the_public_histogram(threshold: int) -> None:
    errors = 40 * torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    errors[:3] = torch.tensor([0.0, 2.0, float(threshold)])
    histogram, _ = np.histogram(errors.numpy(), bins=np.arange(threshold + 1))
    expected = np.mean(np.cumsum(histogram / len(errors)))
    found = area_under_curve(errors, threshold, torch.ones(500, dtype=torch.bool))
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_fractions_are_over_counted_pairs_only() -> None:
    errors, counted = torch.tensor([1.0, 4.0, 5.0, 9.0]), torch.tensor([True, True, True, False])
    assert float(fraction_below(errors, 5, counted)) == pytest.approx(2 / 3)
    assert math.isnan(float(fraction_below(errors, 5, torch.zeros(4, dtype=torch.bool))))


def test_medians_of_an_even_number_of_pairs_are_between_the_middle_ones() -> None:
    true, found = random_rig(1, 4), random_rig(2, 4)
    middle = pair_errors(found, true).rotation_deg.sort().values[2:4]
    assert report_pairs(found, true).rotation_median_deg == pytest.approx(float(middle.mean()))
    assert middle[0] < middle[1]


def test_different_numbers_of_cameras_are_refused() -> None:
    with pytest.raises(ShapeError, match="against"):
        pair_errors(random_rig(0, 3), random_rig(0, 4))
