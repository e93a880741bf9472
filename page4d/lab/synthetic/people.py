"""Random people, by build, clothing and activity, and other moving objects, which roll, circle, fly or spin."""

import math
from enum import IntEnum

from page4d.lab.synthetic.figure import Joint, Part
from page4d.lab.synthetic.materials import Material, object_material, plain_material, skin_material
from page4d.lab.synthetic.rigs import Rng, Vector
from page4d.lab.synthetic.world import UP, MotionSpec, ObjectSpec, Person, Shape, Swing


class Activity(IntEnum):
    """Activity of a person."""

    WALKING = 0
    """Walking along a circle."""
    STEPPING = 1
    """Walking in place, as on a treadmill."""
    WAVING = 2
    """Waving one or both arms."""
    EXERCISING = 3
    """Moving every joint."""
    WORKING = 4
    """Bent forward with both hands in front of the body."""
    STANDING = 5
    """Standing still."""


_PAIRS = (
    (Joint.LEFT_SHOULDER, Joint.LEFT_RAISE, Joint.LEFT_ELBOW, Joint.LEFT_HIP, Joint.LEFT_KNEE),
    (Joint.RIGHT_SHOULDER, Joint.RIGHT_RAISE, Joint.RIGHT_ELBOW, Joint.RIGHT_HIP, Joint.RIGHT_KNEE),
)


def sample_person(rng: Rng, activity: Activity, place: tuple[float, float], reach: float, heading: float) -> Person:
    """Draw a person at `place` (x, z) that walks within `reach` metres of it or faces `heading` (radians, x to z)."""
    height = rng.uniform(1.5, 1.92) if rng.chance(0.85) else rng.uniform(1.05, 1.5)
    joints = _JOINTS[activity](rng)
    radius, rate = 0.0, 0.0
    phase = heading - math.pi / 2
    if activity is Activity.WALKING:
        radius = reach * rng.uniform(0.6, 1.0)
        swing = joints[Joint.LEFT_HIP]
        rate = rng.sign() * min(2.2, 4 * swing.hz * 0.49 * height * math.sin(swing.swing) / radius)
        phase = rng.angle()
    return Person(height, rng.uniform(0.88, 1.25), place, radius, phase, rate, joints, _dress(rng))


def _dress(rng: Rng) -> tuple[Material, ...]:
    shirt = object_material(rng, 0.5) if rng.chance(0.4) else plain_material(rng, 0.12, 0.85, 1.5)
    trousers = plain_material(rng, 0.1, 0.6, 1.5)
    tone = rng.uniform(0.12, 0.62)
    skin = skin_material(rng, (tone, tone * rng.uniform(0.58, 0.7), tone * rng.uniform(0.4, 0.52)))
    hair, shoe = plain_material(rng, 0.06, 0.45, 3.0), plain_material(rng, 0.08, 0.7, 2.0)
    upper = skin if rng.chance(0.15) else shirt
    fore = skin if rng.chance(0.5) else upper
    shin = skin if rng.chance(0.25) else trousers
    worn = {"PELVIS": trousers, "TORSO": shirt, "HAIR": hair, "UPPER_ARM": upper, "FOREARM": fore}
    worn |= {"THIGH": trousers, "SHIN": shin, "FOOT": shoe}
    dress = {part: material for part in Part for name, material in worn.items() if part.name.endswith(name)}
    return tuple(dress.get(part, skin) for part in Part)


def _walking(rng: Rng) -> dict[Joint, Swing]:
    hz, phase, reach = rng.uniform(0.6, 1.1), rng.angle(), rng.uniform(0.3, 0.55)
    elbow, arm = rng.uniform(0.1, 0.9), reach * rng.uniform(0.5, 1.1)
    joints = {Joint.LEAN: Swing(rng.uniform(0, 0.1)), Joint.TWIST: Swing(0.0, 0.08, hz, phase)}
    for (shoulder, raised, bend, hip, knee), side in zip(_PAIRS, (1.0, -1.0), strict=True):
        joints[hip] = Swing(0.1, side * reach, hz, phase)
        joints[knee] = Swing(0.5, side * 0.45, hz, phase + 1.9)
        joints[shoulder] = Swing(0.0, -side * arm, hz, phase)
        joints[raised] = Swing(rng.uniform(0.05, 0.2))
        joints[bend] = Swing(elbow)
    return joints


def _waving(rng: Rng) -> dict[Joint, Swing]:
    joints = _breathing(rng)
    both, first = rng.chance(0.4), rng.integer(2)
    hz = rng.uniform(0.4, 1.4)
    for side, (shoulder, raised, elbow, *_) in enumerate(_PAIRS):
        if both or side == first:
            joints[raised] = Swing(rng.uniform(0.8, 2.2), rng.uniform(0.2, 0.5), hz, rng.angle())
            joints[shoulder] = Swing(rng.uniform(-0.3, 0.8), rng.uniform(0.0, 0.4), hz, rng.angle())
            joints[elbow] = Swing(rng.uniform(0.6, 1.2), rng.uniform(0.3, 0.6), hz, rng.angle())
        else:
            joints[raised] = Swing(rng.uniform(0.05, 0.2))
    return joints


def _exercising(rng: Rng) -> dict[Joint, Swing]:
    joints, hz = _breathing(rng), rng.uniform(0.3, 0.8)
    for shoulder, raised, elbow, hip, knee in _PAIRS:
        bend = rng.uniform(0.1, 0.5)
        joints[shoulder] = Swing(rng.uniform(0.0, 1.0), rng.uniform(0.2, 0.8), hz, rng.angle())
        joints[raised] = Swing(rng.uniform(0.3, 1.2), rng.uniform(0.0, 0.3), hz, rng.angle())
        joints[elbow] = Swing(0.8, rng.uniform(0.2, 0.7), hz, rng.angle())
        joints[hip] = Swing(bend, bend, hz, 0.0)
        joints[knee] = Swing(2 * bend, 2 * bend, hz, 0.0)
    joints[Joint.LEAN] = Swing(0.2, 0.15, hz, rng.angle())
    return joints


def _working(rng: Rng) -> dict[Joint, Swing]:
    joints, hz = _breathing(rng), rng.uniform(0.3, 0.9)
    joints[Joint.LEAN] = Swing(rng.uniform(0.1, 0.35), 0.05, hz / 2, rng.angle())
    joints[Joint.NOD] = Swing(rng.uniform(0.2, 0.5))
    for shoulder, raised, elbow, *_ in _PAIRS:
        joints[shoulder] = Swing(rng.uniform(0.5, 0.9), rng.uniform(0.1, 0.35), hz, rng.angle())
        joints[raised] = Swing(rng.uniform(0.0, 0.3), rng.uniform(0.0, 0.2), hz, rng.angle())
        joints[elbow] = Swing(rng.uniform(0.5, 1.1), rng.uniform(0.1, 0.4), hz, rng.angle())
    return joints


def _breathing(rng: Rng) -> dict[Joint, Swing]:
    """Draw slight swaying and head turns, in rare cases no motion."""
    if rng.chance(0.15):
        return {}
    sway, hz, phase = rng.uniform(0.02, 0.08), rng.uniform(0.15, 0.5), rng.angle()
    joints = {
        Joint.LEAN: Swing(0.03, 0.03, rng.uniform(0.15, 0.3), rng.angle()),
        Joint.TWIST: Swing(0.0, rng.uniform(0.03, 0.3), rng.uniform(0.1, 0.3), rng.angle()),
        Joint.LOOK: Swing(0.0, rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.4), rng.angle()),
    }
    for (_, _, _, hip, knee), side in zip(_PAIRS, (1.0, -1.0), strict=True):
        joints[hip] = Swing(sway, side * sway, hz, phase)
        joints[knee] = Swing(2 * sway, 2 * side * sway, hz, phase)
    return joints


def _standing(rng: Rng) -> dict[Joint, Swing]:
    joints = {Joint.LOOK: Swing(rng.uniform(-0.5, 0.5)), Joint.NOD: Swing(rng.uniform(-0.1, 0.4))}
    for shoulder, raised, elbow, *_ in _PAIRS:
        joints[shoulder] = Swing(rng.uniform(-0.2, 0.6))
        joints[raised] = Swing(rng.uniform(0.05, 0.5))
        joints[elbow] = Swing(rng.uniform(0.0, 1.5))
    return joints


_JOINTS = {
    Activity.WALKING: _walking,
    Activity.STEPPING: _walking,
    Activity.WAVING: _waving,
    Activity.EXERCISING: _exercising,
    Activity.WORKING: _working,
    Activity.STANDING: _standing,
}


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
