"""Rigs of cameras that look at the middle of a world from an arc, standing still or swaying slowly."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.rigid import rigid
from page4d.geometry.rotation import matrix_from_rotation_vector

WORLD_DOWN = (0.0, 1.0, 0.0)
"""Direction of gravity in a synthetic world."""


@dataclass(frozen=True, kw_only=True)
class Rig:
    """V pinhole cameras in float64 that share an image size (height, width).

    Camera v stands at `center[v] + sway[v] sin(2 pi sway_hz[v] t + sway_phase[v])` metres and looks at `target[v]`,
    rolled by `roll[v]` radians about its axis, which meets the middle of the image. `focal_px` is the focal length.
    """

    image_size: tuple[int, int]
    center: Float[Tensor, "V 3"]
    target: Float[Tensor, "V 3"]
    roll: Float[Tensor, " V"]
    focal_px: Float[Tensor, " V"]
    sway: Float[Tensor, "V 3"]
    sway_hz: Float[Tensor, " V"]
    sway_phase: Float[Tensor, " V"]

    @property
    def num_views(self) -> int:
        """Number of cameras V."""
        return len(self.focal_px)

    @property
    def is_static(self) -> bool:
        """True if every camera stands still."""
        return not bool((self.sway != 0).any())

    @property
    def intrinsics(self) -> Float[Tensor, "V 3 3"]:
        """Intrinsics of every camera in px."""
        height, width = self.image_size
        matrix = torch.zeros(self.num_views, 3, 3, dtype=torch.float64)
        matrix[:, 0, 0] = matrix[:, 1, 1] = self.focal_px
        matrix[:, 0, 2], matrix[:, 1, 2], matrix[:, 2, 2] = width / 2, height / 2, 1.0
        return matrix

    def cameras(self, times: Float[Tensor, " T"]) -> Cameras:
        """Return the cameras [T, V] at `times` in seconds, in float64."""
        instants = times.to(torch.float64)[:, None]
        sine = torch.sin(2 * math.pi * self.sway_hz * instants + self.sway_phase)
        center = self.center + self.sway * sine[..., None]
        turn = matrix_from_rotation_vector(self.roll[:, None] * torch.eye(3, dtype=torch.float64)[2])
        return Cameras(
            world_to_camera=look_at(center, self.target.expand_as(center), turn),
            intrinsics=self.intrinsics.expand(len(times), -1, -1, -1),
            image_size=self.image_size,
        )


def look_at(
    center: Float[Tensor, "*batch 3"], target: Float[Tensor, "*batch 3"], turn: Float[Tensor, "*turns 3 3"]
) -> Float[Tensor, "*batch 4 4"]:
    """Return `world_to_camera` of level cameras looking from `center` to `target`, then turned in their own frame."""
    down = center.new_tensor(WORLD_DOWN).expand_as(center)
    forward = torch.nn.functional.normalize(target - center, dim=-1)
    right = torch.nn.functional.normalize(torch.linalg.cross(down, forward), dim=-1)
    rotation = turn @ torch.stack([right, torch.linalg.cross(forward, right), forward], dim=-2)
    return rigid(rotation, -(rotation @ center[..., None])[..., 0])


def sample_rig(
    seed: int,
    num_views: int = 4,
    image_size: tuple[int, int] = (240, 320),
    *,
    spacing_deg: float | None = None,
    radius: float | None = None,
    height: float | None = None,
    field_of_view_deg: float | None = None,
    moving: bool = False,
) -> Rig:
    """Draw cameras on an arc around the middle of the world; what is given (degrees, metres) is not drawn.

    `spacing_deg` separates neighbours as seen from the middle, `radius` is the horizontal distance to it, `height` is
    above the floor, `field_of_view_deg` spans the longer side of the image. Each camera departs a little from them.
    `moving` cameras sway by up to 0.25 m within some seconds.

    Raises:
        UsageError: for a rig without views, or a field of view outside 10 to 150 degrees.
    """
    random = np.random.default_rng((seed, 2))
    first, drawn_spacing = random.uniform(0, 360), random.uniform(18, 32)
    drawn_radius, drawn_height, drawn_field = (
        random.uniform(2.5, 2.75),
        random.uniform(1.1, 1.6),
        random.uniform(58, 70),
    )
    spacing_deg = drawn_spacing if spacing_deg is None else spacing_deg
    radius = drawn_radius if radius is None else radius
    height = drawn_height if height is None else height
    field_of_view_deg = drawn_field if field_of_view_deg is None else field_of_view_deg
    if num_views < 1 or not 10 <= field_of_view_deg <= 150:
        raise UsageError(
            f"a rig of {num_views} views with a field of view of {field_of_view_deg:g} degrees",
            "give at least one view and 10 to 150 degrees",
        )
    azimuth = np.radians(first + spacing_deg * (np.arange(num_views) + random.uniform(-0.08, 0.08, num_views)))
    distance = radius + random.uniform(-0.08, 0.08, num_views)
    level = height + random.uniform(-0.15, 0.15, num_views)
    center = np.stack([distance * np.cos(azimuth), -level, distance * np.sin(azimuth)], axis=1)
    target = np.array([0.0, -0.6, 0.0]) + random.uniform(-0.08, 0.08, (num_views, 3))
    sway = random.uniform(-1, 1, (num_views, 3)) * np.array([0.25, 0.1, 0.25])
    spread = random.uniform(0.97, 1.03, num_views)
    focal = max(image_size) / 2 / math.tan(math.radians(field_of_view_deg) / 2) * spread
    return Rig(
        image_size=image_size,
        center=torch.from_numpy(center),
        target=torch.from_numpy(target),
        roll=torch.from_numpy(np.radians(random.uniform(-2, 2, num_views))),
        focal_px=torch.from_numpy(focal),
        sway=torch.from_numpy(sway if moving else np.zeros_like(sway)),
        sway_hz=torch.from_numpy(random.uniform(0.1, 0.25, num_views)),
        sway_phase=torch.from_numpy(random.uniform(-math.pi, math.pi, num_views)),
    )
