"""Rotations: matrices, unit quaternions (wxyz) and rotation vectors, batched and differentiable."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def wxyz_from_xyzw(quaternion_xyzw: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Move the scalar part from the last place to the first."""
    return quaternion_xyzw.roll(1, dims=-1)


def xyzw_from_wxyz(quaternion_wxyz: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Move the scalar part from the first place to the last."""
    return quaternion_wxyz.roll(-1, dims=-1)


def matrix_from_quaternion(quaternion_wxyz: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Convert quaternions of any non-zero length to rotation matrices.

    Source: Hartley & Zisserman (2004), A4.3.3, with the normalisation folded into the factor 2 / |q|^2.
    """
    w, x, y, z = quaternion_wxyz.unbind(-1)
    twice = 2.0 / quaternion_wxyz.square().sum(-1)
    rows = (
        (1 - twice * (y * y + z * z), twice * (x * y - w * z), twice * (x * z + w * y)),
        (twice * (x * y + w * z), 1 - twice * (x * x + z * z), twice * (y * z - w * x)),
        (twice * (x * z - w * y), twice * (y * z + w * x), 1 - twice * (x * x + y * y)),
    )
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def quaternion_from_matrix(matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Convert rotation matrices to unit quaternions (wxyz) with w >= 0.

    Each row of the symmetric matrix below is 4 times the quaternion times one of its components; the row of the
    largest component is the most accurate and is normalised.

    Source: Bar-Itzhack, "New method for extracting the quaternion from a rotation matrix", 2000.
    """
    (m00, m01, m02), (m10, m11, m12), (m20, m21, m22) = (row.unbind(-1) for row in matrix.unbind(-2))
    rows = (
        (1 + m00 + m11 + m22, m21 - m12, m02 - m20, m10 - m01),
        (m21 - m12, 1 + m00 - m11 - m22, m10 + m01, m02 + m20),
        (m02 - m20, m10 + m01, 1 - m00 + m11 - m22, m21 + m12),
        (m10 - m01, m02 + m20, m21 + m12, 1 - m00 - m11 + m22),
    )
    products = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    largest = products.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = torch.take_along_dim(products, largest[..., None, None], dim=-2).squeeze(-2)
    quaternion = torch.nn.functional.normalize(row, dim=-1)
    return torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)


def skew(vector: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the matrix whose product with u is the cross product of `vector` and u."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    rows = ((zero, -z, y), (z, zero, -x), (-y, x, zero))
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def matrix_from_rotation_vector(vector: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Convert rotation vectors (axis times angle in radians) to matrices; exact and differentiable at zero.

    Source: Rodrigues' formula via the half-angle quaternion, which is accurate for small angles.
    """
    squared = vector.square().sum(-1, keepdim=True)
    small = squared < 1e-8
    angle = torch.where(small, torch.ones_like(squared), squared).sqrt()
    scalar = torch.where(small, 1 - squared / 8, torch.cos(angle / 2))
    factor = torch.where(small, 0.5 - squared / 48, torch.sin(angle / 2) / angle)
    return matrix_from_quaternion(torch.cat([scalar, factor * vector], dim=-1))


def rotation_vector_from_matrix(matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3"]:
    """Convert rotation matrices to rotation vectors with angles in [0, pi]; stable near both ends."""
    quaternion = quaternion_from_matrix(matrix)
    scalar, vector = quaternion[..., :1], quaternion[..., 1:]
    squared = vector.square().sum(-1, keepdim=True)
    small = squared < 1e-12
    sine = torch.where(small, torch.ones_like(squared), squared).sqrt()
    factor = torch.where(small, 2.0 + squared / 3.0, 2 * torch.atan2(sine, scalar) / sine)
    return factor * vector


def rotation_angle(
    first: Float[Tensor, "*batch 3 3"], second: Float[Tensor, "*batch 3 3"] | None = None
) -> Float[Tensor, "*batch"]:
    """Return the rotation angle in radians of `first`, or between `first` and `second`; accurate near 0 and pi.

    Source: Hartley & Zisserman (2004), A4.3.2: sine from the skew-symmetric part, cosine from the trace.
    """
    relative = first if second is None else first.transpose(-1, -2) @ second
    skewed = relative - relative.transpose(-1, -2)
    sine = torch.stack([skewed[..., 2, 1], skewed[..., 0, 2], skewed[..., 1, 0]], dim=-1).norm(dim=-1) / 2
    cosine = (relative.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.atan2(sine, cosine)


def nearest_rotation(matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the rotation closest to `matrix` in the Frobenius norm.

    Source: Umeyama (1991), lemma: U diag(1, 1, det(U V^T)) V^T of the singular value decomposition.
    """
    u, _, vh = torch.linalg.svd(matrix)
    sign = torch.linalg.det(u @ vh)
    ones = torch.ones_like(sign)
    nearest: Tensor = u @ (torch.stack([ones, ones, sign], dim=-1)[..., None] * vh)
    return nearest


def mean_rotation(matrices: Float[Tensor, "*batch K 3 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Return the chordal L2 mean of K rotations.

    Source: Hartley et al., "Rotation averaging", IJCV 2013, section 5.3.
    """
    total: Tensor = matrices.sum(-3)
    return nearest_rotation(total)


def interpolate_rotation(
    first: Float[Tensor, "*batch 3 3"], second: Float[Tensor, "*batch 3 3"], fraction: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch 3 3"]:
    """Interpolate along the geodesic from `first` (fraction 0) to `second` (fraction 1)."""
    step = rotation_vector_from_matrix(first.transpose(-1, -2) @ second)
    return first @ matrix_from_rotation_vector(fraction[..., None] * step)


def rotation_defect(matrix: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch"]:
    """Return the largest entry of |R^T R - I|, at least 2 if the determinant is negative; 0 for a rotation."""
    identity = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
    defect = (matrix.transpose(-1, -2) @ matrix - identity).abs().amax(dim=(-1, -2))
    return torch.where(torch.linalg.det(matrix) < 0, torch.full_like(defect, 2.0).maximum(defect), defect)


def turn_up(up: ArrayLike, goal: ArrayLike) -> NDArray[np.float64]:
    """Return the smallest rotation that turns one unit vector to another; between axes its entries are 0 and +-1.

    Opposite vectors are exchanged by half a turn about x, or about y for the x axes: -y to y is diag(1, -1, -1).
    """
    start, end = np.asarray(up, dtype=np.float64), np.asarray(goal, dtype=np.float64)
    cosine = float(start @ end)
    if cosine < 1e-12 - 1.0:
        return np.diag([-1.0, 1.0, -1.0] if abs(start[0]) > 0.5 else [1.0, -1.0, -1.0])
    axis = np.cross(start, end)
    cross = np.array([[0.0, -axis[2], axis[1]], [axis[2], 0.0, -axis[0]], [-axis[1], axis[0], 0.0]])
    rotation: NDArray[np.float64] = np.eye(3) + cross + cross @ cross / (1.0 + cosine)
    return rotation + 0.0  # no negative zeros
