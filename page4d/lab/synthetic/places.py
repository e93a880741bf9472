"""Random places: rooms, large halls, outdoor surroundings, and tables with small objects."""

import math
from itertools import pairwise
from typing import NamedTuple

from page4d.lab.synthetic.furniture import (
    AT_WALLS,
    FREE_STANDING,
    FloorPlan,
    box,
    boxes,
    diagonal,
    extent,
    placed,
    side_table,
    table,
    tree,
)
from page4d.lab.synthetic.materials import (
    Material,
    Pattern,
    color,
    floor_material,
    near,
    object_material,
    plain_material,
    skin_material,
    wall_material,
)
from page4d.lab.synthetic.people import Activity, circling_box, flying, rolling_ball, sample_person, spinning
from page4d.lab.synthetic.rigs import CaptureVolume, RigSpec, Rng, Vector
from page4d.lab.synthetic.world import ZERO, LightSpec, MotionSpec, ObjectSpec, Person, Shape

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
        objects += _standing(rng, floor_plan, made, None, tries=10)
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


def fittings(rng: Rng, floor_plan: FloorPlan, hall: ObjectSpec, rig: RigSpec) -> list[ObjectSpec]:
    """Draw what stands in a hall and hangs from its ceiling, clear of cameras and of their view of the volume."""
    height = 2 * hall.half[1]
    near = rig.volume.radius + 0.4
    objects = _under_the_ceiling(rng, hall, max(-camera.center[1] + camera.clearance for camera in rig.cameras))
    if rng.chance(0.7):
        objects += _camera_mounts(rng, rig, height - 0.1)
    for _ in range(rng.integer(4)):
        objects += _standing(
            rng, floor_plan, _post(rng, min(height - 0.1, rng.uniform(1.4, 3.5))), (near, near + 2.5)
        )
    for _ in range(rng.integer(4)):
        thick = rng.uniform(0.1, 0.35)
        column = [box((-thick, 0, -thick), (thick, height, thick), plain_material(rng, 0.3, 0.9, 0.6))]
        objects += _standing(rng, floor_plan, column, (near + 1.0, near + 9.0))
    for _ in range(2 + rng.integer(4)):
        made = side_table(rng) if rng.chance(0.3) else rng.choice((*FREE_STANDING, *AT_WALLS))(rng)
        objects += _standing(rng, floor_plan, made, (near, near + 7.0))
    return objects


def _camera_mounts(rng: Rng, rig: RigSpec, highest: float) -> list[ObjectSpec]:
    """Draw what carries the cameras behind them, which the others see: posts with housings, and bars between them.

    Cameras that sway, or look down too steeply for a post behind them, have none.
    """
    metal, housing = plain_material(rng, 0.04, 0.8, 1.0), plain_material(rng, 0.04, 0.85, 1.0)
    thick, behind, rise = rng.uniform(0.012, 0.04), rng.uniform(0.3, 0.45), rng.uniform(0.0, 0.8)
    objects: list[ObjectSpec] = []
    feet: list[tuple[float, float]] = []
    for camera in rig.cameras:
        x, y, z = (center - aim for center, aim in zip(camera.center, rig.volume.center, strict=True))
        level, height = math.hypot(x, z), -camera.center[1]
        if math.hypot(*camera.sway) > 0 or level < abs(y):
            continue
        foot = (camera.center[0] + behind * x / level, camera.center[2] + behind * z / level)
        objects.append(_upright(foot, 0.0, min(height + rise, highest), thick, metal))
        objects.append(_upright(foot, height - 0.05, height + 0.05, rng.uniform(0.04, 0.08), housing))
        feet.append(foot)
    if rng.chance(0.4):
        top = min(max(-camera.center[1] for camera in rig.cameras) + rise, highest)
        objects += [_bar(one, other, top, thick, metal) for one, other in pairwise(feet)]
    return objects


def _upright(foot: tuple[float, float], low: float, high: float, thick: float, material: Material) -> ObjectSpec:
    """Make an upright box between two heights."""
    x, z = foot
    return box((x - thick, low, z - thick), (x + thick, high, z + thick), material)


def _bar(
    one: tuple[float, float], other: tuple[float, float], height: float, thick: float, material: Material
) -> ObjectSpec:
    """Make a horizontal bar between two posts."""
    (a, b), (c, d) = one, other
    half = math.hypot(c - a, d - b) / 2
    made = box((-half, height - thick, -thick), (half, height + thick, thick), material)
    center = ((a + c) / 2, made.center[1], (b + d) / 2)
    return made._replace(center=center, rotation=(0.0, math.atan2(b - d, c - a), 0.0))


def _standing(
    rng: Rng, floor_plan: FloorPlan, made: list[ObjectSpec], reach: tuple[float, float] | None, tries: int = 6
) -> list[ObjectSpec]:
    """Place an object on the free floor, if there is room."""
    place = floor_plan.find(rng, extent(made), tries=tries, reach=reach)
    return [] if place is None else placed(made, *place)


def _post(rng: Rng, tall: float) -> list[ObjectSpec]:
    """Make a post, with or without a lamp, a camera or a bar at its top."""
    metal, thick = plain_material(rng, 0.05, 0.8, 1.0), rng.uniform(0.015, 0.04)
    objects = [box((-thick, 0, -thick), (thick, tall, thick), metal)]
    kind = rng.integer(3)
    if kind == 0:
        objects.append(box((-0.12, tall - 0.16, -0.08), (0.12, tall, 0.08), plain_material(rng, 0.05, 0.9, 1.0)))
    elif kind == 1:
        reach = rng.uniform(0.3, 0.9)
        objects.append(box((-reach, tall - 2 * thick, -thick), (reach, tall, thick), metal))
    return objects


def _under_the_ceiling(rng: Rng, hall: ObjectSpec, free_below: float) -> list[ObjectSpec]:
    """Draw parallel beams and a duct between the ceiling and the height in metres that cameras need."""
    height, room = 2 * hall.half[1], 2 * hall.half[1] - free_below
    objects: list[ObjectSpec] = []
    along = rng.integer(2)
    wide, length = hall.half[2 - 2 * along], hall.half[2 * along]
    middle = (hall.center[0], hall.center[2])
    if rng.chance(0.6):
        material, deep = plain_material(rng, 0.3, 0.95, 0.8), min(rng.uniform(0.1, 0.5), 0.5 * room)
        count = 2 + rng.integer(4)
        for index in range(count):
            across = middle[1 - along] + wide * ((2 * index + 1) / count - 1)
            low, high = [across - 0.1, middle[along] - length], [across + 0.1, middle[along] + length]
            if along == 0:
                low.reverse()
                high.reverse()
            objects.append(box((low[0], height - deep, low[1]), (high[0], height, high[1]), material))
    radius = min(rng.uniform(0.1, 0.4), 0.25 * room)
    if rng.chance(0.4) and length > 2 * radius:
        across = middle[1 - along] + wide * rng.uniform(-0.7, 0.7)
        place = (middle[0], across) if along == 0 else (across, middle[1])
        lying = (0.0, 0.0, math.pi / 2) if along == 0 else (math.pi / 2, 0.0, 0.0)
        half = (radius, length, radius)
        center = (place[0], -(height - 1.2 * radius), place[1])
        objects.append(ObjectSpec(Shape.CAPSULE, half, center, plain_material(rng, 0.4, 0.95, 0.4), lying))
    return objects


SUN_DISTANCE = 150.0


def ground(rng: Rng) -> ObjectSpec:
    """Draw ground of grass, sand, asphalt or paving."""
    kind = rng.integer(4)
    material = plain_material(rng, 0.25, 0.65, 0.12)._replace(strength=0.12, fine=0.2)
    gray = sum(material.palette[0]) / 3  # half of the saturation
    first, second, third = ((0.5 * (gray + r), 0.5 * (gray + g), 0.5 * (gray + b)) for r, g, b in material.palette)
    material = material._replace(palette=(first, second, third))
    if kind == 0:
        tone = rng.uniform(0.08, 0.25)
        palette = ((tone * 0.8, tone, tone * 0.4), (tone * 0.9, tone * 0.8, tone * 0.4), material.palette[2])
        material = material._replace(palette=palette)
    elif kind == 1:
        cells, base = rng.uniform(0.8, 3.0), color(rng, 0.3, 0.7, 0.3)
        frame = ((cells, 0.0, 0.0), (0.0, 0.0, cells * rng.uniform(0.5, 1.0)), (0.0, 0.0, 0.0))
        palette = (base, near(rng, base, 0.4), near(rng, base, 0.8))
        material = Material(Pattern.CELLS, palette, frame, (0.15,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.02)
    return ObjectSpec(Shape.GROUND, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), material)


def sunlight(rng: Rng) -> LightSpec:
    """Draw a sun at 15 to 70 degrees of elevation, or an overcast sky."""
    cloudy = rng.chance(0.3)
    height, angle = math.radians(rng.uniform(15, 70)), rng.angle()
    level = SUN_DISTANCE * math.cos(height)
    power = rng.uniform(0.15, 0.4) if cloudy else rng.uniform(1.0, 1.7)
    ambient = rng.uniform(0.6, 0.9) if cloudy else rng.uniform(0.3, 0.5)
    warm = rng.uniform(0.0, 0.12)
    zenith: Vector = (0.55, 0.6, 0.66) if cloudy else (0.16, 0.32, 0.62)
    horizon: Vector = (0.75, 0.76, 0.78) if cloudy else (0.55, 0.68, 0.85)
    bright = rng.uniform(0.8, 1.25)
    return LightSpec(
        position=(level * math.cos(angle), -SUN_DISTANCE * math.sin(height), level * math.sin(angle)),
        reach=1e6,
        color=(power, power * (1 - warm), power * (1 - 2 * warm)),
        ambient=(ambient * 0.92, ambient * 0.97, ambient * 1.05),
        fill=(0.05, 0.05, 0.05),
        fill_direction=(-math.cos(angle), 0.0, -math.sin(angle)),
        sky=tuple(tuple(part * bright for part in one) for one in (zenith, horizon, (0.95, 0.95, 0.97))),  # type: ignore[arg-type]
    )


def surroundings(rng: Rng, floor_plan: FloorPlan, rig: RigSpec) -> list[ObjectSpec]:
    """Draw objects near the volume, behind the cameras, and hills at the horizon."""
    widest = max(math.hypot(camera.center[0], camera.center[2]) + camera.clearance for camera in rig.cameras)
    objects: list[ObjectSpec] = []
    for _ in range(3 + rng.integer(4)):
        made = rng.choice((boxes, _rock, _wall, tree, _bench))(rng)
        objects += _standing(rng, floor_plan, made, (rig.volume.radius + 0.5, widest + 4), tries=8)
    for _ in range(4 + rng.integer(4)):
        made = rng.choice((_house, _house, tree, tree, _wall))(rng)
        beyond = widest + diagonal(extent(made))
        objects += _standing(rng, floor_plan, made, (beyond + 1.0, beyond + 18), tries=8)
    for _ in range(rng.integer(4)):
        wide, high, angle = rng.uniform(8, 22), rng.uniform(2, 8), rng.angle()
        away = rng.uniform(35, 48)
        center = (away * math.cos(angle), 0.0, away * math.sin(angle))
        hill = plain_material(rng, 0.2, 0.5, 0.03)._replace(fine=0.2)
        objects.append(ObjectSpec(Shape.ELLIPSOID, (wide, high, wide), center, hill))
    return objects


def _house(rng: Rng) -> list[ObjectSpec]:
    wide, deep, tall = rng.uniform(1.5, 5), rng.uniform(1.5, 4), rng.uniform(2.5, 9)
    wall = color(rng, 0.4, 0.85)
    window = color(rng, 0.1, 0.4)
    rows = ((rng.uniform(0.25, 0.5), 0.0, rng.uniform(0.1, 0.2)), (0.0, rng.uniform(0.3, 0.45), 0.0), (0.0,) * 3)
    panes = Material(
        Pattern.CELLS, (window, window, wall), rows, (0.2,) * 3, 0.12, 0.1, joint_m=rng.uniform(1.0, 1.8)
    )
    front = panes if rng.chance(0.6) else object_material(rng, 3.0)
    roof = plain_material(rng, 0.15, 0.6, 0.5)
    return [
        box((-wide, 0, -deep), (wide, tall, deep), front),
        box((-wide - 0.2, tall, -deep - 0.2), (wide + 0.2, tall + 0.25, deep + 0.2), roof),
    ]


def _wall(rng: Rng) -> list[ObjectSpec]:
    wide, tall = rng.uniform(0.8, 3.5), rng.uniform(0.5, 1.8)
    return [box((-wide, 0, -0.12), (wide, tall, 0.12), object_material(rng, 1.5))]


def _bench(rng: Rng) -> list[ObjectSpec]:
    wood = object_material(rng, 1.0)
    return [
        box((-0.75, 0.4, -0.2), (0.75, 0.46, 0.2), wood),
        box((-0.6, 0, -0.15), (-0.5, 0.4, 0.15), wood),
        box((0.5, 0, -0.15), (0.6, 0.4, 0.15), wood),
    ]


def _rock(rng: Rng) -> list[ObjectSpec]:
    size = rng.log_uniform(0.15, 0.8)
    half = (size, size * rng.uniform(0.4, 0.9), size * rng.uniform(0.6, 1.0))
    material = plain_material(rng, 0.2, 0.6, 0.8)._replace(strength=0.2, fine=0.2)
    return [ObjectSpec(Shape.ELLIPSOID, half, (0.0, -half[1] * 0.6, 0.0), material, (0.0, rng.angle(), 0.0))]


def table_scene(rng: Rng, floor_plan: FloorPlan, volume: CaptureVolume) -> tuple[list[ObjectSpec], list[Person]]:
    """Draw a table with objects, in half of the cases a hand that moves one, or a person behind the table."""
    half_x, half_z = (volume.radius + rng.uniform(0.02, 0.35) for _ in range(2))
    yaw = rng.angle()
    objects = placed(table(half_x, half_z, volume.table_height, rng), 0.0, 0.0, yaw)
    objects += _laid(rng, volume)
    if rng.chance(0.55):
        objects += _hand(rng, volume)
    if rng.chance(0.15):
        size = rng.uniform(0.03, 0.07)
        objects.append(flying(rng, size, 0.15, volume.table_height + rng.uniform(0.3, 0.45)))
    people = []
    if rng.chance(0.5):
        angle = rng.angle()
        away = math.hypot(half_x, half_z) + 0.2
        x, z = away * math.cos(angle), away * math.sin(angle)
        if floor_plan.occupy((0.3, 0.95, 0.3), x, z, 0.0):
            activity = rng.choice((Activity.WORKING, Activity.WORKING, Activity.STANDING, Activity.WAVING))
            people.append(sample_person(rng, activity, (x, z), 0.0, angle + math.pi))
    return objects, people


def _laid(rng: Rng, volume: CaptureVolume) -> list[ObjectSpec]:
    """Draw a ring of objects on the table, with or without one in the middle."""
    count = 3 + rng.integer(5)
    places = [
        (volume.radius * rng.uniform(0.5, 0.75), math.tau * i / count + rng.uniform(-0.15, 0.15))
        for i in range(count)
    ]
    if rng.chance(0.6):
        places.append((0.0, 0.0))
    first, free = rng.angle(), 0.62 * volume.radius * math.sin(math.pi / count)
    objects = []
    for away, angle in places:
        x, z = away * math.cos(first + angle), away * math.sin(first + angle)
        room = min(free, 0.13) if away else min(0.13, 0.2 * volume.radius)
        objects += [
            item._replace(center=(item.center[0] + x, item.center[1], item.center[2] + z))
            for item in _small(rng, room, volume.table_height)
        ]
    return objects


def _small(rng: Rng, room: float, floor: float) -> list[ObjectSpec]:
    """Make an object within `room` metres of the origin, on a table `floor` metres high."""
    kind, size = rng.integer(8), room * rng.uniform(0.6, 0.95)
    if kind == 0:
        return [rolling_ball(rng, size * 0.45, room, floor)]
    if kind == 1:
        return [circling_box(rng, size * 0.4, room, floor)]
    material = object_material(rng, 2 * size)
    yaw: Vector = (0.0, rng.angle(), 0.0)
    if kind <= 4:
        half = (size * 0.65, size * rng.uniform(0.3, 1.6), size * rng.uniform(0.25, 0.7))
        item = ObjectSpec(Shape.BOX, half, (0.0, -half[1] - floor, 0.0), material, yaw)
        return [spinning(rng, item) if rng.chance(0.35) else item]
    if kind == 5:
        return [ObjectSpec(Shape.ELLIPSOID, (size * 0.9,) * 3, (0.0, -size * 0.9 - floor, 0.0), material)]
    tall = size * rng.uniform(0.9, 1.8)
    can = ObjectSpec(Shape.CAPSULE, (size * 0.55, tall, size * 0.55), (0.0, -tall - floor, 0.0), material)
    if kind == 6:
        return [spinning(rng, can) if rng.chance(0.2) else can]
    # A bottle, with a thinner capsule as its neck.
    neck = ObjectSpec(Shape.CAPSULE, (size * 0.2, tall * 0.5, size * 0.2), (0.0, -2.2 * tall - floor, 0.0), material)
    return [can, neck]


def _hand(rng: Rng, volume: CaptureVolume) -> list[ObjectSpec]:
    """Draw a forearm, a hand and an object that it carries; all three share one motion."""
    angle = rng.angle()
    hold = 0.3 * volume.radius
    height = volume.table_height + rng.uniform(0.16, 0.32)
    swing: Vector = (rng.uniform(0.03, 0.5) * volume.radius, rng.uniform(-0.06, 0.06), 0.0)
    other: Vector = (0.0, rng.uniform(-0.05, 0.05), rng.uniform(0.03, 0.4) * volume.radius)
    motion = MotionSpec(
        swing=(swing, other),
        swing_hz=(rng.uniform(0.15, 0.5), rng.uniform(0.15, 0.5)),
        swing_phase=(rng.angle(), rng.angle()),
    )
    tone = rng.uniform(0.15, 0.6)
    skin = skin_material(rng, (tone, tone * 0.64, tone * 0.46))
    sleeve = plain_material(rng, 0.1, 0.8, 1.5) if rng.chance(0.6) else skin
    out = (math.cos(angle), math.sin(angle))
    # Capsules lie along y: rotate the forearm towards `out`, its far end slightly raised.
    lay = (1.35 * out[1], 0.0, -1.35 * out[0])
    rise = math.cos(1.35) * 0.17
    forearm = (hold * out[0] + 0.2 * out[0], -height - rise, hold * out[1] + 0.2 * out[1])
    hand = (hold * out[0], -height, hold * out[1])
    size = rng.uniform(0.03, 0.07)
    item = (hold * out[0] - 0.06 * out[0], -height + 0.02, hold * out[1] - 0.06 * out[1])
    half = (size * 0.7, size * rng.uniform(0.7, 1.6), size * 0.7)
    shape = rng.choice((Shape.BOX, Shape.CAPSULE))
    return [
        ObjectSpec(Shape.CAPSULE, (0.036, 0.18, 0.036), forearm, sleeve, lay, motion),
        ObjectSpec(Shape.ELLIPSOID, (0.05, 0.035, 0.05), hand, skin, (0.0, -angle, 0.0), motion),
        ObjectSpec(
            shape,
            half if shape is Shape.BOX else (half[0], max(half[1], half[0]), half[2]),
            item,
            object_material(rng, 2 * size),
            motion=motion,
        ),
    ]
