"""A world as a list of things in plain numbers, and the tensors of many such lists."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from page4d.synthetic.next.dice import Vector
from page4d.synthetic.next.figure import Figures, Joint, Part
from page4d.synthetic.next.materials import Material, Rows
from page4d.synthetic.next.motion import Motion
from page4d.synthetic.next.texture import Pattern, Texture
from page4d.synthetic.next.world import ROOM_FACES, Lights, Shape, World

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
    radius: float
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
_ROUND = (Part.HEAD, Part.HAIR, Part.TORSO, Part.PELVIS)


def build_world(plans: Sequence[Plan]) -> World:
    """Turn plans into the tensors of as many worlds, in float64; shorter lists are filled up with absent things."""
    most_things = max(len(plan.things) for plan in plans)
    most_people = max(len(plan.people) for plan in plans)
    things = [[plan.around, *plan.things, *[_ABSENT] * (most_things - len(plan.things))] for plan in plans]
    people = [[*plan.people, *[_NOBODY] * (most_people - len(plan.people))] for plan in plans]
    figures = _figures(people)
    parts = [int(Shape.ELLIPSOID if part in _ROUND else Shape.CAPSULE) for part in Part]
    gone = [int(Shape.ABSENT)] * len(Part)
    shape = [
        [*(int(thing.shape) for thing in row), *(p for one in crowd for p in (gone if one is _NOBODY else parts))]
        for row, crowd in zip(things, people, strict=True)
    ]
    half = torch.cat([_stack(things, lambda thing: thing.half), figures.half_sizes.flatten(1, 2)], dim=1)
    materials = [
        [*plan.faces, *(thing.material for thing in row[1:]), *(part for one in crowd for part in one.dress)]
        for plan, row, crowd in zip(plans, things, people, strict=True)
    ]
    return World(
        shape=torch.tensor(shape),
        half_size=half,
        motion=_motion(things),
        figures=figures,
        texture=_texture(materials, [plan.seed for plan in plans], torch.tensor(shape), half),
        lights=Lights(
            **{name: _column(getattr(plan.lights, name) for plan in plans) for name in Lighting._fields}
        ),
    )


def _column(values: Iterable[object]) -> Tensor:
    return torch.from_numpy(np.array(list(values), dtype=np.float64))


def _stack(rows: Sequence[Sequence[object]], of: Callable[..., object]) -> Tensor:
    return _column([[of(item) for item in row] for row in rows])


def _motion(things: Sequence[Sequence[Thing]]) -> Motion:
    fields = {name: _stack(things, lambda thing, name=name: getattr(thing.path, name)) for name in Path._fields}
    center = _stack(things, lambda thing: thing.center)
    return Motion(center=center, turned=_stack(things, lambda thing: thing.turned), **fields)


def _figures(people: Sequence[Sequence[Person]]) -> Figures:
    count, crowd = len(people), len(people[0])
    still = Swing()
    joints = _column([[[one.joints.get(j, still) for j in Joint] for one in row] for row in people])
    base, swing, hz, phase = joints.reshape(count, crowd, len(Joint), 4).unbind(-1)
    singles = {name: _stack(people, lambda one, name=name: getattr(one, name)) for name in Person._fields[:6]}
    singles["circle_center"] = singles["circle_center"].reshape(count, crowd, 2)
    return Figures(**singles, joint_base=base, joint_swing=swing, joint_hz=hz, joint_phase=phase)


def _texture(
    materials: Sequence[Sequence[Material]], seeds: Sequence[int], shape: Tensor, half: Tensor
) -> Texture:
    """Stack materials; each has its own place in its pattern."""
    frame = _stack(materials, lambda material: material.frame)
    unit = torch.where((shape == Shape.CAPSULE)[..., None], half[..., :1], half)
    unit = torch.cat([unit[:, :1].expand(-1, ROOM_FACES, -1), unit[:, 1:]], dim=1)
    length = frame.norm(dim=-1)
    number = torch.arange(frame.shape[1])
    seed = (torch.tensor(seeds)[:, None] * 131 + number * 7) % 9973
    offset = torch.stack([(seed * factor) % 8 for factor in (0.618, 1.414, 2.236)], dim=-1).double()
    offset = torch.where(length == 0, torch.floor(offset) + 0.5, offset)
    singles = {
        name: _stack(materials, lambda material, name=name: getattr(material, name))
        for name in ("palette", "grain", "strength", "fine", "warp", "bond")
    }
    return Texture(
        pattern=_stack(materials, lambda material: int(material.pattern)).long(),
        frame=frame,
        offset=offset,
        joint=_stack(materials, lambda material: material.joint_m)[..., None] * length,
        unit=unit,
        seed=seed,
        **singles,
    )
