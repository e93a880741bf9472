"""Camera rigs, static or moving: position, viewing direction and focal length of every camera over time."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import rigid

WORLD_DOWN = (0.0, 1.0, 0.0)
"""Direction of gravity in a synthetic world."""


@dataclass(frozen=True, kw_only=True)
class Rig:
    """V pinhole cameras in each of B worlds, in float64.

    The centre of camera v in metres is `center[v] + sway[v] sin(2 pi sway_hz[v] t + sway_phase[v])`. Its optical axis
    points to `target[v] + follow[v] sin(2 pi sway_hz[v] t + sway_phase[v] + 1)`; the camera is rolled by `roll[v]`
    radians about it. The principal point is the image centre. `focal` is in units of the longer image side.
    """

    center: Float[Tensor, "B V 3"]
    target: Float[Tensor, "B V 3"]
    roll: Float[Tensor, "B V"]
    focal: Float[Tensor, "B V"]
    sway: Float[Tensor, "B V 3"]
    follow: Float[Tensor, "B V 3"]
    sway_hz: Float[Tensor, "B V"]
    sway_phase: Float[Tensor, "B V"]

    @property
    def is_static(self) -> bool:
        """True if no camera moves."""
        return not bool((self.sway != 0).any() | (self.follow != 0).any())

    def cameras(self, times: Float[Tensor, "B T"], image_size: tuple[int, int]) -> Cameras:
        """Return the cameras [B, T, V] at `times` in seconds for images of (height, width)."""
        phase = 2 * math.pi * self.sway_hz[:, None] * times[..., None] + self.sway_phase[:, None]
        center = self.center[:, None] + self.sway[:, None] * torch.sin(phase)[..., None]
        target = self.target[:, None] + self.follow[:, None] * torch.sin(phase + 1)[..., None]
        return Cameras(
            world_to_camera=look_at(center, target, self.roll[:, None].expand(phase.shape)),
            intrinsics=self._intrinsics(image_size)[:, None].expand(-1, times.shape[1], -1, -1, -1),
            image_size=image_size,
        )

    def _intrinsics(self, image_size: tuple[int, int]) -> Float[Tensor, "B V 3 3"]:
        height, width = image_size
        matrix = torch.zeros(*self.focal.shape, 3, 3, dtype=self.focal.dtype, device=self.focal.device)
        matrix[..., 0, 0] = matrix[..., 1, 1] = self.focal * max(image_size)
        matrix[..., 0, 2], matrix[..., 1, 2], matrix[..., 2, 2] = width / 2, height / 2, 1.0
        return matrix


def look_at(
    center: Float[Tensor, "*batch 3"], target: Float[Tensor, "*batch 3"], roll: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch 4 4"]:
    """Return `world_to_camera` of cameras at `center` that face `target`, level and then rolled by `roll` radians."""
    down = center.new_tensor(WORLD_DOWN).expand_as(center)
    forward = torch.nn.functional.normalize(target - center, dim=-1)
    right = torch.nn.functional.normalize(torch.linalg.cross(down, forward), dim=-1)
    level = torch.linalg.cross(forward, right)
    sine, cosine = torch.sin(roll)[..., None], torch.cos(roll)[..., None]
    rotation = torch.stack([cosine * right - sine * level, sine * right + cosine * level, forward], dim=-2)
    return rigid(rotation, -(rotation @ center[..., None])[..., 0])
