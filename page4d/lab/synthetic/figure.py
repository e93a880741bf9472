"""Articulated human figures of capsules and ellipsoids: forward kinematics of sinusoidal joint angles.

The frame of a figure is x to its right, y down, z forward.

Source: Winter, Biomechanics and Motor Control of Human Movement (1990), figure 4.1, for segment lengths relative to
body height.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.geometry.transforms import rigid


class Part(IntEnum):
    """Body parts of a figure in the order of its objects."""

    PELVIS = 0
    TORSO = 1
    HEAD = 2
    HAIR = 3
    LEFT_UPPER_ARM = 4
    LEFT_FOREARM = 5
    LEFT_THIGH = 6
    LEFT_SHIN = 7
    LEFT_FOOT = 8
    RIGHT_UPPER_ARM = 9
    RIGHT_FOREARM = 10
    RIGHT_THIGH = 11
    RIGHT_SHIN = 12
    RIGHT_FOOT = 13


class Joint(IntEnum):
    """Joint angles of a figure; each is a sinusoid over time."""

    LEAN = 0
    TWIST = 1
    NOD = 2
    LOOK = 3
    LEFT_SHOULDER = 4
    LEFT_RAISE = 5
    LEFT_ELBOW = 6
    LEFT_HIP = 7
    LEFT_KNEE = 8
    RIGHT_SHOULDER = 9
    RIGHT_RAISE = 10
    RIGHT_ELBOW = 11
    RIGHT_HIP = 12
    RIGHT_KNEE = 13


_TRUNK, _SIDE, _ARM, _LEG = 0.288, 0.115, 0.186, 0.245
_SHIN, _FOREARM, _HIP, _HEAD = 0.246, 0.2, 0.055, 0.13

HALF_SIZES = (
    (0.085, 0.065, 0.06),
    (0.105, 0.175, 0.068),
    (0.043, 0.067, 0.052),
    (0.047, 0.055, 0.052),
    *((0.028, 0.113, 0.028), (0.022, 0.12, 0.022), (0.045, 0.15, 0.045), (0.032, 0.145, 0.032), (0.025, 0.076, 0.025))
    * 2,
)
"""Half sizes of the parts of a figure of height 1; capsules lie along y."""

_TRUNK_JOINTS = (Joint.LEAN, Joint.TWIST)
_MOVED_BY: tuple[tuple[Joint, ...], ...] = (
    (),
    _TRUNK_JOINTS,
    *((*_TRUNK_JOINTS, Joint.NOD, Joint.LOOK),) * 2,
    (*_TRUNK_JOINTS, Joint.LEFT_SHOULDER, Joint.LEFT_RAISE),
    (*_TRUNK_JOINTS, Joint.LEFT_SHOULDER, Joint.LEFT_RAISE, Joint.LEFT_ELBOW),
    *((),) * 3,
    (*_TRUNK_JOINTS, Joint.RIGHT_SHOULDER, Joint.RIGHT_RAISE),
    (*_TRUNK_JOINTS, Joint.RIGHT_SHOULDER, Joint.RIGHT_RAISE, Joint.RIGHT_ELBOW),
    *((),) * 3,
)
"""Joints that move each part. Leg joints additionally move every part, as they raise and lower the whole figure."""

_LEGS = (Joint.LEFT_HIP, Joint.LEFT_KNEE, Joint.RIGHT_HIP, Joint.RIGHT_KNEE)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """F figures in each of B worlds, on a floor at y = 0.

    A figure walks along a circle of `circle_radius` metres about `circle_center` (x, z) at `turn_rate` radians per
    second, starting at `circle_phase`, and faces its direction of motion. The angle of joint j is
    `joint_base + joint_swing * sin(2 pi joint_hz t + joint_phase)`. `height` is in metres, `girth` scales the widths.
    """

    height: Float[Tensor, "B F"]
    girth: Float[Tensor, "B F"]
    circle_center: Float[Tensor, "B F 2"]
    circle_radius: Float[Tensor, "B F"]
    circle_phase: Float[Tensor, "B F"]
    turn_rate: Float[Tensor, "B F"]
    joint_base: Float[Tensor, "B F J"]
    joint_swing: Float[Tensor, "B F J"]
    joint_hz: Float[Tensor, "B F J"]
    joint_phase: Float[Tensor, "B F J"]

    @property
    def half_sizes(self) -> Float[Tensor, "B F P 3"]:
        """Half sizes of every part in metres."""
        wide = torch.stack([self.girth, torch.ones_like(self.girth), self.girth], dim=-1)
        return self.height.new_tensor(HALF_SIZES) * self.height[..., None, None] * wide[..., None, :]

    @property
    def moving(self) -> Bool[Tensor, "B F P"]:
        """True for the parts that move during the capture."""
        swings = (self.joint_swing != 0) & (self.joint_hz != 0)
        table = torch.zeros(len(Part), len(Joint), dtype=torch.bool, device=swings.device)
        for part, joints in enumerate(_MOVED_BY):
            table[part, [*joints, *_LEGS]] = True
        return (swings[..., None, :] & table).any(-1) | (self.turn_rate != 0)[..., None]

    def part_to_world(self, times: Float[Tensor, "B T"]) -> Float[Tensor, "B T F P 4 4"]:
        """Return the pose of every part at `times` in seconds; the lower foot touches the floor."""
        instants = times[:, :, None, None]
        sine = torch.sin(2 * math.pi * self.joint_hz[:, None] * instants + self.joint_phase[:, None])
        angle = (self.joint_base[:, None] + self.joint_swing[:, None] * sine).unbind(-1)
        along = self.turn_rate[:, None] * times[..., None] + self.circle_phase[:, None]
        rotation, center, lowest = _parts(angle, self.height[:, None], self.girth[:, None])
        # The circle runs from x to z; a figure that walks it in the other sense is turned by pi.
        heading = _turn(1, -along - torch.where(self.turn_rate < 0, math.pi, 0.0)[:, None])
        reach = torch.stack([torch.cos(along), torch.sin(along)], dim=-1) * self.circle_radius[:, None, :, None]
        x, z = (self.circle_center[:, None] + reach).unbind(-1)
        foot = torch.stack([x, -lowest, z], dim=-1)
        place = foot[..., None, :] + (heading[..., None, :, :] @ center[..., None])[..., 0]
        return rigid(heading[..., None, :, :] @ rotation, place)


def _parts(angle: tuple[Tensor, ...], height: Tensor, girth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotations and centres of all parts relative to the middle of the hips, and the y of the lowest point."""
    poses: list[tuple[Tensor, Tensor]] = []
    zero = torch.zeros_like(angle[0])
    height, girth = height.expand_as(zero), girth.expand_as(zero)
    unit = torch.eye(3, dtype=zero.dtype, device=zero.device).expand(*zero.shape, 3, 3)

    def step(origin: Tensor, rotation: Tensor, x: float, y: float, z: float = 0.0) -> Tensor:
        offset = torch.stack([x * height * girth, y * height, z * height], dim=-1)
        return origin + (rotation @ offset[..., None])[..., 0]

    hips = torch.zeros(*zero.shape, 3, dtype=zero.dtype, device=zero.device)
    trunk = _turn(1, angle[Joint.TWIST]) @ _turn(0, -angle[Joint.LEAN])
    head = trunk @ _turn(1, angle[Joint.LOOK]) @ _turn(0, -angle[Joint.NOD])
    neck = step(hips, trunk, 0, -_TRUNK - 0.02)
    poses += [(unit, step(hips, unit, 0, -0.02)), (trunk, step(hips, trunk, 0, -_TRUNK / 2 - 0.02))]
    poses += [(head, step(neck, head, 0, -0.09, 0.01)), (head, step(neck, head, 0, -0.107, -0.008))]
    feet = []
    for side, first in ((-1.0, Joint.LEFT_SHOULDER), (1.0, Joint.RIGHT_SHOULDER)):
        pitch, raised, elbow, hip, knee = (angle[first + i] for i in range(5))
        upper = trunk @ _turn(2, -side * raised) @ _turn(0, pitch)
        fore = upper @ _turn(0, elbow)
        shoulder = step(hips, trunk, side * _SIDE, -_TRUNK)
        thigh = _turn(0, hip)
        shin = thigh @ _turn(0, -knee)
        knee_at = step(step(hips, unit, side * _HIP, 0.0), thigh, 0, _LEG)
        ankle = step(knee_at, shin, 0, _SHIN)
        sole = shin @ _turn(0, knee.new_full((), math.pi / 2))
        poses += [
            (upper, step(shoulder, upper, 0, _ARM / 2)),
            (fore, step(step(shoulder, upper, 0, _ARM), fore, 0, _FOREARM / 2)),
            (thigh, step(step(hips, unit, side * _HIP, 0.0), thigh, 0, _LEG / 2)),
            (shin, step(knee_at, shin, 0, _SHIN / 2)),
            (sole, step(ankle, shin, 0, 0.02, 0.04)),
        ]
        radius = HALF_SIZES[Part.LEFT_FOOT][0] * height * girth
        spine = HALF_SIZES[Part.LEFT_FOOT][1] * height - radius
        feet += [poses[-1][1][..., 1] + spine * sole[..., 1, 1].abs() + radius]
    rotation, center = (
        torch.stack(parts, dim=-2 - dim) for parts, dim in zip(zip(*poses, strict=True), (1, 0), strict=True)
    )
    return rotation, center, torch.maximum(*feet)


def _turn(axis: int, angle: Tensor) -> Float[Tensor, "*batch 3 3"]:
    """Return rotation matrices about a coordinate axis."""
    sine, cosine = torch.sin(angle), torch.cos(angle)
    matrix = torch.zeros(*angle.shape, 3, 3, dtype=angle.dtype, device=angle.device)
    first, second = [(1, 2), (2, 0), (0, 1)][axis]
    matrix[..., axis, axis] = 1.0
    matrix[..., first, first] = matrix[..., second, second] = cosine
    matrix[..., first, second], matrix[..., second, first] = -sine, sine
    return matrix
