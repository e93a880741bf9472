"""Random camera rigs around a capture volume, static or moving, drawn from a seed.

The random number generator gives the same stream on every machine and with every version of Python. Ranges of the
numbers that describe a scene are checked before anything is rendered.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from page4d.choices import SceneFamily, Subject
from page4d.errors import UsageError
from page4d.geometry.camera import Cameras
from page4d.geometry.transforms import rigid

Vector = tuple[float, float, float]
T = TypeVar("T")


class Rng:
    """Generator with one independent stream per pair of seed and purpose.

    Every draw derives from `random.Random.random()`, whose sequence Python guarantees not to change.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._draw = random.Random(f"{seed} {purpose}").random  # noqa: S311 - scenes, not secrets

    def uniform(self, low: float, high: float) -> float:
        """Draw from the uniform distribution over an interval."""
        return low + (high - low) * self._draw()

    def log_uniform(self, low: float, high: float) -> float:
        """Draw from the log-uniform distribution over an interval."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._draw() < probability

    def integer(self, count: int) -> int:
        """Draw an integer from 0 to `count` - 1."""
        return int(self._draw() * count)

    def choice(self, choices: Sequence[T]) -> T:
        """Draw one element of a sequence."""
        return choices[self.integer(len(choices))]

    def sign(self) -> float:
        """Draw -1 or 1."""
        return 1.0 if self._draw() < 0.5 else -1.0

    def angle(self) -> float:
        """Draw an angle from -pi to pi."""
        return self.uniform(-math.pi, math.pi)

    def normal(self) -> float:
        """Draw from the standard normal distribution (Box & Muller, 1958)."""
        return math.sqrt(-2 * math.log(1 - self._draw())) * math.cos(2 * math.pi * self._draw())

    def direction(self) -> Vector:
        """Draw a unit vector, uniformly over the sphere."""
        z, angle = self.uniform(-1, 1), self.angle()
        level = math.sqrt(1 - z * z)
        return (level * math.cos(angle), z, level * math.sin(angle))


WORLD_DOWN = (0.0, 1.0, 0.0)
"""Direction of gravity in a synthetic world."""

STILL: Vector = (0.0, 0.0, 0.0)

SPACING_DEG = {
    SceneFamily.ARC: (5.0, 45.0),
    SceneFamily.RING: (45.0, 110.0),
    SceneFamily.STAGE: (25.0, 120.0),
    SceneFamily.HANDHELD: (0.5, 6.0),
    SceneFamily.SINGLE: (0.0, 0.0),
}
"""Range of the angle between neighbouring cameras in degrees, seen from the capture volume."""


@dataclass(frozen=True, kw_only=True)
class CameraRigs:
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


@dataclass(frozen=True, kw_only=True)
class CaptureVolume:
    """Sphere that all cameras film: `center` and `radius` in metres. `table_height` is 0 without a table."""

    center: Vector
    radius: float
    table_height: float


@dataclass(frozen=True, kw_only=True)
class CameraSpec:
    """Parameters of one camera: a row of `rig.Rig`."""

    center: Vector
    target: Vector
    roll: float
    focal: float
    sway: Vector
    follow: Vector
    sway_hz: float
    sway_phase: float

    @property
    def clearance(self) -> float:
        """Radius in metres around `center` that objects must stay out of: the camera's sway plus a margin."""
        return math.hypot(*self.sway) + 0.25


@dataclass(frozen=True, kw_only=True)
class RigSpec:
    """Capture volume and the cameras around it, in a room or in a large hall."""

    volume: CaptureVolume
    cameras: tuple[CameraSpec, ...]
    is_in_hall: bool = False


def sample_rig(
    seed: int,
    family: SceneFamily,
    num_views: int,
    spacing_deg: tuple[float, float] | None = None,
    moving_probability: float = 0.5,
    subject: Subject | None = None,
) -> RigSpec:
    """Draw a capture volume and V cameras around it.

    Unless `subject` is given, half of the scenes of every family but rings show tables, the others people. The field
    of view over the longer image side is 40 to 85 degrees, different for each camera in most rigs. Cameras roll by up
    to 8 degrees, in a tenth of the rigs by up to 30; in another tenth most cameras are rotated by 90 degrees.

    Raises:
        UsageError: if there is no view, a single-camera rig has several, or the spacing exceeds a full circle.
    """
    if num_views < 1 or (family is SceneFamily.SINGLE and num_views > 1):
        raise UsageError(f"{num_views} views of the family {family}", "use at least one view; single has exactly one")
    rng = Rng(seed, "shot")
    volume = _volume(rng, family, subject)
    widest = 360 / num_views
    low, high = spacing_deg or SPACING_DEG[family]
    if num_views > 1 and (low > widest or not 0 <= low <= high):
        raise UsageError(
            f"{num_views} views {low:g} to {high:g} degrees apart",
            f"use angles of at most {widest:g} degrees, or fewer views",
        )
    spacing = math.radians(rng.uniform(low, max(low, min(high, widest))))
    distance, elevation = _distance(rng, volume, family)
    moving = family is SceneFamily.HANDHELD or rng.chance(moving_probability)
    first, tilt = rng.angle(), rng.integer(10)
    shared_field = rng.uniform(40, 85) if rng.chance(0.3) else None
    cameras = []
    for view in range(num_views):
        azimuth = first + spacing * (view + 0.12 * rng.uniform(-1, 1))
        away = distance * rng.uniform(0.88, 1.12)
        up = _own_elevation(rng, volume) if family is SceneFamily.STAGE else elevation + rng.uniform(-0.12, 0.12)
        height = min(3.0, max(0.35, -volume.center[1] + away * math.sin(up)))
        level = away * math.cos(up)
        center = (level * math.cos(azimuth), -height, level * math.sin(azimuth))
        drawn = rng.uniform(40, 85) if shared_field is None else shared_field + rng.uniform(-2, 2)
        field = math.radians(min(85.0, max(40.0, drawn)))
        aim, reach = 0.22 * away * math.tan(field / 2), (0.14 if family is SceneFamily.HANDHELD else 0.09) * away
        x, y, z = volume.center
        target = (x + aim * rng.uniform(-1, 1), y + aim * rng.uniform(-1, 1), z + aim * rng.uniform(-1, 1))
        camera = CameraSpec(
            center=center,
            target=target,
            roll=_roll(rng, tilt),
            focal=0.5 / math.tan(field / 2),
            sway=_amplitude(rng, reach) if moving else STILL,
            follow=_amplitude(rng, 0.05 * away) if moving else STILL,
            sway_hz=rng.uniform(0.08, 0.3),
            sway_phase=rng.angle(),
        )
        cameras.append(camera)
    return RigSpec(volume=volume, cameras=tuple(cameras), is_in_hall=family is SceneFamily.STAGE)


def build_rig(rigs: Sequence[RigSpec]) -> CameraRigs:
    """Convert the cameras of rigs with equal numbers of views to tensors."""
    names = [field.name for field in fields(CameraSpec)]
    rows = {name: [[getattr(camera, name) for camera in rig.cameras] for rig in rigs] for name in names}
    return CameraRigs(**{name: torch.tensor(row, dtype=torch.float64) for name, row in rows.items()})


def _volume(rng: Rng, family: SceneFamily, subject: Subject | None) -> CaptureVolume:
    drawn = Subject.TABLE if family is not SceneFamily.RING and rng.chance(0.5) else Subject.PEOPLE
    if (subject or drawn) is Subject.TABLE:
        height = rng.uniform(0.45, 0.8)
        return CaptureVolume(center=(0.0, -height - 0.1, 0.0), radius=rng.uniform(0.3, 0.42), table_height=height)
    return CaptureVolume(center=(0.0, -rng.uniform(0.7, 1.1), 0.0), radius=rng.uniform(0.9, 1.3), table_height=0.0)


def _distance(rng: Rng, volume: CaptureVolume, family: SceneFamily) -> tuple[float, float]:
    """Draw the distance of the cameras from the volume's centre and their elevation angle in radians."""
    if volume.table_height:
        return rng.log_uniform(0.6, 1.4), rng.uniform(0.2, 0.95)
    away = rng.log_uniform(2.3, 5.4) if family is SceneFamily.RING else rng.log_uniform(2.0, 4.2)
    highest = 0.45 if family is SceneFamily.RING else 0.35
    return away, rng.uniform(-0.1, highest)


def _own_elevation(rng: Rng, volume: CaptureVolume) -> float:
    """Draw the elevation of a camera of a stage in radians: at the height of the table or of people, or above."""
    if volume.table_height:
        return rng.uniform(0.0, 0.15) if rng.chance(0.4) else rng.uniform(0.15, 1.1)
    return rng.uniform(-0.1, 0.5)


def _roll(rng: Rng, tilt: int) -> float:
    if tilt == 0:
        return math.radians(rng.uniform(-30, 30))
    turn = math.pi / 2 * rng.sign() if tilt == 1 and rng.chance(0.7) else 0.0
    return turn + math.radians(rng.uniform(-8, 8))


def _amplitude(rng: Rng, reach: float) -> Vector:
    """Draw the amplitude of a camera's sway, half as large vertically."""
    return (reach * rng.uniform(-1, 1), 0.5 * reach * rng.uniform(-1, 1), reach * rng.uniform(-1, 1))


NumViews = Annotated[int, Field(ge=1, le=64)]
"""Number of cameras of a rig."""

NumTimes = Annotated[int, Field(ge=1, le=100_000)]
"""Number of instants."""

ImageSide = Annotated[int, Field(ge=1, le=8192)]
"""Side of an image in pixels."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Random seed."""

Spacing = Annotated[float, Field(ge=0, le=180)]
"""Angle between neighbouring cameras in degrees."""
