"""Random transforms and cameras for property tests, and tolerances per dtype."""

import math

import torch
from torch import Tensor

from page4d.geometry.rotation import matrix_from_quaternion, skew
from page4d.geometry.transforms import Sim3, rigid

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
"""Absolute and relative error of a short chain of operations on values of magnitude one."""

DTYPES = tuple(TOLERANCE)
BATCHES = ((), (1,), (5,), (2, 3), (0,))


def close(actual: Tensor, expected: Tensor, factor: float = 1.0) -> None:
    """Assert equality up to `factor` times the tolerance of the dtype, and equal dtype and shape."""
    tolerance = factor * TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def generator(seed: int) -> torch.Generator:
    """Return a seeded random generator."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal samples, drawn in float64 so that they are equal for all dtypes."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def rotations(*batch: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return uniformly distributed rotations."""
    return matrix_from_quaternion(normal(*batch, 4, seed=seed, dtype=dtype))


def rotation_vectors(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return rotation vectors with angles from 0 to pi, dense near both ends, in many directions."""
    small = [0.0, 1e-300, 1e-170, 1e-16, 1e-9, 1e-8, 1e-7, 1e-6, 9.9e-5, 1e-4, 1.01e-4, 1e-3, 0.0099, 0.0101, 0.1]
    angles = [*small, 1.0, 2.0, 3.0, *(math.pi - gap for gap in (0.1, 1e-3, 1e-6, 1e-9, 1e-12)), math.pi]
    directions = torch.cat([torch.eye(3, dtype=torch.float64), normal(20, 3, seed=seed)])
    directions = torch.nn.functional.normalize(directions, dim=-1)
    vectors = torch.tensor(angles, dtype=torch.float64)[:, None, None] * directions
    return vectors.reshape(-1, 3).to(dtype)


def transforms(*batch: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return rigid transforms."""
    return rigid(rotations(*batch, seed=seed, dtype=dtype), normal(*batch, 3, seed=seed + 1, dtype=dtype))


def similarities(*batch: int, seed: int, dtype: torch.dtype = torch.float64) -> Sim3:
    """Return similarities with scales from about 0.2 to 5."""
    return Sim3(
        scale=normal(*batch, seed=seed + 2, dtype=dtype).mul(0.7).exp(),
        rotation=rotations(*batch, seed=seed, dtype=dtype),
        translation=normal(*batch, 3, seed=seed + 1, dtype=dtype),
    )


def intrinsics(*batch: int, seed: int, skew: float = 3.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return intrinsics of images of about 40 x 30 pixels, with skew."""
    noise = normal(*batch, 5, seed=seed)
    matrix = torch.zeros(*batch, 3, 3, dtype=torch.float64)
    matrix[..., 0, 0] = 35 + noise[..., 0]
    matrix[..., 1, 1] = 33 + noise[..., 1]
    matrix[..., 0, 2] = 20 + noise[..., 2]
    matrix[..., 1, 2] = 15 + noise[..., 3]
    matrix[..., 0, 1] = skew * noise[..., 4]
    matrix[..., 2, 2] = 1
    return matrix.to(dtype)


def se3_exp(twist: Tensor) -> Tensor:
    """Return the rigid transform of a twist (translation part, then rotation vector), as a matrix exponential."""
    generators = twist.new_zeros(*twist.shape[:-1], 4, 4)
    generators[..., :3, :3] = skew(twist[..., 3:])
    generators[..., :3, 3] = twist[..., :3]
    return torch.linalg.matrix_exp(generators)
