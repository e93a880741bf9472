"""A world as a list of things in plain numbers, and the tensors of many such lists."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.synthetic.figure import Figures, Joint, Part
from page4d.synthetic.materials import Material, Rows
from page4d.synthetic.motion import Motion
from page4d.synthetic.rng import Vector
from page4d.synthetic.texture import Pattern, Texture
from page4d.synthetic.world import ROOM_FACES, Lights, Shape, World

ZERO: Vector = (0.0, 0.0, 0.0)
UP: Vector = (0.0, -1.0, 0.0)


class Path(NamedTuple):
    """How a thing moves: see `motion.Motion`."""

    swing: tuple[Vector, Vector] = (ZERO, ZERO)
    swing_hz: tuple[float, float] = (0.0, 0.0)
    swing_phase: tuple[float, float] = (0.0, 0.0)
    axis: Vector = UP
    turn_rate: float = 0.0
    turn_swing: float = 0.0


class Thing(NamedTuple):
    """One object; `turned` is a rotation vector."""

    shape: Shape
    half: Vector
    center: Vector
    material: Material
    turned: Vector = ZERO
    path: Path = Path()


class Swing(NamedTuple):
    """The angle of a joint: base + swing * sin(2 pi hz t + phase)."""

    base: float = 0.0
    swing: float = 0.0
    hz: float = 0.0
    phase: float = 0.0


class Person(NamedTuple):
    """One figure: see `figure.Figures`. `dress` is one material a part."""

    height: float
    girth: float
    circle_center: tuple[float, float]
    circle_radius: float
    circle_phase: float
    turn_rate: float
    joints: dict[Joint, Swing]
    dress: tuple[Material, ...]


class Lighting(NamedTuple):
    """Where light comes from: see `world.Lights`."""

    position: Vector
    reach: float
    color: Vector
    glow: Vector
    fill: Vector
    fill_to: Vector
    sky: Rows


class Plan(NamedTuple):
    """One world: what is around it with the materials of its six faces, things, people and lights."""

    around: Thing
    faces: tuple[Material, ...]
    things: tuple[Thing, ...]
    people: tuple[Person, ...]
    lights: Lighting
    seed: int


_NOTHING = Material(Pattern.PLAIN, (ZERO,) * 3, (ZERO,) * 3, (1.0, 1.0, 1.0), 0.0, 0.0)
_ABSENT = Thing(Shape.ABSENT, (1.0, 1.0, 1.0), ZERO, _NOTHING)
_NOBODY = Person(1.0, 1.0, (0.0, 0.0), 0.0, 0.0, 0.0, {}, (_NOTHING,) * len(Part))
_STILL = Swing()
_FIRST_PART = 500
_ROUND = (Part.HEAD, Part.HAIR, Part.TORSO, Part.PELVIS)
_PARTS = tuple(int(Shape.ELLIPSOID if part in _ROUND else Shape.CAPSULE) for part in Part)


def build_world(plans: Sequence[Plan]) -> World:
    """Turn plans into the tensors of as many worlds, in float64; shorter lists are filled up with absent things."""
    most_things = max(len(plan.things) for plan in plans)
    most_people = max(len(plan.people) for plan in plans)
    things = [[plan.around, *plan.things, *[_ABSENT] * (most_things - len(plan.things))] for plan in plans]
    people = [[*plan.people, *[_NOBODY] * (most_people - len(plan.people))] for plan in plans]
    figures = _figures(people, most_people)
    half, motion = _motion(things)
    half = torch.cat([half, figures.half_sizes.flatten(1, 2)], dim=1)
    nobody = (int(Shape.ABSENT),) * len(Part)
    shape = torch.tensor(
        [
            [*(thing.shape for thing in row), *(p for one in crowd for p in (nobody if one is _NOBODY else _PARTS))]
            for row, crowd in zip(things, people, strict=True)
        ]
    )
    materials = [
        [*plan.faces, *(thing.material for thing in row[1:]), *(part for one in crowd for part in one.dress)]
        for plan, row, crowd in zip(plans, things, people, strict=True)
    ]
    lights = {name: _column([getattr(plan.lights, name) for plan in plans]) for name in Lighting._fields}
    # Parts of figures keep their numbers however many things stand before them.
    numbers = [*range(ROOM_FACES + most_things), *range(_FIRST_PART, _FIRST_PART + most_people * len(Part))]
    seed = (torch.tensor([plan.seed for plan in plans])[:, None] * 131 + 7 * torch.tensor(numbers)) % 9973
    texture = _texture(materials, seed, shape, half)
    return World(
        shape=shape, half_size=half, motion=motion, figures=figures, texture=texture, lights=Lights(**lights)
    )


def _column(rows: object) -> Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.float64))


def _cut(table: Tensor, *sizes: int) -> list[Tensor]:
    """Cut the last axis into pieces."""
    ends = list(accumulate(sizes, initial=0))
    return [table[..., start:end] for start, end in pairwise(ends)]


def _motion(things: Sequence[Sequence[Thing]]) -> tuple[Float[Tensor, "B N 3"], Motion]:
    """Return half sizes and motions; one table of plain numbers is much faster than one for each quantity."""
    table = _column([[_thing_row(thing) for thing in row] for row in things])
    half, center, turned, swing, hz, phase, axis, last = _cut(table, 3, 3, 3, 6, 2, 2, 3, 2)
    motion = Motion(
        center=center,
        turned=turned,
        swing=swing.reshape(*swing.shape[:2], 2, 3),
        swing_hz=hz,
        swing_phase=phase,
        axis=axis,
        turn_rate=last[..., 0],
        turn_swing=last[..., 1],
    )
    return half, motion


def _thing_row(thing: Thing) -> tuple[float, ...]:
    (first, second), hz, phase, axis, rate, turn = thing.path
    return (*thing.half, *thing.center, *thing.turned, *first, *second, *hz, *phase, *axis, rate, turn)


def _figures(people: Sequence[Sequence[Person]], crowd: int) -> Figures:
    rows = [
        [
            (
                *(one.height, one.girth, *one.circle_center, one.circle_radius, one.circle_phase, one.turn_rate),
                *(number for joint in Joint for number in one.joints.get(joint, _STILL)),
            )
            for one in row
        ]
        for row in people
    ]
    table = _column(rows).reshape(len(people), crowd, 7 + 4 * len(Joint))
    height, girth, x, z, radius, phase, rate = table[..., :7].unbind(-1)
    base, swing, hz, joint_phase = table[..., 7:].reshape(len(people), crowd, len(Joint), 4).unbind(-1)
    return Figures(
        height=height,
        girth=girth,
        circle_center=torch.stack([x, z], dim=-1),
        circle_radius=radius,
        circle_phase=phase,
        turn_rate=rate,
        joint_base=base,
        joint_swing=swing,
        joint_hz=hz,
        joint_phase=joint_phase,
    )


def _texture(
    materials: Sequence[Sequence[Material]], seed: Int[Tensor, "B K"], shape: Tensor, half: Tensor
) -> Texture:
    """Stack materials; each has its own place in its pattern."""
    table = _column([[_material_row(material) for material in row] for row in materials])
    pattern, palette, frame, grain, rest = _cut(table, 1, 9, 9, 3, 5)
    strength, fine, warp, bond, joint_m = rest.unbind(-1)
    frame = frame.reshape(*frame.shape[:2], 3, 3)
    length = frame.norm(dim=-1)
    offset = torch.stack([(seed * factor) % 8 for factor in (0.618, 1.414, 2.236)], dim=-1).double()
    unit = torch.where((shape == Shape.CAPSULE)[..., None], half[..., :1], half)
    return Texture(
        pattern=pattern[..., 0].long(),
        palette=palette.reshape(*palette.shape[:2], 3, 3),
        frame=frame,
        offset=torch.where(length == 0, torch.floor(offset) + 0.5, offset),
        grain=grain,
        strength=strength,
        fine=fine,
        warp=warp,
        bond=bond,
        joint=joint_m[..., None] * length,
        unit=torch.cat([unit[:, :1].expand(-1, ROOM_FACES, -1), unit[:, 1:]], dim=1),
        seed=seed,
    )


def _material_row(material: Material) -> tuple[float, ...]:
    pattern, (a, b, c), (x, y, z), grain, *rest = material
    return (pattern, *a, *b, *c, *x, *y, *z, *grain, *rest)
