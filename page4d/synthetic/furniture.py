"""Furniture and other things made of boxes, ellipsoids and capsules, around the origin with the floor at y = 0."""

import math
from collections.abc import Callable, Sequence

from page4d.synthetic.blueprint import Thing
from page4d.synthetic.materials import Material, near, object_material, plain_material
from page4d.synthetic.rng import Dice, Vector
from page4d.synthetic.world import Shape


def box(low: Vector, high: Vector, material: Material) -> Thing:
    """Make a box between two corners; heights count upwards from the floor."""
    half = tuple((b - a) / 2 for a, b in zip(low, high, strict=True))
    center = ((low[0] + high[0]) / 2, -(low[1] + high[1]) / 2, (low[2] + high[2]) / 2)
    return Thing(Shape.BOX, half, center, material)  # type: ignore[arg-type]


def table(half_x: float, half_z: float, height: float, dice: Dice) -> list[Thing]:
    """Make a table on four legs or on a block."""
    material = plain_material(dice, 0.12, 0.8, 0.8) if dice.chance(0.7) else object_material(dice, 1.2)
    thick = dice.between(0.02, 0.05)
    things = [box((-half_x, height - thick, -half_z), (half_x, height, half_z), material)]
    under = height - thick
    if dice.chance(0.35):
        x, z = half_x * dice.between(0.5, 0.97), half_z * dice.between(0.5, 0.97)
        return [*things, box((-x, 0, -z), (x, under, z), plain_material(dice, 0.15, 0.7, 0.8))]
    leg = dice.between(0.02, 0.035)
    for x, z in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        a, b = x * (half_x - 2 * leg), z * (half_z - 2 * leg)
        things.append(box((a - leg, 0, b - leg), (a + leg, under, b + leg), material))
    return things


def chair(dice: Dice) -> list[Thing]:
    """Make a chair: a seat, a back, two sides."""
    material = plain_material(dice, 0.15, 0.75, 1.5)
    seat = dice.between(0.4, 0.48)
    back = dice.between(0.8, 1.05)
    return [
        box((-0.21, seat - 0.05, -0.21), (0.21, seat, 0.21), material),
        box((-0.21, seat + 0.12, -0.21), (0.21, back, -0.17), material),
        box((-0.21, 0, -0.2), (-0.18, seat + 0.12, 0.2), material),
        box((0.18, 0, -0.2), (0.21, seat + 0.12, 0.2), material),
    ]


def sofa(dice: Dice) -> list[Thing]:
    """Make a sofa or an armchair with its back at -z."""
    material = object_material(dice, 1.0) if dice.chance(0.3) else plain_material(dice, 0.15, 0.75, 1.0)
    wide, deep = dice.between(0.42, 1.0), dice.between(0.36, 0.45)
    seat, back, arm = dice.between(0.36, 0.45), dice.between(0.7, 0.9), dice.between(0.5, 0.62)
    return [
        box((-wide, 0.05, -deep), (wide, seat, deep), material),
        box((-wide, seat, -deep), (wide, back, -deep + 0.18), material),
        box((-wide, seat, -deep + 0.18), (-wide + 0.14, arm, deep), material),
        box((wide - 0.14, seat, -deep + 0.18), (wide, arm, deep), material),
    ]


def cupboard(dice: Dice) -> list[Thing]:
    """Make a cupboard with its back at -z, with or without a second door that stands out a little."""
    material = plain_material(dice, 0.25, 0.85, 0.8)
    wide, tall, deep = dice.between(0.3, 0.75), dice.between(0.7, 2.1), dice.between(0.16, 0.3)
    things = [box((-wide, 0, -deep), (wide, tall, deep), material)]
    if dice.chance(0.7):
        front = material._replace(palette=(near(dice, material.palette[0], 0.4),) * 3)
        things.append(box((-wide * 0.92, 0.08, deep), (-0.02, tall - 0.05, deep + 0.02), front))
        things.append(box((0.02, 0.08, deep), (wide * 0.92, tall - 0.05, deep + 0.02), front))
    return things


def shelf(dice: Dice) -> list[Thing]:
    """Make open shelves with their back at -z and rows of books, each row one striped box."""
    material = plain_material(dice, 0.25, 0.8, 0.8)
    wide, tall, deep = dice.between(0.35, 0.7), dice.between(1.0, 2.0), 0.15
    things = [box((side * wide - 0.015, 0, -deep), (side * wide + 0.015, tall, deep), material) for side in (-1, 1)]
    levels = 3 + dice.below(2)
    for level in range(levels):
        y = 0.06 + (tall - 0.08) * level / (levels - 1)
        things.append(box((-wide, y - 0.012, -deep), (wide, y + 0.012, deep), material))
        if level < levels - 1 and dice.chance(0.6):
            end = wide * dice.between(-0.2, 0.95)
            top = y + 0.012 + min(0.75 * (tall - 0.08) / (levels - 1), dice.between(0.15, 0.28))
            things.append(box((-wide + 0.02, y + 0.012, -deep), (end, top, deep * 0.7), object_material(dice, 0.35)))
    return things


def plant(dice: Dice) -> list[Thing]:
    """Make a pot with leaves."""
    pot, tall = dice.between(0.12, 0.2), dice.between(0.5, 1.4)
    green = plain_material(dice, 0.15, 0.5, 2.0)
    red, _, blue = green.palette[0]
    leaves = ((red * 0.7, red, blue * 0.5), (red * 0.35, red * 0.6, blue * 0.3), green.palette[2])
    leaf = green._replace(palette=leaves, strength=0.3, fine=0.3)
    things = [Thing(Shape.CAPSULE, (pot, pot * 1.5, pot), (0.0, -pot * 1.4, 0.0), object_material(dice, 0.3))]
    things.append(Thing(Shape.CAPSULE, (0.025, tall / 2, 0.025), (0.0, -tall / 2, 0.0), green))
    for _ in range(2 + dice.below(2)):
        size = dice.between(0.15, 0.3)
        half = (size, size * dice.between(0.6, 1.2), size)
        center = (dice.between(-0.1, 0.1), -tall - dice.between(-0.15, 0.2), dice.between(-0.1, 0.1))
        things.append(Thing(Shape.ELLIPSOID, half, center, leaf))
    return things


def standard_lamp(dice: Dice) -> list[Thing]:
    """Make a lamp on a long foot, not lit."""
    metal, tall = plain_material(dice, 0.1, 0.7, 2.0), dice.between(1.2, 1.7)
    return [
        Thing(Shape.CAPSULE, (0.02, tall / 2, 0.02), (0.0, -tall / 2, 0.0), metal),
        Thing(Shape.ELLIPSOID, (0.16, 0.02, 0.16), (0.0, -0.02, 0.0), metal),
        Thing(Shape.ELLIPSOID, (0.18, 0.14, 0.18), (0.0, -tall, 0.0), plain_material(dice, 0.6, 0.9, 1.0)),
    ]


def boxes(dice: Dice) -> list[Thing]:
    """Pile up one to three boxes."""
    things, top = [], 0.0
    size = dice.log_between(0.15, 0.5)
    for _ in range(1 + dice.below(3)):
        x, y, z = (size * dice.between(0.6, 1.0) for _ in range(3))
        shift_x, shift_z = dice.between(-0.15, 0.15) * size, dice.between(-0.15, 0.15) * size
        things.append(
            box(
                (shift_x - x, top, shift_z - z),
                (shift_x + x, top + 1.4 * y, shift_z + z),
                object_material(dice, size * 2),
            )
        )
        top, size = top + 1.4 * y, size * 0.75
    return things


def round_thing(dice: Dice) -> list[Thing]:
    """Make a ball, a cushion or a post."""
    size = dice.log_between(0.1, 0.35)
    material = object_material(dice, 2 * size)
    kind = dice.below(3)
    if kind == 0:
        return [Thing(Shape.ELLIPSOID, (size,) * 3, (0.0, -size, 0.0), material)]
    if kind == 1:
        return [Thing(Shape.ELLIPSOID, (size * 1.4, size * 0.5, size), (0.0, -size * 0.5, 0.0), material)]
    tall = size * dice.between(2, 5)
    return [Thing(Shape.CAPSULE, (size * 0.6, tall / 2, size * 0.6), (0.0, -tall / 2, 0.0), material)]


def tree(dice: Dice) -> list[Thing]:
    """Make a trunk with one to three crowns."""
    tall, thick = dice.between(1.6, 4.0), dice.between(0.08, 0.25)
    bark = plain_material(dice, 0.15, 0.45, 1.0)
    tone = dice.between(0.05, 0.2)
    palette = ((tone * 0.75, tone, tone * 0.35), (tone * 0.3, tone * 0.5, tone * 0.2), bark.palette[2])
    leaf = bark._replace(palette=palette, grain=(0.3,) * 3, strength=0.35, fine=0.35)
    things = [Thing(Shape.CAPSULE, (thick, tall / 2, thick), (0.0, -tall / 2, 0.0), bark)]
    for _ in range(1 + dice.below(3)):
        size = tall * dice.between(0.3, 0.5)
        center = (
            0.4 * size * dice.between(-1, 1),
            -tall - 0.3 * size * dice.between(-0.5, 1.5),
            0.4 * size * dice.between(-1, 1),
        )
        things.append(Thing(Shape.ELLIPSOID, (size, size * dice.between(0.7, 1.2), size), center, leaf))
    return things


def extent(things: Sequence[Thing]) -> Vector:
    """Return half sizes of a box about the vertical axis that holds things which are not turned."""
    x = max(abs(thing.center[0]) + thing.half[0] for thing in things)
    z = max(abs(thing.center[2]) + thing.half[2] for thing in things)
    top = max(-thing.center[1] + thing.half[1] for thing in things)
    return (x, top / 2, z)


FREE_STANDING: tuple[Callable[[Dice], list[Thing]], ...] = (chair, boxes, round_thing, plant, standard_lamp, sofa)
"""What stands anywhere in a room."""

AT_WALLS: tuple[Callable[[Dice], list[Thing]], ...] = (cupboard, shelf, sofa, cupboard)
"""What has its back to a wall."""


def side_table(dice: Dice) -> list[Thing]:
    """Make a table with something on it."""
    half_x, half_z, height = dice.between(0.3, 0.7), dice.between(0.25, 0.45), dice.between(0.4, 0.76)
    things = table(half_x, half_z, height, dice)
    for _ in range(1 + dice.below(2)):
        size = dice.between(0.05, 0.16)
        x, z = half_x * dice.between(-0.6, 0.6), half_z * dice.between(-0.6, 0.6)
        tall = size * dice.between(0.8, 2.5)
        shape = dice.pick((Shape.BOX, Shape.CAPSULE, Shape.ELLIPSOID))
        half = (size, size, size) if shape is Shape.ELLIPSOID else (size * 0.7, max(tall / 2, size * 0.7), size * 0.7)
        things.append(
            Thing(
                shape,
                half,
                (x, -height - half[1], z),
                object_material(dice, 2 * size),
                (0.0, dice.angle() if shape is Shape.BOX else 0.0, 0.0),
            )
        )
    return things


def diagonal(half: Vector) -> float:
    """Return how far a box reaches on the floor."""
    return math.hypot(half[0], half[2])
