"""Materials that furnish a world: natural colours, and textures as rows of numbers ready to be stacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from page4d.synthetic.texture import Pattern, Texture

Array = NDArray[np.float64]
Random = np.random.Generator

GAMMA = 2.2
"""Exponent from display values to linear light."""

WOODS = ("#8a6446", "#a67c52", "#6f4e37", "#b08d68", "#7d5a3c", "#c2a27c")
WALLS = ("#d8cfc0", "#b9c4bb", "#c9b8a8", "#a9b6bd", "#d6c7a1", "#bfb3c0", "#9fae9a", "#c7a48f")
STONES = ("#8e8b84", "#a39e93", "#76797c", "#b3a898", "#6b6a66", "#9a8f80")
CLOTHS = (
    "#7f3b34",
    "#3f5a6b",
    "#5f6f4a",
    "#b0803f",
    "#6a4a5e",
    "#37474a",
    "#a65f45",
    "#8c8a5c",
    "#4a6f73",
    "#c2a878",
)
PALES = ("#e6dfd0", "#d9d2c3", "#e3d6bd", "#cfd3cd")
DARKS = ("#3b3530", "#2f3a3f", "#4a3b33", "#40443a")


@dataclass(frozen=True, kw_only=True)
class Material:
    """One texture as numbers: see `texture.Texture`; `axes` are the rows of its frame, in cells per metre."""

    pattern: Pattern
    palette: Array
    axes: Array
    grain: Array
    strength: float
    warp: float = 0.0
    bond: float = 0.0
    joint_m: float = 0.0


def linear_color(code: str) -> Array:
    """Turn a display colour like `#a67c52` into linear light."""
    return np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** GAMMA


def floor_material(random: Random) -> Material:
    """Draw planks, tiles, a chequered floor or a bonded stone floor, lying in x and z."""
    across = np.array([[1.0, 0, 0], [0, 0, 1.0], [0, 0, 0]])
    kind = random.integers(4)
    if kind == 0:
        axes = across * np.array([[random.uniform(0.5, 0.8)], [random.uniform(5, 7)], [0]])
        palette = _colors(random, WOODS, WOODS, DARKS)
        return _material(Pattern.CELLS, palette, axes, (1.5, 6, 9), 0.45, bond=0.37, joint_m=0.006)
    if kind == 1:
        axes = across * random.uniform(1.8, 2.6)
        palette = _colors(random, STONES, STONES, PALES)
        return _material(Pattern.CELLS, palette, axes, (4, 4, 4), 0.4, joint_m=0.015)
    if kind == 2:
        axes = across * random.uniform(1.8, 2.6)
        return _material(Pattern.CHECKER, _colors(random, PALES, STONES, DARKS), axes, (4, 4, 4), 0.35)
    axes = across * np.array([[1.4], [2.8], [0]])
    return _material(
        Pattern.CELLS, _colors(random, STONES, WALLS, DARKS), axes, (5, 5, 5), 0.4, bond=0.5, joint_m=0.012
    )


def wall_material(random: Random, kind: int, normal_axis: int) -> Material:
    """Draw plaster (0), wallpaper stripes (1), bricks (2) or panels (3) for a wall that faces along an axis."""
    along = np.eye(3)[2 - normal_axis]
    up = np.array([0.0, 1.0, 0.0])
    if kind == 0:
        palette = _colors(random, WALLS, WALLS, DARKS)
        palette[1] = 0.65 * palette[0] + 0.35 * palette[1]
        return _material(Pattern.PLAIN, palette, np.stack([along, up, 0 * up]), (1.3, 1.3, 1.3), 0.3)
    if kind == 1:
        axes = np.stack([along * random.uniform(2, 4), 0 * up, 0 * up])
        palette = _colors(random, WALLS, PALES, DARKS)
        return _material(Pattern.STRIPES, palette, axes, (3, 3, 3), 0.25)
    if kind == 2:
        axes = np.stack([along * 3.0, up * 8.0, 0 * up])
        palette = _colors(random, ("#9a6a52", "#8a5a48", "#a88468", "#a59a8c"), WALLS, PALES)
        palette[1] = 0.6 * palette[0] + 0.4 * palette[1]
        return _material(Pattern.CELLS, palette, axes, (7, 7, 7), 0.4, bond=0.5, joint_m=0.014)
    axes = np.stack([along * random.uniform(1.2, 1.8), up * random.uniform(0.9, 1.3), 0 * up])
    palette = _colors(random, WALLS, WALLS, WOODS)
    return _material(Pattern.CELLS, palette, axes, (3, 3, 3), 0.3, joint_m=0.03)


def ceiling_material(random: Random) -> Material:
    """Draw a pale ceiling with little on it."""
    return _material(Pattern.PLAIN, _colors(random, PALES, PALES, PALES), np.eye(3), (1, 1, 1), 0.12)


def object_material(random: Random, size: float) -> Material:
    """Draw a texture for an object of about `size` metres: its pattern repeats a few times over it."""
    turned = _random_rotation(random)
    cells = random.uniform(1.6, 3.2) / size
    grain = np.full(3, min(14.0, 3.0 / size))
    kind = random.integers(5)
    if kind == 0:
        grain = np.array([1.0, 5.0, 5.0])[random.permutation(3)] * 2.5
        palette = _colors(random, WOODS, WOODS, DARKS)
        palette[1] = 0.6 * palette[0] + 0.4 * palette[1]
        return _material(Pattern.STRIPES, palette, turned * cells, grain, 0.5, warp=1.5)
    if kind == 1:
        return _material(Pattern.CHECKER, _colors(random, PALES, CLOTHS, DARKS), turned * cells, grain, 0.4)
    if kind == 2:
        axes = turned * np.array([[cells], [0], [0]])
        return _material(Pattern.STRIPES, _colors(random, CLOTHS, PALES, DARKS), axes, grain, 0.35, warp=0.6)
    if kind == 3:
        palette = _colors(random, STONES, PALES, DARKS)
        return _material(Pattern.MARBLE, palette, turned * cells * 0.5, grain, 0.3, warp=3.0)
    palette = _colors(random, CLOTHS, CLOTHS, PALES)
    return _material(Pattern.CELLS, palette, turned * cells, grain, 0.4, bond=0.5, joint_m=0.03 * size)


def wood_material(random: Random, along: int) -> Material:
    """Draw plain wood whose grain runs along an axis of the object."""
    grain = np.where(np.arange(3) == along, 1.2, 14.0)
    axes = np.eye(3)[[(along + 1) % 3, along, (along + 2) % 3]] * np.array([[6.0], [0.0], [6.0]])
    palette = _colors(random, WOODS, WOODS, DARKS)
    palette[1] = 0.7 * palette[0] + 0.3 * palette[1]
    return _material(Pattern.STRIPES, palette, axes, grain, 0.45, warp=2.0)


def picture_material(random: Random, size: float) -> Material:
    """Draw a lively texture for a picture on a wall."""
    palette = _colors(random, CLOTHS, PALES, CLOTHS)
    kinds = (Pattern.STRIPES, Pattern.CELLS, Pattern.MARBLE)
    axes = _random_rotation(random) * random.uniform(1.5, 3.0) / size
    return _material(kinds[random.integers(3)], palette, axes, (5, 5, 5), 0.45, warp=2.5, joint_m=0.02)


def stack_materials(materials: Sequence[Material], random: Random) -> Texture:
    """Make the texture record of materials, each with its own place in its pattern."""

    def stacked(of: Callable[[Material], object]) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.asarray(of(material)) for material in materials]))

    offset = random.uniform(0.0, 8.0, (len(materials), 3))
    flat = np.stack([np.linalg.norm(material.axes, axis=1) == 0 for material in materials])
    offset = np.where(flat, np.floor(offset) + 0.5, offset)
    return Texture(
        pattern=stacked(lambda material: int(material.pattern)),
        palette=stacked(lambda material: material.palette),
        frame=stacked(lambda material: material.axes),
        offset=torch.from_numpy(offset),
        grain=stacked(lambda material: material.grain),
        strength=stacked(lambda material: material.strength),
        warp=stacked(lambda material: material.warp),
        bond=stacked(lambda material: material.bond),
        joint=stacked(lambda material: material.joint_m * np.linalg.norm(material.axes, axis=1)),
        seed=torch.from_numpy(random.integers(0, 2**20, len(materials))),
    )


def _material(
    pattern: Pattern,
    palette: Array,
    axes: Array,
    grain: Sequence[float] | Array,
    strength: float,
    *,
    warp: float = 0.0,
    bond: float = 0.0,
    joint_m: float = 0.0,
) -> Material:
    grain = np.asarray(grain, dtype=np.float64)
    return Material(
        pattern=pattern,
        palette=palette,
        axes=axes,
        grain=grain,
        strength=strength,
        warp=warp,
        bond=bond,
        joint_m=joint_m,
    )


def _colors(random: Random, *tables: Sequence[str]) -> Array:
    """Draw one colour from each table; a table drawn from twice gives two colours."""
    chosen: list[str] = []
    for table in tables:
        chosen.append(str(random.choice([code for code in table if code not in chosen])))
    return np.stack([linear_color(code) for code in chosen])


def _random_rotation(random: Random) -> Array:
    """Draw a rotation or reflection evenly: the orthogonal factor of a Gaussian matrix."""
    return np.linalg.qr(random.normal(size=(3, 3)))[0]
