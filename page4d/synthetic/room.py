"""Rooms: walls around the cameras, relief and pictures on them, furniture, a lamp."""

import math
from typing import NamedTuple

from page4d.synthetic.blueprint import ZERO, Lighting, Thing
from page4d.synthetic.camera_rigs import Shot
from page4d.synthetic.furniture import AT_WALLS, FREE_STANDING, diagonal, extent, side_table
from page4d.synthetic.materials import (
    Material,
    floor_material,
    near,
    object_material,
    plain_material,
    wall_material,
)
from page4d.synthetic.place import Space, turned
from page4d.synthetic.rng import Dice
from page4d.synthetic.world import Shape

WALL_GAP = 0.1
"""Smallest distance in metres between where a camera may come and a wall; relief is thinner."""


def room_around(dice: Dice, shot: Shot) -> Thing:
    """Draw walls that leave space for the stage and every camera; its own material is never seen."""
    reach = shot.stage.radius + 0.6
    low, high, top = [-reach, -reach], [reach, reach], 2.25
    for camera in shot.cameras:
        for side, axis in ((0, 0), (1, 2)):
            low[side] = min(low[side], camera.center[axis] - camera.room)
            high[side] = max(high[side], camera.center[axis] + camera.room)
        top = max(top, camera.room - camera.center[1])
    low = [value - WALL_GAP - dice.log_between(0.1, 2.0) for value in low]
    high = [value + WALL_GAP + dice.log_between(0.1, 2.0) for value in high]
    top += dice.between(0.1, 0.8)
    half = ((high[0] - low[0]) / 2, top / 2, (high[1] - low[1]) / 2)
    center = ((high[0] + low[0]) / 2, -top / 2, (high[1] + low[1]) / 2)
    return Thing(Shape.ROOM, half, center, plain_material(dice))


def room_faces(dice: Dice) -> tuple[Material, ...]:
    """Draw materials for the walls at -x and +x, ceiling, floor, and the walls at -z and +z."""
    floor, ceiling = floor_material(dice), plain_material(dice, 0.7, 0.95, 0.2)
    sides = [wall_material(dice, 0), wall_material(dice, 2)]
    alike = dice.chance(0.4)
    others = sides if alike else [wall_material(dice, 0), wall_material(dice, 2)]
    return (sides[0], others[0], ceiling, floor, sides[1], others[1])


def room_light(dice: Dice, room: Thing) -> Lighting:
    """Hang a lamp below the ceiling."""
    place = [c + dice.between(-0.7, 0.7) * h for c, h in zip(room.center, room.half, strict=True)]
    warm = dice.between(-0.05, 0.16)
    power, glow = dice.between(0.5, 1.4), dice.between(0.28, 0.5)
    fill = dice.between(0.0, 0.35)
    x, y, z = dice.direction()
    return Lighting(
        position=(place[0], -2 * room.half[1] + dice.between(0.15, 0.6), place[2]),
        reach=max(3.0, 1.2 * max(room.half)),
        color=(power, power * (1 - warm), power * (1 - 2 * warm)),
        glow=(glow * (1 - 0.5 * warm), glow, glow * (1 + 0.5 * warm)),
        fill=(fill, fill, fill),
        fill_to=(x, abs(y) * 0.5, z),
        sky=(ZERO, ZERO, ZERO),
    )


class _Wall(NamedTuple):
    """A wall whose inner side lies at `place` on `axis`, facing `inward`, from `low` to `high` on the other axis."""

    axis: int
    place: float
    inward: float
    low: float
    high: float
    top: float

    def box(self, u: float, half_u: float, bottom: float, top: float, depth: float, material: Material) -> Thing:
        """Fix a box to the wall."""
        half, center = [depth / 2, (top - bottom) / 2, half_u], [0.0, -(top + bottom) / 2, 0.0]
        if self.axis == 2:
            half.reverse()
        center[self.axis] = self.place + self.inward * depth / 2
        center[2 - self.axis] = u
        return Thing(Shape.BOX, tuple(half), tuple(center), material)  # type: ignore[arg-type]


def _walls(room: Thing) -> list[_Wall]:
    (x, _, z), (half_x, half_y, half_z) = room.center, room.half
    return [
        _Wall(0, x - half_x, 1.0, z - half_z, z + half_z, 2 * half_y),
        _Wall(0, x + half_x, -1.0, z - half_z, z + half_z, 2 * half_y),
        _Wall(2, z - half_z, 1.0, x - half_x, x + half_x, 2 * half_y),
        _Wall(2, z + half_z, -1.0, x - half_x, x + half_x, 2 * half_y),
    ]


def wall_relief(dice: Dice, room: Thing, faces: tuple[Material, ...]) -> list[Thing]:
    """Give every wall pilasters, panels, a door, windows, pictures or nothing; all of it stands out from the wall."""
    things: list[Thing] = []
    skirting = plain_material(dice, 0.2, 0.9, 1.0) if dice.chance(0.5) else None
    for wall, face in zip(_walls(room), (faces[0], faces[1], faces[4], faces[5]), strict=True):
        length = (wall.high - wall.low) / 2
        middle = (wall.high + wall.low) / 2
        if skirting is not None:
            things.append(wall.box(middle, length, 0.0, 0.1, 0.015, skirting))
        kind = dice.below(6)
        if kind == 0:
            things += _pilasters(dice, wall, face)
        elif kind == 1:
            u = middle + dice.between(-0.6, 0.6) * length
            things.append(wall.box(u, 0.47, 0.0, 2.08, 0.03, plain_material(dice, 0.3, 0.9, 1.0)))
            things.append(wall.box(u, 0.4, 0.02, 2.0, 0.06, plain_material(dice, 0.2, 0.85, 1.0)))
        elif kind == 2:
            things += _window(dice, wall, middle + dice.between(-0.5, 0.5) * length)
        elif kind <= 4:
            for _ in range(1 + dice.below(2)):
                half_u, half_v = dice.between(0.15, 0.55), dice.between(0.15, 0.4)
                u, v = middle + dice.between(-0.7, 0.7) * length, dice.between(1.2, 1.6)
                picture = object_material(dice, 2 * half_u)
                things.append(wall.box(u, half_u, v - half_v, v + half_v, dice.between(0.015, 0.05), picture))
    return things


def _pilasters(dice: Dice, wall: _Wall, face: Material) -> list[Thing]:
    material = plain_material(dice, 0.4, 0.9, 0.6)
    if dice.chance(0.5):
        material = material._replace(palette=(near(dice, face.palette[0], 0.3), face.palette[0], face.palette[2]))
    count, wide, depth = 2 + dice.below(2), dice.between(0.08, 0.22), dice.between(0.03, 0.09)
    gap = (wall.high - wall.low) / count
    return [
        wall.box(wall.low + (i + 0.5) * gap, min(wide, gap / 3), 0.0, wall.top, depth, material) for i in range(count)
    ]


def _window(dice: Dice, wall: _Wall, u: float) -> list[Thing]:
    half_u, bottom = dice.between(0.4, 0.8), dice.between(0.7, 1.0)
    top = min(wall.top - 0.15, bottom + dice.between(0.9, 1.3))
    glass = plain_material(dice, 0.75, 1.0, 0.15)
    frame = plain_material(dice, 0.4, 0.95, 1.0)
    return [
        wall.box(u, half_u + 0.06, bottom - 0.06, top + 0.06, 0.03, frame),
        wall.box(u, half_u, bottom, top, 0.035, glass),
        wall.box(u, 0.025, bottom, top, 0.05, frame),
    ]


def furniture(dice: Dice, space: Space, room: Thing) -> list[Thing]:
    """Stand furniture against the walls and on the floor where there is space."""
    things: list[Thing] = []
    for wall in _walls(room):
        if dice.chance(0.6):
            things += _at_wall(dice, space, wall)
    for _ in range(2 + dice.below(3)):
        made = side_table(dice) if dice.chance(0.25) else dice.pick(FREE_STANDING)(dice)
        half = extent(made)
        place = space.find(dice, half)
        if place is not None:
            x, z, yaw = place
            things += turned(made, x, z, yaw)
    return things


def _at_wall(dice: Dice, space: Space, wall: _Wall) -> list[Thing]:
    made = dice.pick(AT_WALLS)(dice)
    half = extent(made)
    yaw = {(0, 1.0): math.pi / 2, (0, -1.0): -math.pi / 2, (2, 1.0): 0.0, (2, -1.0): math.pi}[wall.axis, wall.inward]
    for _ in range(3):
        if wall.high - wall.low < 2 * diagonal(half):
            break
        u = dice.between(wall.low + half[0] + 0.05, wall.high - half[0] - 0.05)
        away = wall.place + wall.inward * (half[2] + 0.1)
        x, z = (away, u) if wall.axis == 0 else (u, away)
        if space.take(half, x, z, yaw):
            return turned(made, x, z, yaw)
    return []
