"""Random rooms: walls around the cameras with relief and pictures, furniture, a ceiling lamp."""

import math
from typing import NamedTuple

from page4d.synthetic.camera_rigs import RigSpec
from page4d.synthetic.furniture import AT_WALLS, FREE_STANDING, diagonal, extent, side_table
from page4d.synthetic.materials import Material, floor_material, near, object_material, plain_material, wall_material
from page4d.synthetic.placement import FloorPlan, placed
from page4d.synthetic.rng import Rng
from page4d.synthetic.world import Shape
from page4d.synthetic.world_spec import ZERO, LightSpec, ObjectSpec

WALL_GAP = 0.1
"""Minimum distance in metres between the clearance of a camera and a wall; wall relief is thinner."""


_ROOM_GAP, _HALL_GAP = (0.1, 2.0), (1.0, 14.0)
"""Distances in metres between the cameras and the walls of rooms and halls, beyond the minimum."""

_ROOM_RISE, _HALL_RISE = (0.1, 0.8), (0.3, 4.0)
"""Distances in metres from the cameras, or from people, to the ceiling."""


def room_around(rng: Rng, rig: RigSpec) -> ObjectSpec:
    """Draw a room or a hall that encloses the volume and every camera; its own material is never visible."""
    gap, rise = (_HALL_GAP, _HALL_RISE) if rig.is_in_hall else (_ROOM_GAP, _ROOM_RISE)
    reach = rig.volume.radius + 0.6
    low, high, top = [-reach, -reach], [reach, reach], 2.25
    for camera in rig.cameras:
        for side, axis in ((0, 0), (1, 2)):
            low[side] = min(low[side], camera.center[axis] - camera.clearance)
            high[side] = max(high[side], camera.center[axis] + camera.clearance)
        top = max(top, camera.clearance - camera.center[1])
    low = [value - WALL_GAP - rng.log_uniform(*gap) for value in low]
    high = [value + WALL_GAP + rng.log_uniform(*gap) for value in high]
    top += rng.uniform(*rise)
    half = ((high[0] - low[0]) / 2, top / 2, (high[1] - low[1]) / 2)
    center = ((high[0] + low[0]) / 2, -top / 2, (high[1] + low[1]) / 2)
    return ObjectSpec(Shape.ROOM, half, center, plain_material(rng))


def room_faces(rng: Rng) -> tuple[Material, ...]:
    """Draw materials for the walls at -x and +x, ceiling, floor, and the walls at -z and +z."""
    floor, ceiling = floor_material(rng), plain_material(rng, 0.7, 0.95, 0.2)
    sides = [wall_material(rng, 0), wall_material(rng, 2)]
    uniform = rng.chance(0.4)
    others = sides if uniform else [wall_material(rng, 0), wall_material(rng, 2)]
    return (sides[0], others[0], ceiling, floor, sides[1], others[1])


def room_light(rng: Rng, room: ObjectSpec) -> LightSpec:
    """Draw a lamp below the ceiling."""
    place = [c + rng.uniform(-0.7, 0.7) * h for c, h in zip(room.center, room.half, strict=True)]
    warm = rng.uniform(-0.05, 0.16)
    power, ambient = rng.uniform(0.5, 1.4), rng.uniform(0.28, 0.5)
    fill = rng.uniform(0.0, 0.35)
    x, y, z = rng.direction()
    return LightSpec(
        position=(place[0], -2 * room.half[1] + rng.uniform(0.15, 0.6), place[2]),
        reach=max(3.0, 1.2 * max(room.half)),
        color=(power, power * (1 - warm), power * (1 - 2 * warm)),
        ambient=(ambient * (1 - 0.5 * warm), ambient, ambient * (1 + 0.5 * warm)),
        fill=(fill, fill, fill),
        fill_direction=(x, abs(y) * 0.5, z),
        sky=(ZERO, ZERO, ZERO),
    )


class _Wall(NamedTuple):
    """Wall with its inner side at `place` on `axis`, facing `inward`, from `low` to `high` along the other axis."""

    axis: int
    place: float
    inward: float
    low: float
    high: float
    top: float

    def box(self, u: float, half_u: float, bottom: float, top: float, depth: float, material: Material) -> ObjectSpec:
        """Return a box mounted on the wall."""
        half, center = [depth / 2, (top - bottom) / 2, half_u], [0.0, -(top + bottom) / 2, 0.0]
        if self.axis == 2:
            half.reverse()
        center[self.axis] = self.place + self.inward * depth / 2
        center[2 - self.axis] = u
        return ObjectSpec(Shape.BOX, tuple(half), tuple(center), material)  # type: ignore[arg-type]


def _walls(room: ObjectSpec) -> list[_Wall]:
    (x, _, z), (half_x, half_y, half_z) = room.center, room.half
    return [
        _Wall(0, x - half_x, 1.0, z - half_z, z + half_z, 2 * half_y),
        _Wall(0, x + half_x, -1.0, z - half_z, z + half_z, 2 * half_y),
        _Wall(2, z - half_z, 1.0, x - half_x, x + half_x, 2 * half_y),
        _Wall(2, z + half_z, -1.0, x - half_x, x + half_x, 2 * half_y),
    ]


def wall_relief(rng: Rng, room: ObjectSpec, faces: tuple[Material, ...]) -> list[ObjectSpec]:
    """Draw pilasters, a door, a window, pictures or nothing for every wall; all relief protrudes from the wall."""
    objects: list[ObjectSpec] = []
    skirting = plain_material(rng, 0.2, 0.9, 1.0) if rng.chance(0.5) else None
    for wall, face in zip(_walls(room), (faces[0], faces[1], faces[4], faces[5]), strict=True):
        length = (wall.high - wall.low) / 2
        middle = (wall.high + wall.low) / 2
        if skirting is not None:
            objects.append(wall.box(middle, length, 0.0, 0.1, 0.015, skirting))
        kind = rng.integer(6)
        if kind == 0:
            objects += _pilasters(rng, wall, face)
        elif kind == 1:
            u = middle + rng.uniform(-0.6, 0.6) * length
            objects.append(wall.box(u, 0.47, 0.0, 2.08, 0.03, plain_material(rng, 0.3, 0.9, 1.0)))
            objects.append(wall.box(u, 0.4, 0.02, 2.0, 0.06, plain_material(rng, 0.2, 0.85, 1.0)))
        elif kind == 2:
            objects += _window(rng, wall, middle + rng.uniform(-0.5, 0.5) * length)
        elif kind <= 4:
            for _ in range(1 + rng.integer(2)):
                half_u, half_v = rng.uniform(0.15, 0.55), rng.uniform(0.15, 0.4)
                u, v = middle + rng.uniform(-0.7, 0.7) * length, rng.uniform(1.2, 1.6)
                picture = object_material(rng, 2 * half_u)
                objects.append(wall.box(u, half_u, v - half_v, v + half_v, rng.uniform(0.015, 0.05), picture))
    return objects


def _pilasters(rng: Rng, wall: _Wall, face: Material) -> list[ObjectSpec]:
    material = plain_material(rng, 0.4, 0.9, 0.6)
    if rng.chance(0.5):
        material = material._replace(palette=(near(rng, face.palette[0], 0.3), face.palette[0], face.palette[2]))
    count, wide, depth = 2 + rng.integer(2), rng.uniform(0.08, 0.22), rng.uniform(0.03, 0.09)
    gap = (wall.high - wall.low) / count
    return [
        wall.box(wall.low + (i + 0.5) * gap, min(wide, gap / 3), 0.0, wall.top, depth, material) for i in range(count)
    ]


def _window(rng: Rng, wall: _Wall, u: float) -> list[ObjectSpec]:
    half_u, bottom = rng.uniform(0.4, 0.8), rng.uniform(0.7, 1.0)
    top = min(wall.top - 0.15, bottom + rng.uniform(0.9, 1.3))
    glass = plain_material(rng, 0.75, 1.0, 0.15)
    frame = plain_material(rng, 0.4, 0.95, 1.0)
    return [
        wall.box(u, half_u + 0.06, bottom - 0.06, top + 0.06, 0.03, frame),
        wall.box(u, half_u, bottom, top, 0.035, glass),
        wall.box(u, 0.025, bottom, top, 0.05, frame),
    ]


def furniture(rng: Rng, floor_plan: FloorPlan, room: ObjectSpec) -> list[ObjectSpec]:
    """Draw furniture along the walls and on the free floor."""
    objects: list[ObjectSpec] = []
    for wall in _walls(room):
        if rng.chance(0.6):
            objects += _at_wall(rng, floor_plan, wall)
    for _ in range(2 + rng.integer(3)):
        made = side_table(rng) if rng.chance(0.25) else rng.choice(FREE_STANDING)(rng)
        half = extent(made)
        place = floor_plan.find(rng, half)
        if place is not None:
            x, z, yaw = place
            objects += placed(made, x, z, yaw)
    return objects


def _at_wall(rng: Rng, floor_plan: FloorPlan, wall: _Wall) -> list[ObjectSpec]:
    made = rng.choice(AT_WALLS)(rng)
    half = extent(made)
    yaw = {(0, 1.0): math.pi / 2, (0, -1.0): -math.pi / 2, (2, 1.0): 0.0, (2, -1.0): math.pi}[wall.axis, wall.inward]
    for _ in range(3):
        if wall.high - wall.low < 2 * diagonal(half):
            break
        u = rng.uniform(wall.low + half[0] + 0.05, wall.high - half[0] - 0.05)
        away = wall.place + wall.inward * (half[2] + 0.1)
        x, z = (away, u) if wall.axis == 0 else (u, away)
        if floor_plan.occupy(half, x, z, yaw):
            return placed(made, x, z, yaw)
    return []
