"""Velocities from displacements, and the noise and flow of pictures."""

import cv2
import numpy as np
import pytest
import torch

from page4d.motion.flow import (
    STILL,
    PointMotion,
    changed_pixels,
    combine,
    difference_noise,
    optical_flow,
    to_gray,
    view_flow,
)


def displacement(motion: list[float], sigma: float, views: int) -> PointMotion:
    return PointMotion(
        torch.tensor([[motion]], dtype=torch.float64),
        torch.tensor([[sigma]], dtype=torch.float64),
        torch.tensor([[views]], dtype=torch.uint8),
    )


def test_steps_of_unequal_length_give_the_mean_velocity_over_both() -> None:
    before, after = displacement([-0.1, 0.0, 0.0], 0.01, 3), displacement([0.3, 0.0, 0.0], 0.02, 2)
    found = combine(before, after, 0.1, 0.3)
    assert found.motion[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert float(found.sigma) == pytest.approx(np.hypot(0.01, 0.02) / 0.4)
    assert int(found.views) == 2


def test_one_side_alone_gives_a_one_sided_difference_with_a_larger_sigma() -> None:
    before, unknown = displacement([-0.1, 0.2, 0.0], 0.01, 2), displacement([0.0, 0.0, 0.0], 0.0, 0)
    for after in (None, unknown):
        found = combine(before, after, 0.1, 0.1)
        assert found.motion[0, 0].tolist() == pytest.approx([1.0, -2.0, 0.0])
        assert float(found.sigma) == pytest.approx(np.hypot(0.01, 0.25 * np.hypot(0.1, 0.2)) / 0.1)
    forward = combine(None, displacement([0.1, 0.0, 0.0], 0.01, 2), 0.0, 0.5)
    assert forward.motion[0, 0].tolist() == pytest.approx([0.2, 0.0, 0.0])


def test_a_motion_that_several_views_measured_is_preferred_to_one_of_a_single_view() -> None:
    several, single = displacement([-0.1, 0.0, 0.0], 0.01, 2), displacement([0.5, 0.0, 0.0], 0.5, 1)
    assert combine(several, single, 0.1, 0.1).motion[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_a_point_that_begins_to_move_has_a_central_difference() -> None:
    still, moves = displacement([0.0, 0.0, 0.0], 0.01, STILL), displacement([0.3, 0.0, 0.0], 0.01, 2)
    found = combine(still, moves, 0.1, 0.1)
    assert found.motion[0, 0].tolist() == pytest.approx([1.5, 0.0, 0.0])
    assert int(found.views) == 2


def test_still_points_have_a_velocity_of_exactly_0_and_unknown_ones_no_sigma() -> None:
    still = displacement([0.0, 0.0, 0.0], 0.01, STILL)
    found = combine(still, still, 0.1, 0.1)
    assert not found.motion.any()
    assert float(found.sigma) > 0
    unknown = displacement([0.0, 0.0, 0.0], 0.0, 0)
    assert not combine(unknown, unknown, 0.1, 0.1).sigma.any()
    assert not np.signbit(combine(still, None, 0.1, 0.1).motion.numpy()).any()


@pytest.mark.parametrize("sigma", [1.0, 3.0, 8.0])
def test_the_noise_of_a_difference_is_measured_beside_moving_parts(sigma: float) -> None:
    random = np.random.default_rng(0)
    clean = np.full((120, 160), 120.0)
    pictures = [np.rint(clean + random.normal(0, sigma, clean.shape)).astype(np.uint8) for _ in range(2)]
    pictures[1][:40] = 200  # a third of the picture moves
    assert difference_noise(*pictures) == pytest.approx(2**0.5 * sigma, rel=0.6)
    assert difference_noise(*pictures) >= 2**0.5 * sigma * 0.95
    changed = changed_pixels(*pictures)
    assert changed[:36].all()
    assert changed[48:].mean() < 0.01


def test_flow_of_a_shifted_picture_is_the_shift_and_is_consistent() -> None:
    random = np.random.default_rng(1)
    first = cv2.GaussianBlur(random.integers(0, 255, (96, 128)).astype(np.uint8), (0, 0), 2)
    second = np.roll(first, (1, 3), axis=(0, 1))
    flow = view_flow(first, second, *optical_flow(first, second))
    inner = flow.flow[16:-16, 16:-16]
    assert float((inner - torch.tensor([3.0, 1.0])).norm(dim=-1).median()) < 0.05
    assert float(flow.consistent[16:-16, 16:-16].float().mean()) > 0.98
    assert not view_flow(first, first, *optical_flow(first, first)).changed.any()


def test_luma_is_that_of_opencv() -> None:
    image = torch.rand(3, 20, 30, generator=torch.Generator().manual_seed(0))
    rgb = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    expected = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
    assert np.abs(to_gray(torch.from_numpy(rgb).permute(2, 0, 1) / 255).astype(int) - expected).max() <= 1
