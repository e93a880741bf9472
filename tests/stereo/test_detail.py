"""Instants of higher resolution: closer to the truth than interpolation, static parts equal at every instant."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.geometry.camera import Cameras, world_points
from page4d.geometry.pixels import PixelTransform, fit_views
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.records import Predictions
from page4d.scene.batches import UNKNOWN_MOTION, FrameBatch
from page4d.stereo.background import estimate_background
from page4d.stereo.consensus import FusedBackground, clean, fuse_background
from page4d.stereo.detail import (
    CoarseView,
    _level_sizes,
    choose_compared,
    fine_background,
    fine_cameras,
    fine_instant,
    raise_resolution,
)
from tests.synthetic.scenes import predictions_of

CAPTURE = SyntheticCapture(seed=11, num_views=3, num_times=4, image_size=(96, 128), spacing_deg=14.0)
SIDE, NETWORK_SIDE = 128, 48
NOISE = 0.02


@pytest.fixture(scope="module")
def coarse() -> Predictions:
    """Return the truth at network pixels, with noise of depth and confidence 0.6."""
    exact = predictions_of(CAPTURE, size=NETWORK_SIDE, multiple=8)
    random = torch.Generator().manual_seed(1)
    depth = exact.depth * torch.exp(NOISE * torch.randn(exact.depth.shape, generator=random))
    return replace(exact, depth=depth, depth_confidence=torch.full_like(depth, 0.6))


@pytest.fixture(scope="module")
def exact() -> Predictions:
    return predictions_of(CAPTURE)


@pytest.fixture(scope="module")
def transforms() -> tuple[PixelTransform, ...]:
    return fit_views(list(CAPTURE.view_sizes), SIDE, 1)


@pytest.fixture(scope="module")
def background(coarse: Predictions) -> FusedBackground:
    return fuse_background(estimate_background(coarse, range(3)), coarse.cameras[0, 0], trusts_masks=True)


@pytest.fixture(scope="module")
def fine(
    coarse: Predictions, exact: Predictions, transforms: tuple[PixelTransform, ...], background: FusedBackground
) -> FusedBackground:
    return fine_background(background, coarse, lambda view: exact.images[0, :, view], transforms, None)


def batch_at(exact: Predictions, transforms: tuple[PixelTransform, ...], time: int) -> FrameBatch:
    part = exact.at_times(time, time + 1)
    return FrameBatch(
        times=part.times,
        view_names=part.view_names,
        pixel_transforms=transforms,
        images=part.images,
        valid=torch.ones_like(part.valid),
    )


def raised(
    exact: Predictions, coarse: Predictions, transforms: tuple[PixelTransform, ...], *, sweeps: bool
) -> Tensor:
    """Return the depth [V, H, W] of the first instant, raised on its own."""
    views = [
        CoarseView(
            log_depth=coarse.depth[0, 0, view].log(),
            confidence=coarse.depth_confidence[0, 0, view],
            weight=coarse.valid[0, 0, view].float(),
            image=coarse.images[0, 0, view],
            transform=coarse.pixel_transforms[view],
        )
        for view in range(3)
    ]
    whole = (slice(0, 96), slice(0, 128))
    cameras = fine_cameras(coarse, transforms)[0, 0]
    found = raise_resolution(
        views, list(exact.images[0, 0]), transforms, cameras, [[whole]] * 3, None if sweeps else {}
    )
    return torch.stack([torch.where(view.known, view.log_depth.exp(), torch.nan) for view in found])


def median_error(depth: Tensor, exact: Predictions) -> float:
    true = exact.depth[0, 0]
    known = (true > 0) & depth.isfinite()
    assert float(known.float().mean()) > 0.95
    return float((depth / true).log().abs()[known].median())


def test_levels_double_from_above_the_network_to_the_full_size() -> None:
    assert _level_sizes((36, 48), (96, 128)) == [(48, 64), (96, 128)]
    assert _level_sizes((96, 128), (96, 128)) == [(96, 128)]
    assert _level_sizes((96, 128), (1080, 1920)) == [(135, 240), (270, 480), (540, 960), (1080, 1920)]


def test_pictures_refine_depth_beyond_interpolation(
    exact: Predictions, coarse: Predictions, transforms: tuple[PixelTransform, ...]
) -> None:
    bilinear = functional.interpolate(coarse.depth[0, 0, :, None], (96, 128), mode="bilinear")[:, 0]
    upsampled = raised(exact, coarse, transforms, sweeps=False)
    swept = raised(exact, coarse, transforms, sweeps=True)
    errors = [median_error(depth, exact) for depth in (bilinear, upsampled, swept)]
    assert errors[1] < 1.02 * errors[0]
    assert errors[2] < 0.6 * errors[0]


def test_nothing_is_known_where_no_region_is_needed(
    exact: Predictions, coarse: Predictions, transforms: tuple[PixelTransform, ...]
) -> None:
    view = CoarseView(
        log_depth=coarse.depth[0, 0, 0].log(),
        confidence=coarse.depth_confidence[0, 0, 0],
        weight=torch.ones_like(coarse.depth[0, 0, 0]),
        image=coarse.images[0, 0, 0],
        transform=coarse.pixel_transforms[0],
    )
    cameras = fine_cameras(coarse, transforms)[0, 0, :1]
    first, second = (slice(40, 60), slice(50, 90)), (slice(70, 90), slice(0, 20))
    for regions in ([], [first], [first, second]):
        (found,) = raise_resolution([view], [exact.images[0, 0, 0]], transforms[:1], cameras, [regions], None)
        assert found.known.shape == (96, 128)
        assert bool(found.known[first].all()) == (first in regions)
        assert bool(found.known[second].all()) == (second in regions)
        assert not bool(found.known[:20].any())


def test_the_fine_background_is_closer_to_the_truth(
    exact: Predictions, background: FusedBackground, fine: FusedBackground
) -> None:
    true, static = exact.depth[0, 0], (exact.dynamic[0] < 0.5).all(dim=0) & (exact.depth[0, 0] > 0)
    before = functional.interpolate(background.background.log_depth[:, None], (96, 128), mode="nearest")[:, 0].exp()
    errors = [
        float((depth / true).log().abs()[static & fine.background.known].mean())
        for depth in (before, fine.background.log_depth.exp())
    ]
    assert errors[1] < 0.8 * errors[0]
    assert float(fine.background.known.float().mean()) > 0.85
    color = (fine.background.color - exact.images[0, 0]).abs().mean(dim=1)[static]
    assert float(color.median()) < 0.02


def test_static_parts_are_those_of_the_background_at_every_instant(
    exact: Predictions,
    coarse: Predictions,
    transforms: tuple[PixelTransform, ...],
    background: FusedBackground,
    fine: FusedBackground,
) -> None:
    cleaned = clean(coarse, background)
    instants = [
        fine_instant(cleaned.at_times(time, time + 1), batch_at(exact, transforms, time), fine, None)
        for time in range(4)
    ]
    for time, instant in enumerate(instants):
        static = fine.background.known & (instant.dynamic[0, 0] <= DYNAMIC_THRESHOLD)
        assert torch.equal(instant.depth[0, 0][static], fine.background.log_depth.exp()[static])
        moving = exact.dynamic[0, time] > 0.5
        assert float((instant.dynamic[0, 0] > 0.5)[moving].float().mean()) > 0.6
        assert instant.agreement.confirmed.shape == instant.depth.shape
        assert instant.images.shape[-2:] == (96, 128)
    overlap = (instants[0].depth != instants[2].depth)[0, 0]
    either = sum((one.dynamic > DYNAMIC_THRESHOLD)[0, 0] for one in (instants[0], instants[2]))
    assert not bool((overlap & (either == 0) & fine.background.known).any())


def test_given_masks_of_one_view_leave_the_motion_of_the_others(
    exact: Predictions,
    coarse: Predictions,
    transforms: tuple[PixelTransform, ...],
    background: FusedBackground,
    fine: FusedBackground,
) -> None:
    cleaned = clean(coarse, background).at_times(2, 3)
    batch, given = batch_at(exact, transforms, 2), exact.dynamic[:, 2:3].clone()
    given[:, :, 1:] = UNKNOWN_MOTION
    own, mixed = (fine_instant(cleaned, replace(batch, dynamic=masks), fine, None) for masks in (None, given))
    assert torch.equal(mixed.dynamic[0, 0, 0], given[0, 0, 0])
    assert torch.equal(mixed.dynamic[0, 0, 1:], own.dynamic[0, 0, 1:])
    true, behind = exact.depth[0, 2], fine.background.log_depth.exp()
    moving = (exact.dynamic[0, 2] > 0.5) & ((behind / true).log() > 0.2)
    frozen = [(instant.depth[0, 0] == behind)[1:][moving[1:]].float().mean() for instant in (own, mixed)]
    assert int(moving[1:].sum()) > 100
    assert float(frozen[1]) <= float(frozen[0]) + 0.05


@pytest.mark.parametrize("has_masks", [False, True])
def test_without_masks_moving_parts_keep_the_depth_of_their_instant(
    exact: Predictions, coarse: Predictions, transforms: tuple[PixelTransform, ...], *, has_masks: bool
) -> None:
    """Without any, and if masks that are not trusted miss all that moves."""
    unmasked = replace(coarse, dynamic=torch.full_like(coarse.depth, 0.01) if has_masks else None)
    background = fuse_background(estimate_background(unmasked, range(3)), unmasked.cameras[0, 0], trusts_masks=False)
    fine = fine_background(background, unmasked, lambda view: exact.images[0, :, view], transforms, None)
    cleaned = clean(unmasked, background)
    errors = []
    for time in range(4):
        instant = fine_instant(cleaned.at_times(time, time + 1), batch_at(exact, transforms, time), fine, None)
        assert (instant.dynamic is not None) == has_masks
        assert torch.equal(
            instant.depth[0, 0][instant.static[0, 0]], fine.background.log_depth.exp()[instant.static[0, 0]]
        )
        assert float(instant.static.float().mean()) > 0.6
        true = exact.depth[0, time]
        behind = (exact.dynamic[0, time] > 0.5) & ((fine.background.log_depth.exp() / true).log() > 0.2)
        errors.append((instant.depth[0, 0] / true).log().abs()[behind])
    batch = batch_at(exact, transforms, 3)
    painted = replace(batch, images=batch.images.clone())
    painted.images[..., 64:] = 1 - painted.images[..., 64:]
    other = fine_instant(cleaned.at_times(3, 4), painted, fine, None)
    was_static = instant.static[..., 66:]
    assert int(was_static.sum()) > 1000
    assert float(other.static[..., 66:][was_static].float().mean()) < 0.2
    error = torch.cat(errors)
    assert len(error) > 100
    assert float(error.median()) < 0.05
    assert float((error > 0.2).float().mean()) < 0.2


def test_points_of_fine_pixels_lie_on_the_same_surfaces(
    exact: Predictions, coarse: Predictions, transforms: tuple[PixelTransform, ...]
) -> None:
    cameras: Cameras = fine_cameras(coarse, transforms)
    torch.testing.assert_close(cameras.intrinsics, exact.cameras.intrinsics, rtol=1e-4, atol=0.02)
    instant = fine_instant(coarse.at_times(0, 1), batch_at(exact, transforms, 0), None, None)
    known = instant.valid & (exact.at_times(0, 1).depth > 0)
    distance = (instant.world_points() - world_points(exact.depth, exact.cameras)[:, :1]).norm(dim=-1)
    assert float((distance / exact.depth[:, :1])[known].median()) < NOISE


@pytest.mark.parametrize(
    ("off_px", "sides"), [(0.0, {(0, 1): 128, (0, 2): 128, (1, 2): 128}), (6.0, {(0, 1): 128, (0, 2): 0, (1, 2): 0})]
)
def test_pictures_are_compared_as_far_as_epipolar_lines_are_exact(
    coarse: Predictions,
    exact: Predictions,
    transforms: tuple[PixelTransform, ...],
    off_px: float,
    sides: dict[tuple[int, int], int],
) -> None:
    angle = off_px / float(exact.cameras.intrinsics[0, 0, 2, 1, 1])
    turn = torch.eye(4)
    turn[:3, :3] = matrix_from_rotation_vector(torch.tensor([angle, 0.0, 0.0]))
    poses = coarse.cameras.world_to_camera.clone()
    poses[:, :, 2] = turn @ poses[:, :, 2]
    turned = replace(coarse, cameras=replace(coarse.cameras, world_to_camera=poses))
    assert choose_compared(turned.at_times(0, 1), batch_at(exact, transforms, 0)) == sides
