"""Bundle adjustment: exact for exact correspondences, robust to outliers, and never worse than the prior mean."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, normalize_pixels, project
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_angle
from page4d.geometry.transforms import camera_centers, invert_rigid, rigid, transform_points
from page4d.stereo.bundle_adjustment import (
    CorrelatedErrors,
    Correspondences,
    NormalEquations,
    Parameters,
    Priors,
    adjust_bundle,
)
from tests.geometry.geometry_samples import se3_exp

SIZE = (60, 80)
NUM_IMAGES, NUM_PIXELS = 4, 60
TARGETS = torch.tensor([[0, 1, 3], [0, 2, 0], [0, 3, 1], [0, 0, 2]])
ALL = slice(None)
WIDE = Priors(rotation_rad=10.0, position=10.0, log_focal=10.0, log_scale=10.0, log_depth=10.0)


def capture(seed: int, batch: int = 2) -> tuple[Cameras, Tensor, Correspondences]:
    """Return cameras around a point cloud, true depths of pixels, and exact correspondences."""
    random = torch.Generator().manual_seed(seed)
    angles = torch.linspace(-0.5, 0.5, NUM_IMAGES, dtype=torch.float64)
    turn = matrix_from_rotation_vector(torch.stack([0 * angles, angles, 0.1 * angles], dim=-1))
    pose = rigid(turn, torch.tensor([0.0, 0.1, 4.0]).double().expand(NUM_IMAGES, 3)).expand(batch, -1, -1, -1)
    pose = pose @ invert_rigid(pose[:, :1])
    matrix = torch.tensor([[70.0, 0.5, 41.0], [0.0, 68.0, 29.0], [0.0, 0.0, 1.0]]).double()
    matrices = matrix.expand(batch, NUM_IMAGES, 3, 3)
    pixels = torch.rand(batch, NUM_IMAGES, NUM_PIXELS, 2, generator=random, dtype=torch.float64) * 60
    depth = 3 + 2 * torch.rand(batch, NUM_IMAGES, NUM_PIXELS, generator=random, dtype=torch.float64)
    rays = torch.nn.functional.pad(normalize_pixels(pixels, matrices), (0, 1), value=1.0)
    world = transform_points(invert_rigid(pose), rays * depth[..., None])
    positions = torch.stack(
        [
            project(transform_points(pose[:, targets], world), matrices[:, targets])[0]
            for targets in TARGETS.unbind(dim=1)
        ],
        dim=2,
    )
    cameras = Cameras(world_to_camera=pose, intrinsics=matrices, image_size=SIZE)
    weight = torch.ones(batch, NUM_IMAGES, TARGETS.shape[1], NUM_PIXELS)
    correspondences = Correspondences(
        pixels=pixels, targets=TARGETS, positions=positions, weight=weight, sigma_px=0.3
    )
    return cameras, depth, correspondences


def without_the_last(correspondences: Correspondences) -> Correspondences:
    """Remove the correspondences of the last image, as source and as target."""
    weight = correspondences.weight.clone()
    weight[:, 3], weight[:, TARGETS == 3] = 0, 0
    return replace(correspondences, weight=weight)


def perturbed(cameras: Cameras, depth: Tensor, seed: int) -> tuple[Cameras, Tensor]:
    random = torch.Generator().manual_seed(seed)
    twist = torch.randn(*depth.shape[:2], 6, generator=random, dtype=torch.float64)
    twist = twist * torch.tensor([0.3, 0.3, 0.3, 0.12, 0.12, 0.12])
    twist[:, 0] = 0
    focal = (0.05 * torch.randn(depth.shape[:2], generator=random, dtype=torch.float64)).exp()
    matrices = cameras.intrinsics.clone()
    matrices[..., :2, :2] *= focal[..., None, None]
    pose = se3_exp(twist) @ cameras.world_to_camera
    noise = (0.15 * torch.randn(depth.shape, generator=random, dtype=torch.float64)).exp()
    return Cameras(world_to_camera=pose, intrinsics=matrices, image_size=SIZE), depth * noise


def rotation_errors(found: Cameras, true: Cameras) -> Tensor:
    return torch.rad2deg(rotation_angle(found.world_to_camera[..., :3, :3], true.world_to_camera[..., :3, :3]))


def test_jacobians_equal_those_of_autograd():
    cameras, depth, correspondences = capture(0, batch=1)
    problem = NormalEquations(*perturbed(cameras, depth, 1), correspondences, Priors(correlation_length=0.3))
    parameters = problem.start._replace(
        log_focal=torch.full((1, NUM_IMAGES), 0.1).double(),
        log_scale=torch.full((1, NUM_IMAGES), -0.2).double(),
        errors=0.3 * torch.ones_like(problem.start.errors),
    )
    rows = problem.project(parameters, ALL).jacobians()  # B N G 17 2 P
    source, target, depths_of = rows[:, :, :, :8], rows[:, :, :, 8:16], rows[:, :, :, 7]
    image, pixel = 1, 7

    def residual(step: Tensor, log_factor: Tensor) -> Tensor:
        turn = matrix_from_rotation_vector(step[..., :3])
        return problem.project(
            Parameters(
                rotation=turn @ parameters.rotation,
                translation=(turn @ parameters.translation[..., None])[..., 0] + step[..., 3:6],
                log_focal=parameters.log_focal + step[..., 6],
                log_scale=parameters.log_scale + step[..., 7],
                log_depth=parameters.log_depth + log_factor,
                errors=parameters.errors,
            ),
            ALL,
        ).residual[0, image, :, :, pixel]

    zero = torch.full((1, NUM_IMAGES, 8), 1e-13).double(), torch.zeros_like(depth)
    by_camera, by_depth = torch.autograd.functional.jacobian(residual, zero)
    by_camera, by_depth = by_camera[..., 0, :, :], by_depth[..., 0, :, :]  # G 2 N 8, G 2 N P
    for place, other in enumerate(TARGETS[image].tolist()):
        found = by_camera[place]
        of_source, of_target = (part[0, image, place, ..., pixel].T for part in (source, target))
        torch.testing.assert_close(of_source, found[:, image], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(of_target, found[:, other], atol=1e-6, rtol=1e-6)
        assert found[:, [one for one in range(NUM_IMAGES) if one not in (image, other)]].abs().max() == 0
        depths = by_depth[place]
        torch.testing.assert_close(depths_of[0, image, place, :, pixel], depths[:, image, pixel])


@pytest.mark.parametrize("seed", range(3))
def test_exact_correspondences_recover_cameras_and_depths(monkeypatch, seed):
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._DERIVATIVES", torch.float64)
    true, depth, correspondences = capture(seed)
    start, predicted = perturbed(true, depth, seed + 10)
    found = start, predicted
    for _ in range(3):  # even wide priors pull a little in every adjustment
        adjusted = adjust_bundle(*found, correspondences, WIDE)
        found = adjusted.cameras, adjusted.depth
    cameras, adjusted_depth = found
    assert rotation_errors(cameras, true).max() < 1e-3
    scale = (depth / adjusted_depth).flatten(1).median(dim=1).values[:, None, None]
    torch.testing.assert_close(adjusted_depth * scale, depth, rtol=1e-3, atol=0)
    torch.testing.assert_close(cameras.intrinsics, true.intrinsics, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(cameras.centers * scale, camera_centers(true.world_to_camera), rtol=0, atol=2e-3)


def test_outliers_among_noisy_correspondences_are_rejected():
    true, depth, correspondences = capture(5, batch=4)
    random = torch.Generator().manual_seed(6)
    noisy = correspondences.positions + 0.4 * torch.randn(
        correspondences.positions.shape, generator=random, dtype=torch.float64
    )
    is_outlier = torch.rand(noisy.shape[:-1], generator=random) < 0.35
    anywhere = torch.rand(noisy.shape, generator=random, dtype=torch.float64) * torch.tensor([80.0, 60.0])
    correspondences = replace(correspondences, positions=torch.where(is_outlier[..., None], anywhere, noisy))
    start, predicted = perturbed(true, depth, 7)
    adjusted = adjust_bundle(start, predicted, correspondences)
    assert rotation_errors(start, true)[:, 1:].median() > 5
    assert rotation_errors(adjusted.cameras, true)[:, 1:].median() < 1.5


def test_the_first_pose_and_known_parameters_stay_fixed():
    true, depth, correspondences = capture(2)
    start, predicted = perturbed(true, depth, 3)
    adjusted = adjust_bundle(start, predicted, correspondences, Priors(log_focal=0))
    torch.testing.assert_close(adjusted.cameras.intrinsics, start.intrinsics)
    torch.testing.assert_close(adjusted.cameras.world_to_camera[:, 0], start.world_to_camera[:, 0])
    known = adjust_bundle(
        true, predicted, correspondences, Priors(rotation_rad=0, position=0, log_focal=0, log_scale=0)
    )
    torch.testing.assert_close(known.cameras.world_to_camera, true.world_to_camera)
    torch.testing.assert_close(known.depth, depth, rtol=0.02, atol=0)


@pytest.mark.parametrize("correlation_length", [0.0, 0.3])
def test_fixed_cameras_give_the_depths_of_cameras_that_hardly_move(correlation_length: float):
    cameras, depth, correspondences = capture(seed=5)
    _, start = perturbed(cameras, depth, seed=6)
    priors = Priors(rotation_rad=0, position=0, log_focal=0, log_depth=1.0, correlation_length=correlation_length)
    fixed = adjust_bundle(cameras, start, correspondences, priors)
    held = adjust_bundle(
        cameras, start, correspondences, replace(priors, rotation_rad=1e-6, position=1e-6, log_focal=1e-6)
    )
    torch.testing.assert_close(fixed.depth, held.depth, rtol=1e-4, atol=0)
    torch.testing.assert_close(fixed.parameters.log_scale, held.parameters.log_scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("correlation_length", "same_camera_correlation"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.9)])
def test_steps_converge_to_a_stationary_point_of_the_posterior(
    monkeypatch, correlation_length, same_camera_correlation
):
    """The gradient vanishes in eliminated parameters, too."""
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._DAMPING", 1e-9)
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._DERIVATIVES", torch.float64)
    true, depth, correspondences = capture(3)
    deviation = 0.1 + 0.2 * torch.rand(depth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    priors = Priors(
        rotation_rad=100,
        position=100,
        log_focal=0.1,
        log_depth=deviation,
        correlation_length=correlation_length,
        same_camera_correlation=same_camera_correlation,
        camera_index=torch.tensor([0, 1, 0, 1]),
    )
    problem = NormalEquations(*perturbed(true, depth, 4), correspondences, priors)
    parameters = problem.start
    for _ in range(100):
        parameters = problem.step(parameters, 3.0)

    def cost(step: Tensor, log_depth: Tensor, errors: Tensor) -> Tensor:
        turn = matrix_from_rotation_vector(step[..., :3])
        moved = Parameters(
            rotation=turn @ parameters.rotation,
            translation=(turn @ parameters.translation[..., None])[..., 0] + step[..., 3:6],
            log_focal=parameters.log_focal + step[..., 6],
            log_scale=parameters.log_scale + step[..., 7],
            log_depth=log_depth,
            errors=errors,
        )
        return problem.cost(moved, 3.0).sum()

    place = torch.full((*depth.shape[:2], 8), 1e-13).double(), parameters.log_depth, parameters.errors
    by_camera, by_depth, by_errors = torch.autograd.functional.jacobian(cost, place)
    assert (by_camera * problem.free).abs().max() < 1e-4
    assert by_depth.abs().max() < 1e-5
    assert (by_errors.shape[-1] > 0) == (correlation_length > 0)
    assert by_errors.abs().sum() < 1e-4


def test_pixels_without_correspondences_follow_their_neighbours_if_errors_correlate():
    true, depth, correspondences = capture(6)
    wrong = (0.3 * (correspondences.pixels[..., 0] / SIZE[1] - 0.5)).exp()  # deeper on the right than on the left
    has_match = torch.arange(NUM_PIXELS) % 2 == 0
    half = replace(correspondences, weight=correspondences.weight * has_match)
    known = Priors(rotation_rad=0, position=0, log_focal=0, log_scale=0, log_depth=0.2)
    alone, together = (
        (
            adjust_bundle(true, depth * wrong, half, replace(known, correlation_length=correlation_length)).depth
            / depth
        )
        .log()
        .abs()[..., ~has_match]
        for correlation_length in (0.0, 0.3)
    )
    torch.testing.assert_close(alone, wrong.log().abs()[..., ~has_match])
    assert together.median() < 0.4 * alone.median()


def test_an_image_without_correspondences_follows_other_images_of_its_camera():
    true, depth, correspondences = capture(7)
    twist = torch.tensor([0.1, -0.1, 0.1, 0.03, 0.05, -0.04]).double()
    pose, matrices = true.world_to_camera.clone(), true.intrinsics.clone()
    pose[:, 2:] = se3_exp(twist) @ pose[:, 2:]
    matrices[:, 2:, :2, :2] *= 1.06
    wrong = replace(true, world_to_camera=pose, intrinsics=matrices)
    blind = without_the_last(correspondences)
    alone, together = (
        adjust_bundle(wrong, depth, blind, Priors(same_camera_correlation=0.999, camera_index=camera_index)).cameras
        for camera_index in (None, torch.tensor([0, 1, 2, 2]))
    )
    torch.testing.assert_close(alone.world_to_camera[:, 3], wrong.world_to_camera[:, 3])
    assert rotation_errors(together, true)[:, 2:].max() < 0.3 * rotation_errors(wrong, true)[:, 3].min()
    assert ((together.intrinsics / true.intrinsics)[:, 3, 0, 0] - 1).abs().max() < 0.03


def test_focal_lengths_of_views_without_correspondences_follow_the_other_views():
    true, depth, correspondences = capture(7)
    matrices = true.intrinsics.clone()
    matrices[..., :2, :2] *= 1.06
    wrong = replace(true, intrinsics=matrices)
    blind = without_the_last(correspondences)
    alone, together = (
        adjust_bundle(wrong, depth, blind, Priors(focal_correlation=focal_correlation, camera_index=torch.arange(4)))
        for focal_correlation in (0.0, 0.95)
    )
    torch.testing.assert_close(alone.cameras.intrinsics[:, 3], wrong.intrinsics[:, 3])
    torch.testing.assert_close(together.cameras.world_to_camera[:, 3], wrong.world_to_camera[:, 3])
    focal = (together.cameras.intrinsics / true.intrinsics)[..., 0, 0].log()
    assert (focal[:, :3].mean(dim=1) < 0.03).all()  # 0.058 before the adjustment
    torch.testing.assert_close(focal[:, 3], focal[:, :3].mean(dim=1), atol=0.01, rtol=0)


def test_better_correspondences_continue_an_earlier_adjustment():
    true, depth, correspondences = capture(9, batch=4)
    random = torch.Generator().manual_seed(10)
    rough = correspondences.positions + 2 * torch.randn(
        correspondences.positions.shape, generator=random, dtype=torch.float64
    )
    is_outlier = torch.rand(rough.shape[:-1], generator=random) < 0.2
    better = torch.where(is_outlier[..., None], rough, correspondences.positions)
    start, predicted = perturbed(true, depth, 11)
    first = adjust_bundle(start, predicted, replace(correspondences, positions=rough))
    second = adjust_bundle(start, predicted, replace(correspondences, positions=better), initial=first)
    wide = adjust_bundle(start, predicted, replace(correspondences, positions=better))
    errors = [rotation_errors(one.cameras, true)[:, 1:] for one in (first, second, wide)]
    assert errors[1].median() < 0.3 * errors[0].median()
    assert errors[1].median() < 1.2 * errors[2].median()
    # The prior mean is the prediction, not the starting point.
    nothing = replace(correspondences, weight=torch.zeros_like(correspondences.weight))
    torch.testing.assert_close(adjust_bundle(start, predicted, nothing, initial=first).depth, predicted)


def test_correspondences_of_weight_zero_change_nothing():
    true, depth, correspondences = capture(4)
    nothing = replace(correspondences, weight=torch.zeros_like(correspondences.weight))
    adjusted = adjust_bundle(true, depth, nothing)
    torch.testing.assert_close(adjusted.cameras.world_to_camera, true.world_to_camera)
    torch.testing.assert_close(adjusted.depth, depth)


def test_the_adjustment_is_independent_of_the_unit_of_length():
    true, depth, correspondences = capture(8)
    start, predicted = perturbed(true, depth, 9)
    pose = start.world_to_camera.clone()
    pose[..., :3, 3] *= 1000
    here, there = (
        adjust_bundle(start, predicted, correspondences),
        adjust_bundle(replace(start, world_to_camera=pose), predicted * 1000, correspondences),
    )
    torch.testing.assert_close(there.depth / 1000, here.depth)
    torch.testing.assert_close(there.cameras.centers / 1000, here.cameras.centers)


@pytest.mark.parametrize("correlation_length", [0.0, 0.2])
def test_results_are_independent_of_the_chunk_size(monkeypatch, correlation_length):
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._DERIVATIVES", torch.float64)
    true, depth, correspondences = capture(1)
    start, predicted = perturbed(true, depth, 2)
    whole = adjust_bundle(start, predicted, correspondences, Priors(correlation_length=correlation_length))
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._MAX_RESIDUALS", 200)
    parts = adjust_bundle(start, predicted, correspondences, Priors(correlation_length=correlation_length))
    torch.testing.assert_close(parts.depth, whole.depth)
    torch.testing.assert_close(parts.cameras.world_to_camera, whole.cameras.world_to_camera)


@pytest.mark.parametrize("seed", range(3))
def test_derivatives_in_float32_change_results_by_less_than_a_tenth_of_a_pixel(monkeypatch, seed):
    true, depth, correspondences = capture(seed)
    start, predicted = perturbed(true, depth, seed + 10)
    priors = Priors(correlation_length=0.2)
    single = adjust_bundle(start, predicted, correspondences, priors)
    monkeypatch.setattr("page4d.stereo.bundle_adjustment._DERIVATIVES", torch.float64)
    double = adjust_bundle(start, predicted, correspondences, priors)
    torch.testing.assert_close(single.depth, double.depth, rtol=1e-3, atol=0)
    assert rotation_errors(single.cameras, double.cameras).max() < 1e-3 * 180 / torch.pi


def positions(seed: int, num: int = 40) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.rand(num, 2, generator=random, dtype=torch.float64) * torch.tensor([80.0, 60.0])


@pytest.mark.parametrize("length", [5.0, 17.0, 60.0, 500.0])
def test_linear_functions_of_position_are_interpolated_exactly(length):
    pixels = positions(0)
    weights = CorrelatedErrors(pixels, SIZE, length).weights(ALL)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(pixels), dtype=torch.float64))
    corners = torch.tensor([[0.0, 0.0], [80.0, 60.0]], dtype=torch.float64)
    at_corners = CorrelatedErrors(corners, SIZE, length).weights(ALL)
    first, last = at_corners.argmax(dim=-1).tolist()
    assert (first, last) == (0, weights.shape[-1] - 1)
    columns = _columns(length)
    across = torch.linspace(0, 80, columns, dtype=torch.float64).repeat(weights.shape[-1] // columns)
    torch.testing.assert_close(weights @ across, pixels[:, 0])


def test_node_errors_have_the_given_correlation_length():
    """The correlation is 1/e at one length; the variance of interpolated errors is a little below 1."""
    errors = CorrelatedErrors(
        torch.tensor([[0.0, 20.0], [20.0, 20.0], [10.0, 20.0]], dtype=torch.float64), SIZE, 20.0
    )
    weights = errors.weights(ALL)
    covariance = weights @ torch.linalg.inv(errors.precision) @ weights.T
    torch.testing.assert_close(covariance[0, 0].item(), 1.0)
    torch.testing.assert_close(covariance[1, 0].item(), math.exp(-1))
    assert 0.6 < covariance[2, 2] < 1


def test_weights_of_some_pixels_equal_those_among_all():
    errors = CorrelatedErrors(positions(2), SIZE, 20.0)
    torch.testing.assert_close(errors.weights(slice(10, 20)), errors.weights(ALL)[10:20])


def test_length_zero_gives_no_nodes():
    errors = CorrelatedErrors(positions(3), SIZE, 0.0)
    assert errors.precision.shape == (0, 0)
    assert errors.weights(ALL).shape == (40, 0)


def _columns(length: float) -> int:
    return 1 + max(1, math.ceil(80 / length))
