"""Materials that dress a world: natural colours, half of them nearly grey, in textures of several scales."""

import colorsys
import math
from typing import NamedTuple

from page4d.synthetic.rng import Dice, Vector
from page4d.synthetic.texture import Pattern

GAMMA = 2.2
"""Exponent from display values to linear light."""

Rows = tuple[Vector, Vector, Vector]

_HUES_DEG = ((18, 45), (18, 45), (18, 60), (-12, 14), (80, 140), (195, 235))
"""Where natural hues lie; wood and earth are the most common."""


class Material(NamedTuple):
    """One texture as numbers: see `texture.Texture`. `frame` holds the cells a metre along its rows."""

    pattern: Pattern
    palette: Rows
    frame: Rows
    grain: Vector
    strength: float
    fine: float
    warp: float = 0.0
    bond: float = 0.0
    joint_m: float = 0.0


def color(dice: Dice, low: float = 0.2, high: float = 0.85, vivid: float = 0.6) -> Vector:
    """Draw a colour whose display brightness lies between two values, in linear light.

    Half of all colours are nearly grey, the others at most `vivid`.
    """
    hue = dice.between(*dice.pick(_HUES_DEG)) / 360
    saturation = dice.between(0.0, 0.14) if dice.chance(0.5) else dice.between(0.15, vivid)
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, dice.between(low, high))
    return (red**GAMMA, green**GAMMA, blue**GAMMA)


def near(dice: Dice, base: Vector, contrast: float) -> Vector:
    """Draw a darker or lighter neighbour of a colour."""
    factor = math.exp(dice.sign() * dice.between(0.3, 1.0) * contrast)
    return tuple(min(1.0, max(0.005, part * factor * dice.between(0.92, 1.08))) for part in base)  # type: ignore[return-value]


def floor_material(dice: Dice) -> Material:
    """Draw planks, tiles, a chequered floor, a carpet or bonded stones, lying in x and z."""
    kind = dice.below(5)
    ground = color(dice, 0.3, 0.75, 0.45)
    if kind == 0:
        frame = ((dice.between(0.5, 0.9), 0.0, 0.0), (0.0, 0.0, dice.between(5, 9)), (0.0, 0.0, 0.0))
        palette = (ground, near(dice, ground, 0.4), near(dice, ground, 1.2))
        return Material(Pattern.CELLS, palette, frame, (0.12, 0.5, 0.8), 0.18, 0.12, bond=0.37, joint_m=0.006)
    if kind == 1:
        cells = dice.between(1.6, 3.5)
        palette = (ground, near(dice, ground, 0.5), near(dice, ground, 1.0))
        return Material(Pattern.CELLS, palette, _level(cells), (0.4, 0.4, 0.4), 0.15, 0.08, joint_m=0.015)
    if kind == 2:
        palette = (ground, near(dice, ground, 1.2), ground)
        return Material(Pattern.CHECKER, palette, _level(dice.between(1.2, 3)), (0.4, 0.4, 0.4), 0.15, 0.1)
    if kind == 3:
        return plain_material(dice, 0.35, 0.7, 0.25)
    frame = ((1.4, 0.0, 0.0), (0.0, 0.0, 2.8), (0.0, 0.0, 0.0))
    palette = (ground, near(dice, ground, 0.5), near(dice, ground, 0.8))
    return Material(Pattern.CELLS, palette, frame, (0.5, 0.5, 0.5), 0.2, 0.1, bond=0.5, joint_m=0.012)


def plain_material(dice: Dice, low: float = 0.2, high: float = 0.85, grain: float = 0.5) -> Material:
    """Draw cloudy colour of fine and coarse grain: plaster, cloth, soil, grass."""
    ground = color(dice, low, high, 0.45)
    palette = (ground, near(dice, ground, dice.between(0.05, 0.45)), ground)
    scale = grain * dice.log_between(0.6, 1.8)
    strength, fine = dice.between(0.03, 0.2), dice.log_between(0.03, 0.2)
    return Material(Pattern.PLAIN, palette, _level(1.0), (scale, scale, scale), strength, fine)


def wall_material(dice: Dice, normal_axis: int) -> Material:
    """Draw plaster, wallpaper stripes or dots, bricks or panels for a wall that faces along an axis."""
    along: Vector = (0.0, 0.0, 1.0) if normal_axis == 0 else (1.0, 0.0, 0.0)
    ground = color(dice, 0.45, 0.88, 0.4)
    kind = dice.below(6)
    if kind <= 1:
        return plain_material(dice, 0.5, 0.88, 0.3)
    if kind == 2:
        frame = (_times(along, dice.between(2, 5)), (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, (ground, near(dice, ground, 0.5), ground), frame, (0.4,) * 3, 0.12, 0.06)
    if kind == 3:
        ground = color(dice, 0.35, 0.7)
        frame = (_times(along, dice.between(2.2, 4.5)), (0.0, dice.between(6, 12), 0.0), (0.0,) * 3)
        palette = (ground, near(dice, ground, 0.6), near(dice, ground, 0.9))
        return Material(Pattern.CELLS, palette, frame, (0.7,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.014)
    if kind == 4:
        frame = (_times(along, dice.between(1, 1.8)), (0.0, dice.between(0.8, 1.3), 0.0), (0.0,) * 3)
        palette = (ground, near(dice, ground, 0.3), near(dice, ground, 1.0))
        return Material(Pattern.CELLS, palette, frame, (0.4,) * 3, 0.12, 0.08, joint_m=0.03)
    cells = dice.between(3, 7)
    frame = (_times(along, cells), (0.0, cells, 0.0), (0.0,) * 3)
    return Material(Pattern.DOTS, (ground, color(dice, 0.2, 0.8), ground), frame, (0.4,) * 3, 0.12, 0.06)


def object_material(dice: Dice, size: float) -> Material:
    """Draw a texture for an object of about `size` metres: its pattern repeats a few times over it."""
    kind = dice.below(7)
    grain = dice.log_between(0.25, 0.8) / size
    strength, fine = dice.between(0.04, 0.25), dice.log_between(0.03, 0.15)
    ground = color(dice)
    second = near(dice, ground, 1.0) if dice.chance(0.5) else color(dice)
    palette = (ground, second, near(dice, ground, 1.2))
    if kind <= 1:
        return Material(Pattern.PLAIN, palette, _level(1.0), (grain,) * 3, strength, fine)
    cells = dice.log_between(1.5, 5.0) / size
    frame = _turned(dice, cells)
    if kind == 2:
        return Material(Pattern.CHECKER, palette, frame, (grain,) * 3, strength, fine)
    if kind == 3:
        striped = (frame[0], (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, palette, striped, (grain,) * 3, strength, fine, warp=dice.between(0, 2))
    if kind == 4:
        return Material(Pattern.MARBLE, palette, frame, (grain,) * 3, strength, fine, warp=3.0)
    if kind == 5:
        return Material(Pattern.DOTS, palette, frame, (grain,) * 3, strength, fine)
    return Material(Pattern.CELLS, palette, frame, (grain,) * 3, strength, fine, bond=0.5, joint_m=0.1 / cells)


def _level(cells: float) -> Rows:
    return ((cells, 0.0, 0.0), (0.0, 0.0, cells), (0.0, 0.0, 0.0))


def _times(vector: Vector, factor: float) -> Vector:
    return (vector[0] * factor, vector[1] * factor, vector[2] * factor)


def _turned(dice: Dice, cells: float) -> Rows:
    """Turn the rows of a frame evenly: two directions, made perpendicular, and their cross product."""
    a, b = dice.direction(), dice.direction()
    dot = sum(p * q for p, q in zip(a, b, strict=True))
    c = [q - dot * p for p, q in zip(a, b, strict=True)]
    length = math.sqrt(sum(q * q for q in c)) or 1.0
    b = (c[0] / length, c[1] / length, c[2] / length)
    third = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return (_times(a, cells), _times(b, cells), _times(third, cells))
