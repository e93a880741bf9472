"""People: their build and dress, and what they do with their joints."""

import math
from enum import IntEnum

from page4d.synthetic.blueprint import Person, Swing
from page4d.synthetic.figure import Joint, Part
from page4d.synthetic.materials import Material, near, object_material, plain_material
from page4d.synthetic.rng import Dice
from page4d.synthetic.texture import Pattern


class Doing(IntEnum):
    """What a person does."""

    WALKING = 0
    """Around a circle."""
    STEPPING = 1
    """On the spot, as on a treadmill."""
    WAVING = 2
    """With one or both arms."""
    EXERCISING = 3
    """With every joint."""
    WORKING = 4
    """With both hands before the body, bent forward."""
    STANDING = 5
    """Still."""


_PAIRS = (
    (Joint.LEFT_SHOULDER, Joint.LEFT_RAISE, Joint.LEFT_ELBOW, Joint.LEFT_HIP, Joint.LEFT_KNEE),
    (Joint.RIGHT_SHOULDER, Joint.RIGHT_RAISE, Joint.RIGHT_ELBOW, Joint.RIGHT_HIP, Joint.RIGHT_KNEE),
)


def sample_person(dice: Dice, doing: Doing, place: tuple[float, float], reach: float, heading: float) -> Person:
    """Draw a person at (x, z), who walks within `reach` metres of it or faces `heading` in radians from x to z."""
    height = dice.between(1.5, 1.92) if dice.chance(0.85) else dice.between(1.05, 1.5)
    joints = _JOINTS[doing](dice)
    radius, rate = 0.0, 0.0
    phase = heading - math.pi / 2
    if doing is Doing.WALKING:
        radius = reach * dice.between(0.6, 1.0)
        swing = joints[Joint.LEFT_HIP]
        rate = dice.sign() * min(2.2, 4 * swing.hz * 0.49 * height * math.sin(swing.swing) / radius)
        phase = dice.angle()
    return Person(height, dice.between(0.88, 1.25), place, radius, phase, rate, joints, _dress(dice))


def _dress(dice: Dice) -> tuple[Material, ...]:
    shirt = object_material(dice, 0.5) if dice.chance(0.4) else plain_material(dice, 0.12, 0.85, 1.5)
    trousers = plain_material(dice, 0.1, 0.6, 1.5)
    tone = dice.between(0.12, 0.62)
    tint = (tone, tone * dice.between(0.58, 0.7), tone * dice.between(0.4, 0.52))
    skin = Material(
        Pattern.PLAIN, (tint, near(dice, tint, 0.12), tint), ((1.0, 0.0, 0.0),) * 3, (2.0,) * 3, 0.05, 0.03
    )
    hair, shoe = plain_material(dice, 0.06, 0.45, 3.0), plain_material(dice, 0.08, 0.7, 2.0)
    upper = skin if dice.chance(0.15) else shirt
    fore = skin if dice.chance(0.5) else upper
    shin = skin if dice.chance(0.25) else trousers
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


def _walking(dice: Dice) -> dict[Joint, Swing]:
    hz, phase, reach = dice.between(0.6, 1.1), dice.angle(), dice.between(0.3, 0.55)
    elbow, arm = dice.between(0.1, 0.9), reach * dice.between(0.5, 1.1)
    joints = {Joint.LEAN: Swing(dice.between(0, 0.1)), Joint.TWIST: Swing(0.0, 0.08, hz, phase)}
    for (shoulder, raised, bend, hip, knee), side in zip(_PAIRS, (1.0, -1.0), strict=True):
        joints[hip] = Swing(0.1, side * reach, hz, phase)
        joints[knee] = Swing(0.5, side * 0.45, hz, phase + 1.9)
        joints[shoulder] = Swing(0.0, -side * arm, hz, phase)
        joints[raised] = Swing(dice.between(0.05, 0.2))
        joints[bend] = Swing(elbow)
    return joints


def _waving(dice: Dice) -> dict[Joint, Swing]:
    joints = _breathing(dice)
    both, first = dice.chance(0.4), dice.below(2)
    hz = dice.between(0.4, 1.4)
    for side, (shoulder, raised, elbow, *_) in enumerate(_PAIRS):
        if both or side == first:
            joints[raised] = Swing(dice.between(0.8, 2.2), dice.between(0.2, 0.5), hz, dice.angle())
            joints[shoulder] = Swing(dice.between(-0.3, 0.8), dice.between(0.0, 0.4), hz, dice.angle())
            joints[elbow] = Swing(dice.between(0.6, 1.2), dice.between(0.3, 0.6), hz, dice.angle())
        else:
            joints[raised] = Swing(dice.between(0.05, 0.2))
    return joints


def _exercising(dice: Dice) -> dict[Joint, Swing]:
    joints, hz = _breathing(dice), dice.between(0.3, 0.8)
    for shoulder, raised, elbow, hip, knee in _PAIRS:
        bend = dice.between(0.1, 0.5)
        joints[shoulder] = Swing(dice.between(0.0, 1.0), dice.between(0.2, 0.8), hz, dice.angle())
        joints[raised] = Swing(dice.between(0.3, 1.2), dice.between(0.0, 0.3), hz, dice.angle())
        joints[elbow] = Swing(0.8, dice.between(0.2, 0.7), hz, dice.angle())
        joints[hip] = Swing(bend, bend, hz, 0.0)
        joints[knee] = Swing(2 * bend, 2 * bend, hz, 0.0)
    joints[Joint.LEAN] = Swing(0.2, 0.15, hz, dice.angle())
    return joints


def _working(dice: Dice) -> dict[Joint, Swing]:
    joints, hz = _breathing(dice), dice.between(0.3, 0.9)
    joints[Joint.LEAN] = Swing(dice.between(0.1, 0.35), 0.05, hz / 2, dice.angle())
    joints[Joint.NOD] = Swing(dice.between(0.2, 0.5))
    for shoulder, raised, elbow, *_ in _PAIRS:
        joints[shoulder] = Swing(dice.between(0.5, 0.9), dice.between(0.1, 0.35), hz, dice.angle())
        joints[raised] = Swing(dice.between(0.0, 0.3), dice.between(0.0, 0.2), hz, dice.angle())
        joints[elbow] = Swing(dice.between(0.5, 1.1), dice.between(0.1, 0.4), hz, dice.angle())
    return joints


def _breathing(dice: Dice) -> dict[Joint, Swing]:
    """Sway from foot to foot and look about a little, or rarely not at all."""
    if dice.chance(0.15):
        return {}
    sway, hz, phase = dice.between(0.02, 0.08), dice.between(0.15, 0.5), dice.angle()
    joints = {
        Joint.LEAN: Swing(0.03, 0.03, dice.between(0.15, 0.3), dice.angle()),
        Joint.TWIST: Swing(0.0, dice.between(0.03, 0.3), dice.between(0.1, 0.3), dice.angle()),
        Joint.LOOK: Swing(0.0, dice.between(0.1, 0.5), dice.between(0.1, 0.4), dice.angle()),
    }
    for (_, _, _, hip, knee), side in zip(_PAIRS, (1.0, -1.0), strict=True):
        joints[hip] = Swing(sway, side * sway, hz, phase)
        joints[knee] = Swing(2 * sway, 2 * side * sway, hz, phase)
    return joints


def _standing(dice: Dice) -> dict[Joint, Swing]:
    joints = {Joint.LOOK: Swing(dice.between(-0.5, 0.5)), Joint.NOD: Swing(dice.between(-0.1, 0.4))}
    for shoulder, raised, elbow, *_ in _PAIRS:
        joints[shoulder] = Swing(dice.between(-0.2, 0.6))
        joints[raised] = Swing(dice.between(0.05, 0.5))
        joints[elbow] = Swing(dice.between(0.0, 1.5))
    return joints


_JOINTS = {
    Doing.WALKING: _walking,
    Doing.STEPPING: _walking,
    Doing.WAVING: _waving,
    Doing.EXERCISING: _exercising,
    Doing.WORKING: _working,
    Doing.STANDING: _standing,
}
