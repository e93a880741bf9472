"""Rotations: round trips at all angles, averages, interpolation, gradients."""

import math

import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from page4d.geometry.rotation import (
    interpolate_rotation,
    matrix_from_quaternion,
    matrix_from_rotation_vector,
    mean_rotation,
    nearest_rotation,
    quaternion_from_matrix,
    rotation_angle,
    rotation_defect,
    rotation_vector_from_matrix,
    skew,
    wxyz_from_xyzw,
    xyzw_from_wxyz,
)
from tests.geometry.geometry_samples import BATCHES, DTYPES, TOLERANCE, close, normal, rotation_vectors, rotations

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_are_rotations_at_all_angles(dtype: torch.dtype) -> None:
    matrices = matrix_from_rotation_vector(rotation_vectors(dtype=dtype))
    assert matrices.dtype == dtype
    assert float(rotation_defect(matrices).max()) < TOLERANCE[dtype]


def test_matrices_agree_with_scipy() -> None:
    vectors = rotation_vectors()
    close(matrix_from_rotation_vector(vectors), torch.from_numpy(Rotation.from_rotvec(vectors.numpy()).as_matrix()))
    quaternions = normal(200, 4, seed=1)
    expected = Rotation.from_quat(quaternions.numpy(), scalar_first=True).as_matrix()
    close(matrix_from_quaternion(quaternions), torch.from_numpy(expected))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotation_vectors_round_trip(dtype: torch.dtype) -> None:
    vectors = rotation_vectors(dtype=dtype)
    again = rotation_vector_from_matrix(matrix_from_rotation_vector(vectors))
    angles = vectors.norm(dim=-1)
    # Both signs represent the same rotation at pi; rounding may choose either just below it.
    ambiguous = angles > math.pi - 64 * torch.finfo(dtype).eps
    close(again[~ambiguous], vectors[~ambiguous])
    sign = (again * vectors).sum(-1, keepdim=True).sign()
    close((sign * again)[ambiguous], vectors[ambiguous])
    assert float(again.norm(dim=-1).max()) <= math.pi + 4 * torch.finfo(dtype).eps


def test_small_rotation_vectors_keep_relative_precision() -> None:
    directions = torch.nn.functional.normalize(normal(50, 3, seed=3), dim=-1)
    for exponent in range(-15, 0):
        vectors = directions * 10.0**exponent
        again = rotation_vector_from_matrix(matrix_from_rotation_vector(vectors))
        torch.testing.assert_close(again, vectors, atol=0, rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quaternions_round_trip_with_a_positive_scalar(dtype: torch.dtype) -> None:
    matrices = torch.cat(
        [rotations(500, seed=4, dtype=dtype), matrix_from_rotation_vector(rotation_vectors(dtype=dtype))]
    )
    quaternions = quaternion_from_matrix(matrices)
    assert bool((quaternions[..., 0] >= 0).all())
    close(quaternions.norm(dim=-1), torch.ones_like(quaternions[..., 0]))
    close(matrix_from_quaternion(quaternions), matrices, factor=4)


def test_quaternion_length_and_sign_do_not_change_the_rotation() -> None:
    quaternions = normal(50, 4, seed=5)
    for factor in (-1.0, 1e-100, 1e100):
        close(matrix_from_quaternion(factor * quaternions), matrix_from_quaternion(quaternions))


def test_half_turns_about_the_axes_are_exact() -> None:
    for axis in range(3):
        matrix = 2 * torch.outer(EYE[axis], EYE[axis]) - EYE
        close(quaternion_from_matrix(matrix).abs(), torch.cat([torch.zeros(1, dtype=torch.float64), EYE[axis]]))
        close(rotation_vector_from_matrix(matrix).abs(), math.pi * EYE[axis])


def test_wxyz_and_xyzw_are_permutations() -> None:
    quaternion = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert xyzw_from_wxyz(quaternion).tolist() == [1.0, 2.0, 3.0, 0.0]
    assert wxyz_from_xyzw(xyzw_from_wxyz(quaternion)).tolist() == quaternion.tolist()


def test_skew_times_a_vector_is_the_cross_product() -> None:
    first, second = normal(2, 7, 3, seed=6)
    close((skew(first) @ second[..., None])[..., 0], torch.linalg.cross(first, second))


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_are_accurate_near_0_and_pi(dtype: torch.dtype) -> None:
    vectors = rotation_vectors(dtype=dtype)
    matrices = matrix_from_rotation_vector(vectors)
    close(rotation_angle(matrices), vectors.norm(dim=-1))
    turned = rotations(seed=7, dtype=dtype) @ matrices
    close(rotation_angle(turned, rotations(seed=7, dtype=dtype)), vectors.norm(dim=-1), factor=4)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_axes_and_dtypes_are_kept(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    quaternions = normal(*batch, 4, seed=8, dtype=dtype)
    vectors = normal(*batch, 3, seed=9, dtype=dtype)
    matrices = rotations(*batch, seed=10, dtype=dtype)
    results: list[tuple[Tensor, tuple[int, ...]]] = [
        (matrix_from_quaternion(quaternions), (3, 3)),
        (matrix_from_rotation_vector(vectors), (3, 3)),
        (quaternion_from_matrix(matrices), (4,)),
        (rotation_vector_from_matrix(matrices), (3,)),
        (rotation_angle(matrices), ()),
        (nearest_rotation(matrices), (3, 3)),
        (rotation_defect(matrices), ()),
        (interpolate_rotation(matrices, matrices, torch.zeros(batch, dtype=dtype)), (3, 3)),
    ]
    for result, tail in results:
        assert result.dtype == dtype
        assert tuple(result.shape) == (*batch, *tail)


def test_nearest_rotation_removes_scale_and_minimizes_the_distance() -> None:
    true = rotations(100, seed=11)
    close(nearest_rotation(3.7 * true), true)
    noisy = true + 0.05 * normal(100, 3, 3, seed=12)
    nearest = nearest_rotation(noisy)
    assert float(rotation_defect(nearest).max()) < 1e-12
    distance = (nearest - noisy).norm(dim=(-1, -2))
    for seed in range(20):
        other = nearest @ matrix_from_rotation_vector(0.01 * normal(100, 3, seed=seed))
        assert bool((distance <= (other - noisy).norm(dim=(-1, -2)) + 1e-15).all())


def test_nearest_rotation_of_a_reflection_is_a_rotation() -> None:
    mirrored = rotations(20, seed=13) * torch.tensor([1.0, 1.0, -0.5], dtype=torch.float64)
    assert float(rotation_defect(nearest_rotation(mirrored)).max()) < 1e-12


def test_rotation_defect_detects_reflection_scale_and_shear() -> None:
    assert float(rotation_defect(-EYE)) == 2.0
    assert float(rotation_defect(EYE)) == 0.0
    assert float(rotation_defect(2 * EYE)) == 3.0
    sheared = EYE.clone()
    sheared[0, 1] = 0.25
    assert float(rotation_defect(sheared)) == 0.25


def test_the_mean_of_two_rotations_is_halfway() -> None:
    first, step = rotations(10, seed=14), 0.3 * normal(10, 3, seed=15)
    pair = torch.stack([first, first @ matrix_from_rotation_vector(step)], dim=-3)
    close(mean_rotation(pair), first @ matrix_from_rotation_vector(step / 2))


def test_interpolation_has_exact_ends_and_constant_angular_speed() -> None:
    first, second = rotations(50, seed=16), rotations(50, seed=17)
    zero = torch.zeros(50, dtype=torch.float64)
    close(interpolate_rotation(first, second, zero), first)
    close(interpolate_rotation(first, second, zero + 1), second, factor=4)
    whole = rotation_angle(first, second)
    for fraction in (0.25, 0.5, 0.9):
        between = interpolate_rotation(first, second, zero + fraction)
        close(rotation_angle(first, between), fraction * whole, factor=4)
        close(rotation_angle(between, second), (1 - fraction) * whole, factor=4)


@pytest.mark.parametrize("size", [0.0, 1e-5, 0.0099, 0.0101, 1.0, 3.0])
def test_gradients_of_both_conversions_are_correct(size: float) -> None:
    vector = (size * torch.nn.functional.normalize(normal(3, seed=18), dim=-1)).requires_grad_()
    assert torch.autograd.gradcheck(matrix_from_rotation_vector, (vector,))
    assert torch.autograd.gradcheck(
        lambda given: rotation_vector_from_matrix(
            rotations(seed=19).T @ rotations(seed=19) @ matrix_from_rotation_vector(given)
        ),
        (vector,),
    )


def test_gradients_are_finite_at_the_identity() -> None:
    for function in (quaternion_from_matrix, rotation_vector_from_matrix, matrix_from_rotation_vector):
        given = (
            torch.zeros(3, dtype=torch.float64) if "from_rotation" in function.__name__ else EYE.clone()
        ).requires_grad_()
        function(given).sum().backward()
        assert bool(torch.isfinite(given.grad).all())


def test_matrix_noise_changes_the_angle_by_at_most_the_noise() -> None:
    noise = 1e-6 * normal(200, 3, 3, seed=20)
    for matrix in (EYE, 2 * torch.outer(EYE[0], EYE[0]) - EYE):
        assert float((rotation_angle(matrix + noise) - rotation_angle(matrix)).abs().max()) < 1e-5
