"""Things that move rigidly: they roll, drive in circles, turn, tumble through the air, or are carried."""

import math

from page4d.synthetic.blueprint import UP, Path, Thing
from page4d.synthetic.materials import object_material
from page4d.synthetic.rng import Dice, Vector
from page4d.synthetic.world import Shape


def rolling_ball(dice: Dice, radius: float, reach: float, floor: float = 0.0) -> Thing:
    """Roll a ball to and fro along a line without slipping; it stays within `reach` of the origin."""
    angle, travel = dice.angle(), max(0.0, reach - radius)
    along: Vector = (math.cos(angle), 0.0, math.sin(angle))
    swing = (travel * along[0], 0.0, travel * along[2])
    # UP x along: the top of the ball goes ahead.
    axis = (UP[1] * along[2], 0.0, -UP[1] * along[0])
    path = Path(
        swing=(swing, (0.0, 0.0, 0.0)),
        swing_hz=(dice.between(0.15, 0.45), 0.0),
        swing_phase=(dice.angle(), 0.0),
        axis=axis,
        turn_swing=travel / radius,
    )
    return Thing(
        Shape.ELLIPSOID, (radius,) * 3, (0.0, -radius - floor, 0.0), object_material(dice, 2 * radius), path=path
    )


def circling_box(dice: Dice, size: float, reach: float, floor: float = 0.0) -> Thing:
    """Drive a box around a circle, turning with it."""
    half = (size, size * dice.between(0.4, 1.0), size * dice.between(0.4, 0.8))
    radius = max(0.0, reach - math.hypot(half[0], half[2]))
    hz, phase = dice.between(0.1, 0.35), dice.angle()
    path = Path(
        swing=((radius, 0.0, 0.0), (0.0, 0.0, radius)),
        swing_hz=(hz, hz),
        swing_phase=(phase, phase - math.pi / 2),
        turn_rate=-math.tau * hz,
    )
    center = (0.0, -half[1] - floor, 0.0)
    return Thing(Shape.BOX, half, center, object_material(dice, 2 * size), (0.0, dice.angle(), 0.0), path)


def flying(dice: Dice, size: float, reach: float, height: float) -> Thing:
    """Let something tumble on a loop around a point `height` above the floor."""
    shape = dice.pick((Shape.BOX, Shape.ELLIPSOID, Shape.CAPSULE))
    half = {
        Shape.BOX: (size, size * dice.between(0.3, 1.0), size * dice.between(0.5, 1.0)),
        Shape.ELLIPSOID: (size,) * 3,
        Shape.CAPSULE: (size * 0.4, size, size * 0.4),
    }[shape]
    path = Path(
        swing=(_scaled(dice, reach), _scaled(dice, reach * 0.6)),
        swing_hz=(dice.between(0.15, 0.45), dice.between(0.15, 0.45)),
        swing_phase=(dice.angle(), dice.angle()),
        axis=dice.direction(),
        turn_rate=dice.sign() * dice.between(0.3, 1.8),
    )
    return Thing(shape, half, (0.0, -height, 0.0), object_material(dice, 2 * size), path=path)


def turning(dice: Dice, thing: Thing) -> Thing:
    """Let a thing turn on the spot."""
    return thing._replace(path=Path(turn_rate=dice.sign() * dice.between(0.4, 1.8)))


def _scaled(dice: Dice, reach: float) -> Vector:
    x, y, z = dice.direction()
    return (x * reach, 0.5 * y * reach, z * reach)
