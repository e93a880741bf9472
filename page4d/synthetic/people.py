"""Random people: build, clothing and joint angles of an activity."""

import math
from enum import IntEnum

from page4d.synthetic.figure import Joint, Part
from page4d.synthetic.materials import Material, object_material, plain_material, skin_material
from page4d.synthetic.rng import Rng
from page4d.synthetic.world_spec import Person, Swing


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
    dress = dict.fromkeys(Part, skin) | {Part.PELVIS: trousers, Part.TORSO: shirt, Part.HAIR: hair}
    for part in Part:
        if part.name.endswith("UPPER_ARM"):
            dress[part] = upper
        elif part.name.endswith("FOREARM"):
            dress[part] = fore
        elif part.name.endswith("THIGH"):
            dress[part] = trousers
        elif part.name.endswith("SHIN"):
            dress[part] = shin
        elif part.name.endswith("FOOT"):
            dress[part] = shoe
    return tuple(dress[part] for part in Part)


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
