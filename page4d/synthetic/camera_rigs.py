"""Families of rigs: where cameras stand around their subject, drawn from a seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from page4d.errors import UsageError
from page4d.synthetic.rig import Rig
from page4d.synthetic.rng import Dice, Vector


class SceneFamily(StrEnum):
    """How the cameras of a scene stand."""

    ARC = "arc"
    """Beside each other on an arc, looking inward: 5 to 45 degrees between neighbours."""
    RING = "ring"
    """Around people: 45 to 110 degrees between neighbours, 2 to 6 m away, 0.5 to 3 m high."""
    HANDHELD = "handheld"
    """Close together and always moving."""
    SINGLE = "single"
    """One camera."""


class Subject(StrEnum):
    """What cameras are turned to."""

    PEOPLE = "people"
    """One to three of them."""
    TABLE = "table"
    """Small things on a table, filmed from 0.6 to 1.4 m."""


STILL: Vector = (0.0, 0.0, 0.0)

SPACING_DEG = {
    SceneFamily.ARC: (5.0, 45.0),
    SceneFamily.RING: (45.0, 110.0),
    SceneFamily.HANDHELD: (0.5, 6.0),
    SceneFamily.SINGLE: (0.0, 0.0),
}
"""Angles between neighbouring cameras, as seen from their subject."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is filmed: a subject of `radius` metres about `middle`; `table_height` is 0 where there is no table."""

    middle: Vector
    radius: float
    table_height: float


@dataclass(frozen=True, kw_only=True)
class Camera:
    """One camera of a rig: a row of `rig.Rig`."""

    center: Vector
    target: Vector
    roll: float
    focal: float
    sway: Vector
    follow: Vector
    sway_hz: float
    sway_phase: float

    @property
    def room(self) -> float:
        """How far from `center` the camera may come, in metres, with space to breathe."""
        return math.hypot(*self.sway) + 0.25


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A stage and the cameras around it."""

    stage: Stage
    cameras: tuple[Camera, ...]


def sample_shot(
    seed: int,
    family: SceneFamily,
    num_views: int,
    spacing_deg: tuple[float, float] | None = None,
    moving_probability: float = 0.5,
    subject: Subject | None = None,
) -> Shot:
    """Draw a stage and V cameras around it.

    Unless a subject is given, half of the scenes outside rings are of tables, the others of people. Fields of view
    are 40 to 85 degrees over the longer side, in most rigs each camera's own. Cameras roll by up to 8 degrees, in a
    tenth of the rigs by up to 30, and in another tenth most are turned by 90.

    Raises:
        UsageError: for no views, more than one single view, or angles that do not fit around the subject.
    """
    if num_views < 1 or (family is SceneFamily.SINGLE and num_views > 1):
        raise UsageError(f"{num_views} views of the family {family}", "give one view or more; single has one")
    dice = Dice(seed, "shot")
    stage = _stage(dice, family, subject)
    widest = 360 / num_views
    low, high = spacing_deg or SPACING_DEG[family]
    if num_views > 1 and (low > widest or not 0 <= low <= high):
        raise UsageError(
            f"{num_views} views {low:g} to {high:g} degrees apart",
            f"give angles of at most {widest:g} degrees, or fewer views",
        )
    spacing = math.radians(dice.between(low, max(low, min(high, widest))))
    distance, elevation = _distance(dice, stage, family)
    moving = family is SceneFamily.HANDHELD or dice.chance(moving_probability)
    first, tilt = dice.angle(), dice.below(10)
    shared_field = dice.between(40, 85) if dice.chance(0.3) else None
    cameras = []
    for view in range(num_views):
        azimuth = first + spacing * (view + 0.12 * dice.between(-1, 1))
        away = distance * dice.between(0.88, 1.12)
        up = elevation + dice.between(-0.12, 0.12)
        height = min(3.0, max(0.35, -stage.middle[1] + away * math.sin(up)))
        level = away * math.cos(up)
        center = (level * math.cos(azimuth), -height, level * math.sin(azimuth))
        drawn = dice.between(40, 85) if shared_field is None else shared_field + dice.between(-2, 2)
        field = math.radians(min(85.0, max(40.0, drawn)))
        aim, reach = 0.22 * away * math.tan(field / 2), (0.14 if family is SceneFamily.HANDHELD else 0.09) * away
        x, y, z = stage.middle
        target = (x + aim * dice.between(-1, 1), y + aim * dice.between(-1, 1), z + aim * dice.between(-1, 1))
        camera = Camera(
            center=center,
            target=target,
            roll=_roll(dice, tilt),
            focal=0.5 / math.tan(field / 2),
            sway=_swing(dice, reach) if moving else STILL,
            follow=_swing(dice, 0.05 * away) if moving else STILL,
            sway_hz=dice.between(0.08, 0.3),
            sway_phase=dice.angle(),
        )
        cameras.append(camera)
    return Shot(stage=stage, cameras=tuple(cameras))


def build_rig(shots: Sequence[Shot]) -> Rig:
    """Turn the cameras of shots with equally many views into tensors."""
    names = ("center", "target", "roll", "focal", "sway", "follow", "sway_hz", "sway_phase")
    columns = {
        name: torch.tensor(
            [[getattr(camera, name) for camera in shot.cameras] for shot in shots], dtype=torch.float64
        )
        for name in names
    }
    return Rig(**columns)


def _stage(dice: Dice, family: SceneFamily, subject: Subject | None) -> Stage:
    drawn = Subject.TABLE if family is not SceneFamily.RING and dice.chance(0.5) else Subject.PEOPLE
    if (subject or drawn) is Subject.TABLE:
        height = dice.between(0.45, 0.8)
        return Stage(middle=(0.0, -height - 0.1, 0.0), radius=dice.between(0.3, 0.42), table_height=height)
    return Stage(middle=(0.0, -dice.between(0.7, 1.1), 0.0), radius=dice.between(0.9, 1.3), table_height=0.0)


def _distance(dice: Dice, stage: Stage, family: SceneFamily) -> tuple[float, float]:
    """Draw how far cameras are from the middle, and how high they stand above it as an angle in radians."""
    if stage.table_height:
        return dice.log_between(0.6, 1.4), dice.between(0.2, 0.95)
    away = dice.log_between(2.3, 5.4) if family is SceneFamily.RING else dice.log_between(2.0, 4.2)
    highest = 0.45 if family is SceneFamily.RING else 0.35
    return away, dice.between(-0.1, highest)


def _roll(dice: Dice, tilt: int) -> float:
    if tilt == 0:
        return math.radians(dice.between(-30, 30))
    turn = math.pi / 2 * dice.sign() if tilt == 1 and dice.chance(0.7) else 0.0
    return turn + math.radians(dice.between(-8, 8))


def _swing(dice: Dice, reach: float) -> Vector:
    return (reach * dice.between(-1, 1), 0.5 * reach * dice.between(-1, 1), reach * dice.between(-1, 1))
