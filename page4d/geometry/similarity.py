"""Similarity transforms: rotation, translation and positive scale (Sim(3))."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.rigid import rigid


@dataclass(frozen=True, kw_only=True)
class Sim3:
    """The transform x -> scale * rotation @ x + translation, with leading batch axes."""

    scale: Float[Tensor, "*batch"]
    rotation: Float[Tensor, "*batch 3 3"]
    translation: Float[Tensor, "*batch 3"]

    @staticmethod
    def identity(dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> "Sim3":
        """Return the identity transform."""
        return Sim3(
            scale=torch.ones((), dtype=dtype, device=device),
            rotation=torch.eye(3, dtype=dtype, device=device),
            translation=torch.zeros(3, dtype=dtype, device=device),
        )

    def like(self, tensor: Tensor) -> "Sim3":
        """Convert to the dtype and device of `tensor`."""
        return Sim3(
            scale=self.scale.to(tensor), rotation=self.rotation.to(tensor), translation=self.translation.to(tensor)
        )

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
