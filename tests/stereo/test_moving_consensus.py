"""Consensus of moving parts: silhouettes and depth of other views correct the depth of a ball that four views see."""

import math

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.geometry.warp import surfaces_of
from page4d.stereo.background import Background
from page4d.stereo.consensus import measured_spread, reach_moving_consensus

SIZE = (48, 64)
CENTER, RADIUS, WALL = 2.5, 0.35, 5.0


def rig(angles_deg: tuple[float, ...] = (-50.0, -15.0, 25.0, 60.0)) -> Cameras:
    """Return cameras on a circle around a ball on the axis of the first camera's world."""
    poses = []
    for angle in angles_deg:
        rotation = matrix_from_rotation_vector(torch.tensor([0.0, math.radians(angle), 0.0], dtype=torch.float64))
        middle = torch.tensor([0.0, 0.0, CENTER], dtype=torch.float64)
        poses.append(rigid(rotation, middle - rotation @ middle))
    matrix = torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]], dtype=torch.float64)
    return Cameras(world_to_camera=torch.stack(poses), intrinsics=matrix.expand(len(poses), 3, 3), image_size=SIZE)


def seen(cameras: Cameras) -> tuple[Tensor, Tensor]:
    """Return the true depth [V, H, W] of the ball before a far sphere around it, and where the ball is."""
    rays = camera_rays(cameras.intrinsics, SIZE)
    middle = cameras.world_to_camera[:, :3, 2] * CENTER + cameras.world_to_camera[:, :3, 3]
    ball, far = (
        _intersection(rays, middle[:, None, None], radius, sign) for radius, sign in ((RADIUS, -1), (WALL, 1))
    )
    return torch.where(ball.isnan(), far, ball).float(), ~ball.isnan()


def _intersection(rays: Tensor, middle: Tensor, radius: float, sign: int) -> Tensor:
    along, squared = (rays * middle).sum(-1), rays.square().sum(-1)
    return (along + sign * (along.square() - squared * (middle.square().sum(-1) - radius**2)).sqrt()) / squared


def background_of(cameras: Cameras, *, known: bool = True) -> Background:
    rays = camera_rays(cameras.intrinsics, SIZE)
    middle = cameras.world_to_camera[:, :3, 2] * CENTER + cameras.world_to_camera[:, :3, 3]
    far = _intersection(rays, middle[:, None, None], WALL, 1).float()
    return Background(
        log_depth=far.log(),
        spread=torch.full_like(far, 0.01),
        confidence=torch.full_like(far, 0.8),
        color=torch.zeros(len(far), 3, *SIZE),
        color_std=torch.full_like(far, 0.02),
        known=torch.full(far.shape, known),
    )


def log_error(depth: Tensor, truth: Tensor, ball: Tensor) -> Tensor:
    return (depth / truth).log().abs()[ball]


@pytest.mark.parametrize("factor", [0.7, 1.35])
def test_silhouettes_and_the_other_views_correct_the_distance_of_a_moving_object(factor: float) -> None:
    cameras = rig()
    truth, ball = seen(cameras)
    wrong = truth.clone()
    wrong[1][ball[1]] *= factor
    confidence = torch.full_like(truth, 0.3)
    found = reach_moving_consensus(wrong, confidence, ball, background_of(cameras), cameras)
    assert log_error(wrong[1], truth[1], ball[1]).median() > 0.29
    assert log_error(found[1], truth[1], ball[1]).median() < 0.04
    assert log_error(found, truth, ball).median() < 0.03


def test_silhouettes_alone_bound_an_object_whose_depth_is_wrong_in_all_views() -> None:
    """All views place the ball too near by the same factor, so that their depth maps do not meet anywhere."""
    cameras = rig()
    truth, ball = seen(cameras)
    wrong = torch.where(ball, 0.7 * truth, truth)
    confidence = torch.full_like(truth, 0.2)
    found = reach_moving_consensus(wrong, confidence, ball, background_of(cameras), cameras)
    unbounded = reach_moving_consensus(wrong, confidence, ball, background_of(cameras, known=False), cameras)
    assert log_error(found, truth, ball).mean() < 0.1
    assert log_error(unbounded, truth, ball).median() > 0.2


def test_pixels_that_do_not_move_keep_their_depth() -> None:
    cameras = rig()
    truth, ball = seen(cameras)
    noisy = truth * torch.exp(0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2)))
    found = reach_moving_consensus(noisy, torch.full_like(truth, 0.3), ball, background_of(cameras), cameras)
    assert torch.equal(found[~ball], noisy[~ball])
    still = torch.zeros_like(ball)
    assert torch.equal(
        reach_moving_consensus(noisy, torch.full_like(truth, 0.3), still, background_of(cameras), cameras), noisy
    )


def test_a_correct_depth_stays() -> None:
    cameras = rig()
    truth, ball = seen(cameras)
    found = reach_moving_consensus(truth, torch.full_like(truth, 0.3), ball, background_of(cameras), cameras)
    assert log_error(found, truth, ball).median() < 0.02
    assert log_error(found, truth, ball).quantile(0.95) < 0.06


def with_smooth_errors(truth: Tensor, deviation: float) -> Tensor:
    """Return depth maps with smooth errors, as those of an accurate network."""
    noise = torch.randn(len(truth), 1, 4, 5, generator=torch.Generator().manual_seed(3))
    smooth = torch.nn.functional.interpolate(noise, size=SIZE, mode="bicubic", align_corners=True)[:, 0]
    return truth * torch.exp(deviation * smooth)


def test_accurate_depth_of_a_round_object_becomes_more_accurate() -> None:
    """Cameras around it see its other sides within a few deviations of the inside, which must not attract points."""
    cameras = rig((-70.0, -25.0, 25.0, 70.0))
    truth, ball = seen(cameras)
    noisy = with_smooth_errors(truth, 0.02)
    found = reach_moving_consensus(noisy, torch.full_like(truth, 0.8), ball, background_of(cameras), cameras)
    assert log_error(found, truth, ball).mean() < 0.85 * log_error(noisy, truth, ball).mean()
    assert (found / truth).log()[ball].median().abs() < 0.006


def test_the_deviation_between_views_leaves_out_other_sides_of_an_object() -> None:
    cameras = rig((-70.0, -25.0, 25.0, 70.0))
    truth, ball = seen(cameras)
    for deviation, largest in ((0.0, 0.011), (0.02, 0.045)):
        depth = with_smooth_errors(truth, deviation)
        surfaces = surfaces_of(depth, cameras.intrinsics)
        found = measured_spread(depth.log(), ball, cameras, surfaces)
        assert max(0.01, 0.7 * deviation) <= found < largest
        assert measured_spread(depth.log(), ball, cameras) > 1.3 * found
    few = ball.clone()
    few[:, torch.arange(SIZE[0]) != SIZE[0] // 2] = False
    assert measured_spread(depth.log(), few, cameras, surfaces) == 0.1
