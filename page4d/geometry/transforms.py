"""Rigid transforms as 4x4 matrices (SE(3)), and similarity transforms with a positive scale (Sim(3))."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.geometry.rotation import interpolate_rotation


def rigid(
    rotation: Float[Tensor, "*batch 3 3"], translation: Float[Tensor, "*batch 3"]
) -> Float[Tensor, "*batch 4 4"]:
    """Build the transform x -> rotation @ x + translation."""
    upper = torch.cat([rotation, translation[..., None]], dim=-1)
    last = torch.zeros_like(upper[..., :1, :])
    last[..., 3] = 1.0
    return torch.cat([upper, last], dim=-2)


def invert_rigid(transform: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
    """Invert in closed form: the rotation is transposed."""
    rotation = transform[..., :3, :3].transpose(-1, -2)
    return rigid(rotation, -(rotation @ transform[..., :3, 3:])[..., 0])


def scale_translations(
    transform: Float[Tensor, "*batch 4 4"], factor: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch 4 4"]:
    """Multiply the translation of each transform: the change of a pose with the unit of length."""
    return rigid(transform[..., :3, :3], transform[..., :3, 3] * factor[..., None].to(transform.dtype))


def move_origin(
    world_to_camera: Float[Tensor, "*batch 4 4"], origin: Float[Tensor, "3"]
) -> Float[Tensor, "*batch 4 4"]:
    """Return poses in a world whose origin is at `origin` of the former one."""
    rotation = world_to_camera[..., :3, :3]
    return rigid(rotation, world_to_camera[..., :3, 3] + rotation @ origin.to(rotation))


def transform_points(
    transform: Float[Tensor, "*batch 4 4"], points: Float[Tensor, "*grid 3"]
) -> Float[Tensor, "*grid 3"]:
    """Apply each transform to its grid of points; batch axes broadcast."""
    grid_axes = points.ndim - transform.ndim + 1
    expanded = transform.reshape(*transform.shape[:-2], *(1,) * grid_axes, 4, 4)
    return (expanded[..., :3, :3] @ points[..., None])[..., 0] + expanded[..., :3, 3]


def camera_centers(world_to_camera: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 3"]:
    """Return the position of each camera in the world."""
    rotation, translation = world_to_camera[..., :3, :3], world_to_camera[..., :3, 3:]
    return -(rotation.transpose(-1, -2) @ translation)[..., 0]


def is_constant(matrices: Float[Tensor, "T *batch N N"] | NDArray[np.float64]) -> bool:
    """Return whether poses or intrinsics are the same, to the bit, at all T instants."""
    equal: Any = matrices == matrices[:1]
    return bool(equal.all())


def interpolate_rigid(
    first: Float[Tensor, "*batch 4 4"], second: Float[Tensor, "*batch 4 4"], fraction: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch 4 4"]:
    """Interpolate `world_to_camera` transforms: centres linearly, orientations along the geodesic.

    Fraction 0 returns `first`, 1 returns `second`. Equal transforms are returned unchanged, bit for bit.
    """
    rotation = interpolate_rotation(first[..., :3, :3], second[..., :3, :3], fraction)
    center = torch.lerp(camera_centers(first), camera_centers(second), fraction[..., None])
    between = rigid(rotation, -(rotation @ center[..., None])[..., 0])
    return torch.where((first == second).all(dim=(-1, -2), keepdim=True), first, between)


@dataclass(frozen=True, kw_only=True)
class Sim3:
    """The transform x -> scale * rotation @ x + translation, with leading batch axes."""

    scale: Float[Tensor, "*batch"]
    rotation: Float[Tensor, "*batch 3 3"]
    translation: Float[Tensor, "*batch 3"]

    @staticmethod
    def identity() -> "Sim3":
        """Return the identity transform in double precision."""
        one, zero = torch.ones((), dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        return Sim3(scale=one, rotation=torch.eye(3, dtype=torch.float64), translation=zero)

    @staticmethod
    def into_camera(world_to_camera: Float[Tensor, "4 4"], scale: Float[Tensor, ""]) -> "Sim3":
        """Return the transform into the frame of a camera, in whose unit lengths are `scale` times as large."""
        pose = world_to_camera.to(scale)
        return Sim3(scale=scale, rotation=pose[:3, :3], translation=scale * pose[:3, 3])

    def like(self, tensor: Tensor) -> "Sim3":
        """Convert to the dtype and device of `tensor`."""
        return Sim3(**{name: value.to(tensor) for name, value in vars(self).items()})

    def __matmul__(self, other: "Sim3") -> "Sim3":
        """Compose with `other`, which is applied first."""
        return Sim3(
            scale=self.scale * other.scale,
            rotation=self.rotation @ other.rotation,
            translation=self.apply(other.translation),
        )

    def inverse(self) -> "Sim3":
        """Return the inverse transform."""
        rotation = self.rotation.transpose(-1, -2)
        scale = 1 / self.scale
        translation = -scale[..., None] * (rotation @ self.translation[..., None])[..., 0]
        return Sim3(scale=scale, rotation=rotation, translation=translation)

    def matrix(self) -> Float[Tensor, "*batch 4 4"]:
        """Return the 4x4 matrix."""
        return rigid(self.scale[..., None, None] * self.rotation, self.translation)

    def apply(self, points: Float[Tensor, "*grid 3"]) -> Float[Tensor, "*grid 3"]:
        """Transform points; the batch axes of the transform lead those of the points."""
        grid_axes = points.ndim - self.translation.ndim
        ones = (1,) * grid_axes
        batch = self.scale.shape
        linear = (self.scale[..., None, None] * self.rotation).reshape(*batch, *ones, 3, 3)
        return (linear @ points[..., None])[..., 0] + self.translation.reshape(*batch, *ones, 3)

    def apply_to_vectors(self, vectors: Float[Tensor, "*grid 3"]) -> Float[Tensor, "*grid 3"]:
        """Rotate and scale differences of points, such as velocities."""
        return replace(self, translation=torch.zeros_like(self.translation)).apply(vectors)

    def apply_to_cameras(self, world_to_camera: Float[Tensor, "*cameras 4 4"]) -> Tensor:
        """Transform `world_to_camera` along with the world.

        A point x at depth d becomes apply(x) at depth scale * d: depth maps must be multiplied by `scale` too (see
        `Predictions.transformed`).
        """
        camera_axes = world_to_camera.ndim - 1 - self.translation.ndim
        ones = (1,) * camera_axes
        batch = self.scale.shape
        rotation = world_to_camera[..., :3, :3] @ self.rotation.reshape(*batch, *ones, 3, 3).transpose(-1, -2)
        translation = self.scale.reshape(*batch, *ones, 1) * world_to_camera[..., :3, 3]
        moved = (rotation @ self.translation.reshape(*batch, *ones, 3, 1))[..., 0]
        return rigid(rotation, translation - moved)
