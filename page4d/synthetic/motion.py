"""Analytic rigid motion: two harmonic oscillations of the centre and a rotation about one axis."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.rigid import rigid
from page4d.geometry.rotation import matrix_from_rotation_vector


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Motion of N objects in each of B worlds; objects without swing and turn are static.

    The centre in metres is `center + swing[0] sin_0 + swing[1] sin_1` with
    `sin_k = sin(2 pi swing_hz[k] t + swing_phase[k])`. The initial orientation is the rotation vector `rotation`; the
    object turns about `axis`, a unit vector of the world, by `turn_rate * t + turn_swing * sin_0` radians. A ball of
    radius r whose swing is r * turn_swing long rolls without slipping.
    """

    center: Float[Tensor, "B N 3"]
    rotation: Float[Tensor, "B N 3"]
    swing: Float[Tensor, "B N 2 3"]
    swing_hz: Float[Tensor, "B N 2"]
    swing_phase: Float[Tensor, "B N 2"]
    axis: Float[Tensor, "B N 3"]
    turn_rate: Float[Tensor, "B N"]
    turn_swing: Float[Tensor, "B N"]

    @property
    def moving(self) -> Bool[Tensor, "B N"]:
        """True for objects that move during the capture, turning on the spot included."""
        swings = ((self.swing != 0).any(-1) & (self.swing_hz != 0)).any(-1)
        turns = (self.turn_rate != 0) | ((self.turn_swing != 0) & (self.swing_hz[..., 0] != 0))
        return swings | turns

    def object_to_world(self, times: Float[Tensor, "B T"]) -> Float[Tensor, "B T N 4 4"]:
        """Return the pose of every object at `times` in seconds."""
        instants = times[:, :, None]
        sine = torch.sin(2 * math.pi * self.swing_hz[:, None] * instants[..., None] + self.swing_phase[:, None])
        center = self.center[:, None] + (self.swing[:, None] * sine[..., None]).sum(-2)
        angle = self.turn_rate[:, None] * instants + self.turn_swing[:, None] * sine[..., 0]
        turn = matrix_from_rotation_vector(self.axis[:, None] * angle[..., None])
        return rigid(turn @ matrix_from_rotation_vector(self.rotation)[:, None], center)
