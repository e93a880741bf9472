"""Depth metrics and alignments against hand-computed values and independent solvers."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from page4d.choices import DepthAlignment
from page4d.evaluation.record import depth_errors
from page4d.evaluation.scores import align_depth, counted_pixels, sum_depth_errors

QUICK = [kind for kind in DepthAlignment if kind is not DepthAlignment.SCALE_SHIFT_ADAM]
LEARNED = [kind for kind in QUICK if kind is not DepthAlignment.METRIC]


def pixels(seed: int, number: int = 301) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = 1 + 3 * torch.rand(number, generator=generator, dtype=torch.float64)
    noise = torch.randn(number, generator=generator, dtype=torch.float64)
    return 0.7 * truth - 0.2 + 0.1 * noise, truth


def test_errors_equal_hand_computed_values() -> None:
    truth = torch.tensor([[2.0, 4.0, 5.0, 0.0]])
    prediction = torch.tensor([[3.0, 4.0, 3.0, 9.0]])
    errors = depth_errors(sum_depth_errors(prediction, truth, counted_pixels(truth)))
    assert errors.pixels == 3
    assert errors.abs_rel == pytest.approx((1 / 2 + 0 + 2 / 5) / 3)
    assert errors.sq_rel == pytest.approx((1 / 2 + 0 + 4 / 5) / 3)
    assert errors.rmse == pytest.approx(math.sqrt((1 + 0 + 4) / 3))
    assert errors.log_rmse == pytest.approx(math.sqrt((math.log(1.5) ** 2 + math.log(0.6) ** 2) / 3))
    # Ratios 1.5, 1 and 5/3 against 1.25, 1.5625 and 1.953.
    assert (errors.delta1, errors.delta2, errors.delta3) == pytest.approx((1 / 3, 2 / 3, 1.0))


def test_negative_and_absent_predictions_are_never_close() -> None:
    truth = torch.ones(1, 3)
    errors = depth_errors(sum_depth_errors(torch.tensor([[-1.0, 0.0, 1.0]]), truth, truth > 0))
    assert (errors.delta1, errors.delta2, errors.delta3) == pytest.approx((1 / 3,) * 3)
    assert errors.log_rmse is not None


def test_a_limit_excludes_pixels_at_or_beyond_it() -> None:
    truth = torch.tensor([[0.0, 1.0, 70.0, 80.0]])
    assert counted_pixels(truth, 70.0).tolist() == [[False, True, False, False]]
    assert counted_pixels(truth).tolist() == [[False, True, True, True]]


def test_errors_of_frames_add_up_to_those_of_the_capture() -> None:
    prediction, truth = pixels(0, 2 * 3 * 4 * 5)
    counted = pixels(1, 120)[1].reshape(2, 3, 4, 5) > 2
    prediction, truth = prediction.reshape(2, 3, 4, 5), truth.reshape(2, 3, 4, 5)
    frames = sum_depth_errors(prediction, truth, counted)
    assert frames.shape == (8, 2, 3)
    whole = sum_depth_errors(prediction.reshape(1, 120), truth.reshape(1, 120), counted.reshape(1, 120))
    torch.testing.assert_close(frames.sum((1, 2)), whole)
    given, expected = (asdict(depth_errors(sums)) for sums in (frames, whole))
    assert given == pytest.approx(expected)


def test_pixels_that_do_not_count_change_nothing() -> None:
    prediction, truth = pixels(2, 20)
    counted = torch.arange(20).reshape(4, 5) % 3 > 0
    spoiled = torch.where(counted, truth.reshape(4, 5), torch.nan)
    sums = [sum_depth_errors(prediction.reshape(4, 5), true, counted) for true in (truth.reshape(4, 5), spoiled)]
    assert torch.equal(*sums)


@pytest.mark.parametrize("seed", range(4))
def test_least_absolute_deviations_are_exact(seed: int) -> None:
    prediction, truth = pixels(seed, 60)
    if seed % 2:  # levels of a PNG: many equal residuals
        prediction, truth = (prediction * 10).round() / 10, (truth * 10).round() / 10
    fit = align_depth(prediction, truth, DepthAlignment.SCALE_SHIFT)
    found = float((fit.scale * prediction + fit.shift - truth).abs().sum())
    number = len(truth)
    columns = np.stack([prediction.numpy(), np.ones(number)], axis=1)
    solved = linprog(
        np.r_[0, 0, np.ones(number)],
        A_ub=np.block([[columns, -np.eye(number)], [-columns, -np.eye(number)]]),
        b_ub=np.r_[truth.numpy(), -truth.numpy()],
        bounds=[(None, None)] * 2 + [(0, None)] * number,
    )
    assert found == pytest.approx(solved.fun, rel=1e-9)


def test_least_absolute_deviations_are_those_of_any_unit_and_of_equal_predictions() -> None:
    prediction, truth = pixels(0, 60)
    near, far = (align_depth(unit * prediction, truth, DepthAlignment.SCALE_SHIFT) for unit in (1, 1e9))
    assert float(1e9 * far.scale) == pytest.approx(float(near.scale), rel=1e-9)
    flat = align_depth(torch.full_like(prediction, 2.0), truth, DepthAlignment.SCALE_SHIFT)
    assert (float(flat.scale), float(flat.shift)) == pytest.approx((float(truth.median()) / 2, 0))


def test_the_published_scale_is_close_to_the_least_absolute_one() -> None:
    prediction, truth = pixels(0)
    fit = align_depth(prediction, truth, DepthAlignment.SCALE)
    # The optimal scale is the median of the ratios, weighted by the predictions.
    ratio, order = (truth / prediction).sort()
    heavy = prediction[order].cumsum(0)
    best = ratio[int((heavy < heavy[-1] / 2).sum())]
    loss, minimum = ((scale * prediction - truth).abs().sum() for scale in (fit.scale, best))
    assert float(minimum) <= float(loss) <= 1.01 * float(minimum)
    assert float(fit.shift) == 0


def test_least_squares_are_those_of_numpy() -> None:
    prediction, truth = pixels(3)
    fit = align_depth(prediction, truth, DepthAlignment.SCALE_SHIFT_SQUARES)
    expected = np.polyfit(prediction.numpy(), truth.numpy(), 1)
    assert (float(fit.scale), float(fit.shift)) == pytest.approx(tuple(expected), rel=1e-9)


def test_the_published_fit_is_adam_on_the_absolute_error() -> None:
    prediction, truth = pixels(4, 50)
    fit = align_depth(prediction, truth, DepthAlignment.SCALE_SHIFT_ADAM)
    scale = (truth.median() / prediction.median()).requires_grad_()
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer, before = torch.optim.Adam([scale, shift], lr=1e-4), None
    for _ in range(1000):
        optimizer.zero_grad()
        loss = (scale * prediction + shift - truth).abs().sum()
        loss.backward()
        optimizer.step()
        if before is not None and abs(before - loss.item()) < 1e-6:
            break
        before = loss.item()
    assert (float(fit.scale), float(fit.shift)) == pytest.approx((scale.item(), shift.item()), rel=1e-12)
    assert abs(float(fit.shift)) <= 0.1 + 1e-9, "1000 steps of the learning rate"


def test_median_and_metric_alignment_equal_their_definitions() -> None:
    prediction, truth = pixels(5, 31)
    median = align_depth(prediction, truth, DepthAlignment.MEDIAN)
    assert float(median.scale) == float(truth.median() / prediction.median())
    metric = align_depth(prediction, truth, DepthAlignment.METRIC)
    assert (float(metric.scale), float(metric.shift)) == (1.0, 0.0)


@pytest.mark.parametrize("kind", LEARNED)
def test_the_scale_of_a_perfect_prediction_is_recovered(kind: DepthAlignment) -> None:
    _, truth = pixels(6)
    fit = align_depth(0.25 * truth, truth, kind)
    assert (float(fit.scale), float(fit.shift)) == pytest.approx((4.0, 0.0), abs=1e-9)


@pytest.mark.parametrize("kind", DepthAlignment)
def test_without_pixels_there_is_no_fit(kind: DepthAlignment) -> None:
    fit = align_depth(torch.zeros(0), torch.zeros(0), kind)
    assert math.isnan(float(fit.apply(torch.ones(2, 3)).sum()))


@pytest.mark.parametrize("kind", QUICK)
def test_a_constant_prediction_has_a_finite_fit(kind: DepthAlignment) -> None:
    _, truth = pixels(7)
    fit = align_depth(torch.full_like(truth, 2.0), truth, kind)
    assert math.isfinite(float(fit.scale))
    assert math.isfinite(float(fit.shift))
