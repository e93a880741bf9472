"""Rotations as numpy arrays, by the functions of `page4d.geometry.rotation`."""

import numpy as np
import torch
from jaxtyping import Float

from page4d.geometry.rotation import (
    matrix_from_rotation_vector,
    nearest_rotation,
    rotation_angle,
    rotation_vector_from_matrix,
)
from page4d.rig.records import Array


def exp_rotation(vector: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Convert rotation vectors to matrices."""
    return np.asarray(matrix_from_rotation_vector(torch.from_numpy(np.ascontiguousarray(vector))))


def log_rotation(matrix: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Convert matrices to rotation vectors with angles in [0, pi]."""
    return np.asarray(rotation_vector_from_matrix(torch.from_numpy(np.ascontiguousarray(matrix))))


def angle_deg(first: Float[Array, "*batch 3 3"], second: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch"]:
    """Return the angle between rotations in degrees."""
    pair = (torch.from_numpy(np.ascontiguousarray(matrix)) for matrix in (first, second))
    angle: Array = np.degrees(np.asarray(rotation_angle(*pair)))
    return angle


def project_rotation(matrix: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3 3"]:
    """Return the nearest rotations."""
    return np.asarray(nearest_rotation(torch.from_numpy(np.ascontiguousarray(matrix))))


def direction_angle_deg(first: Float[Array, "*batch 3"], second: Float[Array, "*batch 3"]) -> Float[Array, "*batch"]:
    """Return the angle between vectors in degrees, accurate near 0 and 180; 90 where one vanishes."""
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    dot = (first * second).sum(-1)
    vanishing = (cross == 0) & (dot == 0)
    return np.asarray(np.where(vanishing, 90.0, np.degrees(np.arctan2(cross, dot))))
