"""Rigidly moving objects: rolling, circling, flying and spinning."""

import math

from page4d.synthetic.materials import object_material
from page4d.synthetic.rng import Rng, Vector
from page4d.synthetic.world import Shape
from page4d.synthetic.world_spec import UP, MotionSpec, ObjectSpec


def rolling_ball(rng: Rng, radius: float, reach: float, floor: float = 0.0) -> ObjectSpec:
    """Make a ball that rolls back and forth along a line without slipping, within `reach` of the origin."""
    angle, travel = rng.angle(), max(0.0, reach - radius)
    along: Vector = (math.cos(angle), 0.0, math.sin(angle))
    swing = (travel * along[0], 0.0, travel * along[2])
    # UP x along: the top of the ball moves forwards.
    axis = (UP[1] * along[2], 0.0, -UP[1] * along[0])
    motion = MotionSpec(
        swing=(swing, (0.0, 0.0, 0.0)),
        swing_hz=(rng.uniform(0.15, 0.45), 0.0),
        swing_phase=(rng.angle(), 0.0),
        axis=axis,
        turn_swing=travel / radius,
    )
    return ObjectSpec(
        Shape.ELLIPSOID, (radius,) * 3, (0.0, -radius - floor, 0.0), object_material(rng, 2 * radius), motion=motion
    )


def circling_box(rng: Rng, size: float, reach: float, floor: float = 0.0) -> ObjectSpec:
    """Make a box that moves along a circle and turns with it."""
    half = (size, size * rng.uniform(0.4, 1.0), size * rng.uniform(0.4, 0.8))
    radius = max(0.0, reach - math.hypot(half[0], half[2]))
    hz, phase = rng.uniform(0.1, 0.35), rng.angle()
    motion = MotionSpec(
        swing=((radius, 0.0, 0.0), (0.0, 0.0, radius)),
        swing_hz=(hz, hz),
        swing_phase=(phase, phase - math.pi / 2),
        turn_rate=-math.tau * hz,
    )
    center = (0.0, -half[1] - floor, 0.0)
    return ObjectSpec(Shape.BOX, half, center, object_material(rng, 2 * size), (0.0, rng.angle(), 0.0), motion)


def flying(rng: Rng, size: float, reach: float, height: float) -> ObjectSpec:
    """Make an object that tumbles along a closed curve around a point `height` above the floor."""
    shape = rng.choice((Shape.BOX, Shape.ELLIPSOID, Shape.CAPSULE))
    half = {
        Shape.BOX: (size, size * rng.uniform(0.3, 1.0), size * rng.uniform(0.5, 1.0)),
        Shape.ELLIPSOID: (size,) * 3,
        Shape.CAPSULE: (size * 0.4, size, size * 0.4),
    }[shape]
    motion = MotionSpec(
        swing=(_scaled(rng, reach), _scaled(rng, reach * 0.6)),
        swing_hz=(rng.uniform(0.15, 0.45), rng.uniform(0.15, 0.45)),
        swing_phase=(rng.angle(), rng.angle()),
        axis=rng.direction(),
        turn_rate=rng.sign() * rng.uniform(0.3, 1.8),
    )
    return ObjectSpec(shape, half, (0.0, -height, 0.0), object_material(rng, 2 * size), motion=motion)


def spinning(rng: Rng, item: ObjectSpec) -> ObjectSpec:
    """Make an object rotate in place."""
    return item._replace(motion=MotionSpec(turn_rate=rng.sign() * rng.uniform(0.4, 1.8)))


def _scaled(rng: Rng, reach: float) -> Vector:
    x, y, z = rng.direction()
    return (x * reach, 0.5 * y * reach, z * reach)
