"""Random materials: natural colours, half of them nearly grey, in procedural textures of several scales."""

import colorsys
import math
from typing import NamedTuple

from page4d.synthetic.rng import Rng, Vector
from page4d.synthetic.texture import Pattern

GAMMA = 2.2
"""Exponent from display values to linear light."""

Rows = tuple[Vector, Vector, Vector]

_HUES_DEG = ((18, 45), (18, 45), (18, 60), (-12, 14), (80, 140), (195, 235))
"""Ranges of natural hues; wood and earth tones are the most frequent."""


class Material(NamedTuple):
    """One texture: a row of `texture.Texture`. `frame` maps metres to cells; `joint_m` is a joint width in metres."""

    pattern: Pattern
    palette: Rows
    frame: Rows
    grain: Vector
    strength: float
    fine: float
    warp: float = 0.0
    bond: float = 0.0
    joint_m: float = 0.0


def color(rng: Rng, low: float = 0.2, high: float = 0.85, vivid: float = 0.6) -> Vector:
    """Draw a linear RGB colour with a display brightness from `low` to `high`.

    Half of all colours are nearly grey, the others have a saturation of at most `vivid`.
    """
    hue = rng.uniform(*rng.choice(_HUES_DEG)) / 360
    saturation = rng.uniform(0.0, 0.14) if rng.chance(0.5) else rng.uniform(0.15, vivid)
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, rng.uniform(low, high))
    return (red**GAMMA, green**GAMMA, blue**GAMMA)


def near(rng: Rng, base: Vector, contrast: float) -> Vector:
    """Draw a darker or lighter variation of a colour."""
    factor = math.exp(rng.sign() * rng.uniform(0.3, 1.0) * contrast)
    return tuple(min(1.0, max(0.005, part * factor * rng.uniform(0.92, 1.08))) for part in base)  # type: ignore[return-value]


def floor_material(rng: Rng) -> Material:
    """Draw planks, tiles, a chequered floor, a carpet or bonded stones in the plane of x and z."""
    kind = rng.integer(5)
    ground = color(rng, 0.3, 0.75, 0.45)
    if kind == 0:
        frame = ((rng.uniform(0.5, 0.9), 0.0, 0.0), (0.0, 0.0, rng.uniform(5, 9)), (0.0, 0.0, 0.0))
        palette = (ground, near(rng, ground, 0.4), near(rng, ground, 1.2))
        return Material(Pattern.CELLS, palette, frame, (0.12, 0.5, 0.8), 0.18, 0.12, bond=0.37, joint_m=0.006)
    if kind == 1:
        cells = rng.uniform(1.6, 3.5)
        palette = (ground, near(rng, ground, 0.5), near(rng, ground, 1.0))
        return Material(Pattern.CELLS, palette, _level(cells), (0.4, 0.4, 0.4), 0.15, 0.08, joint_m=0.015)
    if kind == 2:
        palette = (ground, near(rng, ground, 1.2), ground)
        return Material(Pattern.CHECKER, palette, _level(rng.uniform(1.2, 3)), (0.4, 0.4, 0.4), 0.15, 0.1)
    if kind == 3:
        return plain_material(rng, 0.35, 0.7, 0.25)
    frame = ((1.4, 0.0, 0.0), (0.0, 0.0, 2.8), (0.0, 0.0, 0.0))
    palette = (ground, near(rng, ground, 0.5), near(rng, ground, 0.8))
    return Material(Pattern.CELLS, palette, frame, (0.5, 0.5, 0.5), 0.2, 0.1, bond=0.5, joint_m=0.012)


def plain_material(rng: Rng, low: float = 0.2, high: float = 0.85, grain: float = 0.5) -> Material:
    """Draw a colour with fine and coarse grain: plaster, cloth, soil or grass."""
    ground = color(rng, low, high, 0.45)
    palette = (ground, near(rng, ground, rng.uniform(0.05, 0.45)), ground)
    scale = grain * rng.log_uniform(0.6, 1.8)
    strength, fine = rng.uniform(0.03, 0.2), rng.log_uniform(0.03, 0.2)
    return Material(Pattern.PLAIN, palette, _level(1.0), (scale, scale, scale), strength, fine)


def wall_material(rng: Rng, normal_axis: int) -> Material:
    """Draw plaster, stripes, dots, bricks or panels for a wall with its normal along an axis."""
    along: Vector = (0.0, 0.0, 1.0) if normal_axis == 0 else (1.0, 0.0, 0.0)
    ground = color(rng, 0.45, 0.88, 0.4)
    kind = rng.integer(6)
    if kind <= 1:
        return plain_material(rng, 0.5, 0.88, 0.3)
    if kind == 2:
        frame = (_times(along, rng.uniform(2, 5)), (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, (ground, near(rng, ground, 0.5), ground), frame, (0.4,) * 3, 0.12, 0.06)
    if kind == 3:
        ground = color(rng, 0.35, 0.7)
        frame = (_times(along, rng.uniform(2.2, 4.5)), (0.0, rng.uniform(6, 12), 0.0), (0.0,) * 3)
        palette = (ground, near(rng, ground, 0.6), near(rng, ground, 0.9))
        return Material(Pattern.CELLS, palette, frame, (0.7,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.014)
    if kind == 4:
        frame = (_times(along, rng.uniform(1, 1.8)), (0.0, rng.uniform(0.8, 1.3), 0.0), (0.0,) * 3)
        palette = (ground, near(rng, ground, 0.3), near(rng, ground, 1.0))
        return Material(Pattern.CELLS, palette, frame, (0.4,) * 3, 0.12, 0.08, joint_m=0.03)
    cells = rng.uniform(3, 7)
    frame = (_times(along, cells), (0.0, cells, 0.0), (0.0,) * 3)
    return Material(Pattern.DOTS, (ground, color(rng, 0.2, 0.8), ground), frame, (0.4,) * 3, 0.12, 0.06)


def object_material(rng: Rng, size: float) -> Material:
    """Draw a texture whose pattern repeats a few times over an object of about `size` metres."""
    kind = rng.integer(7)
    grain = rng.log_uniform(0.25, 0.8) / size
    strength, fine = rng.uniform(0.04, 0.25), rng.log_uniform(0.03, 0.15)
    ground = color(rng)
    second = near(rng, ground, 1.0) if rng.chance(0.5) else color(rng)
    palette = (ground, second, near(rng, ground, 1.2))
    if kind <= 1:
        return Material(Pattern.PLAIN, palette, _level(1.0), (grain,) * 3, strength, fine)
    cells = rng.log_uniform(1.5, 5.0) / size
    frame = _turned(rng, cells)
    if kind == 2:
        return Material(Pattern.CHECKER, palette, frame, (grain,) * 3, strength, fine)
    if kind == 3:
        striped = (frame[0], (0.0,) * 3, (0.0,) * 3)
        return Material(Pattern.STRIPES, palette, striped, (grain,) * 3, strength, fine, warp=rng.uniform(0, 2))
    if kind == 4:
        return Material(Pattern.MARBLE, palette, frame, (grain,) * 3, strength, fine, warp=3.0)
    if kind == 5:
        return Material(Pattern.DOTS, palette, frame, (grain,) * 3, strength, fine)
    return Material(Pattern.CELLS, palette, frame, (grain,) * 3, strength, fine, bond=0.5, joint_m=0.1 / cells)


def skin_material(rng: Rng, tint: Vector) -> Material:
    """Draw skin of about one colour."""
    palette = (tint, near(rng, tint, 0.12), tint)
    return Material(Pattern.PLAIN, palette, ((1.0, 0.0, 0.0),) * 3, (2.0,) * 3, 0.05, 0.03)


def _level(cells: float) -> Rows:
    return ((cells, 0.0, 0.0), (0.0, 0.0, cells), (0.0, 0.0, 0.0))


def _times(vector: Vector, factor: float) -> Vector:
    return (vector[0] * factor, vector[1] * factor, vector[2] * factor)


def _turned(rng: Rng, cells: float) -> Rows:
    """Draw an orthogonal frame with random orientation and `cells` per metre (Gram-Schmidt)."""
    a, b = rng.direction(), rng.direction()
    dot = sum(p * q for p, q in zip(a, b, strict=True))
    c = [q - dot * p for p, q in zip(a, b, strict=True)]
    length = math.sqrt(sum(q * q for q in c)) or 1.0
    b = (c[0] / length, c[1] / length, c[2] / length)
    third = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return (_times(a, cells), _times(b, cells), _times(third, cells))
