"""Cleaning of predictions: consensus and agreement of views, steady static parts, and clouds without debris."""

from dataclasses import replace

import pytest
import torch

from page4d.geometry.warp import Agreement
from page4d.options import PointOptions
from page4d.output.points import merged_cloud
from page4d.records import Predictions
from page4d.stereo.background import estimate_background
from page4d.stereo.consensus import (
    CONFIRMED,
    CONTRADICTED,
    OPEN,
    clean,
    confirmed_share,
    fuse_background,
    measured_spread,
    reach_consensus,
    recalibrated,
    scale_between,
)
from tests.stereo.test_background import HEIGHT, WIDTH, predictions_of

DISTANCE = 4.0


def wall(times: int = 4, views: int = 3, noise: float = 0.0) -> Predictions:
    """Return a textured wall that parallel cameras see."""
    random = torch.Generator().manual_seed(1)
    depth = DISTANCE * torch.exp(noise * torch.randn(times, views, HEIGHT, WIDTH, generator=random))
    images = torch.rand(views, 3, HEIGHT, WIDTH, generator=random).expand(times, -1, -1, -1, -1).clone()
    return predictions_of(depth, images, torch.full(depth.shape, 0.1))


def test_a_patch_in_free_space_moves_to_the_surface_of_the_other_views() -> None:
    one = wall(times=1)
    log_depth = one.depth[0, 0].log()
    log_depth[1, 5:9, 8:14] -= 0.3
    confidence = torch.full_like(log_depth, 0.8)
    confidence[1, 5:9, 8:14] = 0.1
    known = torch.ones_like(log_depth, dtype=torch.bool)
    found = reach_consensus(log_depth, known, confidence, one.cameras[0, 0])
    assert (found[1, 6:8, 9:13].exp() / DISTANCE).log().abs().max() < 0.05
    assert (found[0].exp() / DISTANCE).log().abs().max() < 0.03


def test_a_single_view_has_nothing_to_agree_with_and_stays() -> None:
    one = wall(times=1, views=1, noise=0.1)
    log_depth = one.depth[0, 0].log()
    known = torch.ones_like(log_depth, dtype=torch.bool)
    found = reach_consensus(log_depth, known, torch.full_like(log_depth, 0.2), one.cameras[0, 0])
    torch.testing.assert_close(found, log_depth, atol=1e-5, rtol=0)


def test_the_deviation_between_views_is_that_of_their_noise() -> None:
    noisy = wall(times=1, noise=0.03)
    known = torch.ones_like(noisy.depth[0, 0], dtype=torch.bool)
    found = measured_spread(noisy.depth[0, 0].log(), known, noisy.cameras[0, 0])
    assert found == pytest.approx(0.03 * 2**0.5, rel=0.25)


def test_confidence_follows_the_balance_of_views() -> None:
    counts = torch.tensor([[2, 1, 0, 1, 0]], dtype=torch.uint8)
    against = torch.tensor([[0, 1, 0, 2, 1]], dtype=torch.uint8)
    agreement = Agreement(confirmed=counts, contradicted=against, unseen=torch.zeros_like(counts))
    found = recalibrated(torch.full((1, 5), 0.5), agreement)
    expected = 0.5 * torch.tensor([[CONFIRMED, OPEN, OPEN, CONTRADICTED, CONTRADICTED]])
    torch.testing.assert_close(found, expected)


def test_static_parts_do_not_change_over_time() -> None:
    noisy = wall(noise=0.03)
    fused = fuse_background(estimate_background(noisy, range(3)), noisy.cameras[0, 0], trusts_masks=True)
    cleaned = clean(noisy, fused)
    assert noisy.depth.std(dim=1).mean() > 0.05
    assert cleaned.depth.std(dim=1).max() == 0
    assert (cleaned.agreement.confirmed == cleaned.agreement.confirmed[:, :1]).all()


def test_moving_parts_have_a_depth_of_their_own_at_every_instant() -> None:
    noisy = wall(noise=0.03)
    background = estimate_background(noisy, range(3))
    noisy.dynamic[:, 2, 1, 3:8, 3:8] = 0.99
    noisy.images[:, 2, 1, :, 3:8, 3:8] = 0
    cleaned = clean(noisy, fuse_background(background, noisy.cameras[0, 0], trusts_masks=True))
    moving, static = cleaned.depth[0, 2, 1, 4:7, 4:7], cleaned.depth[0, 1, 1, 4:7, 4:7]
    assert (moving != static).all()
    assert (moving / noisy.depth[0, 2, 1, 4:7, 4:7]).log().abs().max() < 0.06
    assert torch.equal(cleaned.depth[0, 2, 1, 10:], cleaned.depth[0, 1, 1, 10:])


def test_without_masks_parts_that_differ_from_the_background_keep_their_depth() -> None:
    noisy = replace(wall(times=6, noise=0.01), dynamic=None)
    noisy.depth[:, 2, 1, 3:8, 3:8] = DISTANCE / 2
    noisy.images[:, 2, 1, :, 3:8, 3:8] = 0
    fused = fuse_background(estimate_background(noisy, range(3)), noisy.cameras[0, 0], trusts_masks=False)
    cleaned = clean(noisy, fused)
    assert cleaned.dynamic is None
    assert (cleaned.depth[0, 2, 1, 3:8, 3:8] == DISTANCE / 2).all()
    assert cleaned.static.float().mean() > 0.98
    corrected = fused.background.log_depth.clone()
    corrected[..., : WIDTH // 2] += 0.4
    other = clean(noisy, replace(fused, background=replace(fused.background, log_depth=corrected)))
    assert torch.equal(other.static, cleaned.static)
    assert (
        cleaned.depth[0, 2][cleaned.static[0, 2]] == cleaned.depth[0, 1][cleaned.static[0, 2]]
    ).float().mean() > 0.98


def test_instants_are_cleaned_alike_alone_and_together() -> None:
    noisy = wall(noise=0.03)
    fused = fuse_background(estimate_background(noisy, range(3)), noisy.cameras[0, 0], trusts_masks=True)
    together, alone = clean(noisy, fused), clean(noisy.at_times(2, 3), fused)
    for name in ("depth", "depth_confidence", "dynamic"):
        assert torch.equal(getattr(together.at_times(2, 3), name), getattr(alone, name))


def test_a_background_in_another_unit_is_scaled_to_the_predictions() -> None:
    noisy = wall(noise=0.03)
    background = estimate_background(noisy, range(3))
    larger = replace(noisy, depth=2.5 * noisy.depth)
    assert scale_between(background, larger) == pytest.approx(2.5, rel=0.02)
    assert torch.allclose(background.scaled(2.5).log_depth.exp(), 2.5 * background.log_depth.exp())


def test_clouds_leave_out_what_other_views_see_through() -> None:
    one = wall(times=1)
    one.depth[0, 0, 1, 5:9, 8:14] = DISTANCE / 2
    cleaned = clean(one)
    everything = merged_cloud(cleaned, PointOptions(min_views=0, edge_angle_deg=90))
    kept = merged_cloud(cleaned, PointOptions(min_views=1, edge_angle_deg=90))
    confirmed = merged_cloud(cleaned, PointOptions(min_views=2, edge_angle_deg=90))
    assert everything.num_points == 3 * HEIGHT * WIDTH
    assert everything.num_points - kept.num_points == 24
    assert confirmed.num_points < kept.num_points
    assert kept.xyz[:, 2].min() > 0.75 * DISTANCE


def test_the_confirmed_share_is_that_of_pixels_with_depth() -> None:
    assert confirmed_share(clean(wall(times=1))) > 0.9
    apart = wall(times=1)
    apart.depth[0, 0, 0] *= 3
    apart.depth[0, 0, 2] /= 3
    assert confirmed_share(clean(apart)) < 0.1
    assert confirmed_share(wall(times=1)) == 0
