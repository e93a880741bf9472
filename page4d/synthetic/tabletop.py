"""A table with small things on it, some moving, some in a hand, and perhaps a person behind it."""

import math

from page4d.synthetic.blueprint import Path, Person, Thing
from page4d.synthetic.camera_rigs import Stage
from page4d.synthetic.furniture import table
from page4d.synthetic.materials import Material, near, object_material, plain_material
from page4d.synthetic.movers import circling_box, flying, rolling_ball, turning
from page4d.synthetic.people import Doing, sample_person
from page4d.synthetic.place import Space, turned
from page4d.synthetic.rng import Dice, Vector
from page4d.synthetic.texture import Pattern
from page4d.synthetic.world import Shape


def table_scene(dice: Dice, space: Space, stage: Stage) -> tuple[list[Thing], list[Person]]:
    """Lay a table: things around the middle, a hand that carries one, rarely somebody who watches."""
    half_x, half_z = (stage.radius + dice.between(0.02, 0.35) for _ in range(2))
    yaw = dice.angle()
    things = turned(table(half_x, half_z, stage.table_height, dice), 0.0, 0.0, yaw)
    things += _laid(dice, stage)
    if dice.chance(0.55):
        things += _hand(dice, stage)
    if dice.chance(0.15):
        size = dice.between(0.03, 0.07)
        things.append(flying(dice, size, 0.15, stage.table_height + dice.between(0.3, 0.45)))
    people = []
    if dice.chance(0.5):
        angle = dice.angle()
        away = math.hypot(half_x, half_z) + 0.2
        x, z = away * math.cos(angle), away * math.sin(angle)
        if space.take((0.3, 0.95, 0.3), x, z, 0.0):
            doing = dice.pick((Doing.WORKING, Doing.WORKING, Doing.STANDING, Doing.WAVING))
            people.append(sample_person(dice, doing, (x, z), 0.0, angle + math.pi))
    return things, people


def _laid(dice: Dice, stage: Stage) -> list[Thing]:
    """Put things on the table in a ring, with one in the middle or none."""
    count = 3 + dice.below(5)
    places = [
        (stage.radius * dice.between(0.5, 0.75), math.tau * i / count + dice.between(-0.15, 0.15))
        for i in range(count)
    ]
    if dice.chance(0.6):
        places.append((0.0, 0.0))
    first, free = dice.angle(), 0.62 * stage.radius * math.sin(math.pi / count)
    things = []
    for away, angle in places:
        x, z = away * math.cos(first + angle), away * math.sin(first + angle)
        room = min(free, 0.13) if away else min(0.13, 0.2 * stage.radius)
        things += [
            thing._replace(center=(thing.center[0] + x, thing.center[1], thing.center[2] + z))
            for thing in _small(dice, room, stage.table_height)
        ]
    return things


def _small(dice: Dice, room: float, floor: float) -> list[Thing]:
    """Make something within `room` metres of the origin, on a table `floor` metres high."""
    kind, size = dice.below(8), room * dice.between(0.6, 0.95)
    if kind == 0:
        return [rolling_ball(dice, size * 0.45, room, floor)]
    if kind == 1:
        return [circling_box(dice, size * 0.4, room, floor)]
    material = object_material(dice, 2 * size)
    yaw: Vector = (0.0, dice.angle(), 0.0)
    if kind <= 4:
        half = (size * 0.65, size * dice.between(0.3, 1.6), size * dice.between(0.25, 0.7))
        thing = Thing(Shape.BOX, half, (0.0, -half[1] - floor, 0.0), material, yaw)
        return [turning(dice, thing) if dice.chance(0.35) else thing]
    if kind == 5:
        return [Thing(Shape.ELLIPSOID, (size * 0.9,) * 3, (0.0, -size * 0.9 - floor, 0.0), material)]
    tall = size * dice.between(0.9, 1.8)
    can = Thing(Shape.CAPSULE, (size * 0.55, tall, size * 0.55), (0.0, -tall - floor, 0.0), material)
    if kind == 6:
        return [turning(dice, can) if dice.chance(0.2) else can]
    # A bottle: its neck is a thinner capsule.
    neck = Thing(Shape.CAPSULE, (size * 0.2, tall * 0.5, size * 0.2), (0.0, -2.2 * tall - floor, 0.0), material)
    return [can, neck]


def _hand(dice: Dice, stage: Stage) -> list[Thing]:
    """Let a forearm reach over the table and carry something about; all three move as one."""
    angle = dice.angle()
    hold = 0.3 * stage.radius
    height = stage.table_height + dice.between(0.16, 0.32)
    swing: Vector = (dice.between(0.03, 0.5) * stage.radius, dice.between(-0.06, 0.06), 0.0)
    other: Vector = (0.0, dice.between(-0.05, 0.05), dice.between(0.03, 0.4) * stage.radius)
    path = Path(
        swing=(swing, other),
        swing_hz=(dice.between(0.15, 0.5), dice.between(0.15, 0.5)),
        swing_phase=(dice.angle(), dice.angle()),
    )
    tone = dice.between(0.15, 0.6)
    tint = (tone, tone * 0.64, tone * 0.46)
    skin = Material(
        Pattern.PLAIN, (tint, near(dice, tint, 0.12), tint), ((1.0, 0.0, 0.0),) * 3, (2.0,) * 3, 0.05, 0.03
    )
    sleeve = plain_material(dice, 0.1, 0.8, 1.5) if dice.chance(0.6) else skin
    out = (math.cos(angle), math.sin(angle))
    # A capsule lies along y: lay it down towards `out`, its far end a little higher.
    lay = (1.35 * out[1], 0.0, -1.35 * out[0])
    rise = math.cos(1.35) * 0.17
    forearm = (hold * out[0] + 0.2 * out[0], -height - rise, hold * out[1] + 0.2 * out[1])
    hand = (hold * out[0], -height, hold * out[1])
    size = dice.between(0.03, 0.07)
    thing = (hold * out[0] - 0.06 * out[0], -height + 0.02, hold * out[1] - 0.06 * out[1])
    half = (size * 0.7, size * dice.between(0.7, 1.6), size * 0.7)
    shape = dice.pick((Shape.BOX, Shape.CAPSULE))
    return [
        Thing(Shape.CAPSULE, (0.036, 0.18, 0.036), forearm, sleeve, lay, path),
        Thing(Shape.ELLIPSOID, (0.05, 0.035, 0.05), hand, skin, (0.0, -angle, 0.0), path),
        Thing(
            shape,
            half if shape is Shape.BOX else (half[0], max(half[1], half[0]), half[2]),
            thing,
            object_material(dice, 2 * size),
            path=path,
        ),
    ]
