"""Random tabletop scenes: a table with small objects, some moving or held by a hand, and possibly a person."""

import math

from page4d.synthetic.camera_rigs import CaptureVolume
from page4d.synthetic.furniture import table
from page4d.synthetic.materials import object_material, plain_material, skin_material
from page4d.synthetic.movers import circling_box, flying, rolling_ball, spinning
from page4d.synthetic.people import Activity, sample_person
from page4d.synthetic.placement import FloorPlan, placed
from page4d.synthetic.rng import Rng, Vector
from page4d.synthetic.world import Shape
from page4d.synthetic.world_spec import MotionSpec, ObjectSpec, Person


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
