"""World descriptions in plain numbers, and their conversion to batches of tensors."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.synthetic.figure import Figures, Joint, Part
from page4d.synthetic.materials import Material, Rows
from page4d.synthetic.rng import Vector
from page4d.synthetic.texture import Pattern, Texture
from page4d.synthetic.world import ROOM_FACES, Lights, Motion, Shape, World

ZERO: Vector = (0.0, 0.0, 0.0)
UP: Vector = (0.0, -1.0, 0.0)


class MotionSpec(NamedTuple):
    """Motion of one object: a row of `motion.Motion`."""

    swing: tuple[Vector, Vector] = (ZERO, ZERO)
    swing_hz: tuple[float, float] = (0.0, 0.0)
    swing_phase: tuple[float, float] = (0.0, 0.0)
    axis: Vector = UP
    turn_rate: float = 0.0
    turn_swing: float = 0.0


class ObjectSpec(NamedTuple):
    """One object: shape with half sizes, pose (`rotation` is a rotation vector), material and motion."""

    shape: Shape
    half: Vector
    center: Vector
    material: Material
    rotation: Vector = ZERO
    motion: MotionSpec = MotionSpec()


class Swing(NamedTuple):
    """Joint angle in radians: base + swing * sin(2 pi hz t + phase)."""

    base: float = 0.0
    swing: float = 0.0
    hz: float = 0.0
    phase: float = 0.0


class Person(NamedTuple):
    """One figure: a row of `figure.Figures`. `dress` holds one material per part."""

    height: float
    girth: float
    circle_center: tuple[float, float]
    circle_radius: float
    circle_phase: float
    turn_rate: float
    joints: dict[Joint, Swing]
    dress: tuple[Material, ...]


class LightSpec(NamedTuple):
    """Lighting of one world: a row of `world.Lights`."""

    position: Vector
    reach: float
    color: Vector
    ambient: Vector
    fill: Vector
    fill_direction: Vector
    sky: Rows


class WorldSpec(NamedTuple):
    """One world: its room or ground with the materials of six faces, objects, people and lights."""

    enclosure: ObjectSpec
    faces: tuple[Material, ...]
    objects: tuple[ObjectSpec, ...]
    people: tuple[Person, ...]
    lights: LightSpec
    seed: int


_NO_MATERIAL = Material(Pattern.PLAIN, (ZERO,) * 3, (ZERO,) * 3, (1.0, 1.0, 1.0), 0.0, 0.0)
_ABSENT = ObjectSpec(Shape.ABSENT, (1.0, 1.0, 1.0), ZERO, _NO_MATERIAL)
_ABSENT_PERSON = Person(1.0, 1.0, (0.0, 0.0), 0.0, 0.0, 0.0, {}, (_NO_MATERIAL,) * len(Part))
_STATIC = Swing()
_FIRST_PART_NUMBER = 500
_ROUND = (Part.HEAD, Part.HAIR, Part.TORSO, Part.PELVIS)
_PARTS = tuple(int(Shape.ELLIPSOID if part in _ROUND else Shape.CAPSULE) for part in Part)


def build_world(specs: Sequence[WorldSpec]) -> World:
    """Convert specs to a batch of worlds in float64; shorter lists are padded with absent objects."""
    max_objects = max(len(spec.objects) for spec in specs)
    max_people = max(len(spec.people) for spec in specs)
    objects = [[spec.enclosure, *spec.objects, *[_ABSENT] * (max_objects - len(spec.objects))] for spec in specs]
    people = [[*spec.people, *[_ABSENT_PERSON] * (max_people - len(spec.people))] for spec in specs]
    figures = _figures(people, max_people)
    half, motion = _motion(objects)
    half = torch.cat([half, figures.half_sizes.flatten(1, 2)], dim=1)
    absent = (int(Shape.ABSENT),) * len(Part)
    shape = torch.tensor(
        [
            [
                *(item.shape for item in row),
                *(p for one in crowd for p in (absent if one is _ABSENT_PERSON else _PARTS)),
            ]
            for row, crowd in zip(objects, people, strict=True)
        ]
    )
    materials = [
        [*spec.faces, *(item.material for item in row[1:]), *(part for one in crowd for part in one.dress)]
        for spec, row, crowd in zip(specs, objects, people, strict=True)
    ]
    lights = {name: _column([getattr(spec.lights, name) for spec in specs]) for name in LightSpec._fields}
    # Texture seeds of figures do not depend on the number of objects, so padding changes nothing.
    numbers = [
        *range(ROOM_FACES + max_objects),
        *range(_FIRST_PART_NUMBER, _FIRST_PART_NUMBER + max_people * len(Part)),
    ]
    seed = (torch.tensor([spec.seed for spec in specs])[:, None] * 131 + 7 * torch.tensor(numbers)) % 9973
    texture = _texture(materials, seed, shape, half)
    return World(
        shape=shape, half_size=half, motion=motion, figures=figures, texture=texture, lights=Lights(**lights)
    )


def _column(rows: object) -> Tensor:
    return torch.from_numpy(np.array(rows, dtype=np.float64))


def _split(table: Tensor, *sizes: int) -> list[Tensor]:
    """Split the last axis into parts of the given sizes."""
    ends = list(accumulate(sizes, initial=0))
    return [table[..., start:end] for start, end in pairwise(ends)]


def _motion(objects: Sequence[Sequence[ObjectSpec]]) -> tuple[Float[Tensor, "B N 3"], Motion]:
    """Return half sizes and motions; converting one table is much faster than one per quantity."""
    table = _column([[_object_row(item) for item in row] for row in objects])
    half, center, rotation, swing, hz, phase, axis, last = _split(table, 3, 3, 3, 6, 2, 2, 3, 2)
    motion = Motion(
        center=center,
        rotation=rotation,
        swing=swing.reshape(*swing.shape[:2], 2, 3),
        swing_hz=hz,
        swing_phase=phase,
        axis=axis,
        turn_rate=last[..., 0],
        turn_swing=last[..., 1],
    )
    return half, motion


def _object_row(item: ObjectSpec) -> tuple[float, ...]:
    (first, second), hz, phase, axis, rate, turn = item.motion
    return (*item.half, *item.center, *item.rotation, *first, *second, *hz, *phase, *axis, rate, turn)


def _figures(people: Sequence[Sequence[Person]], crowd: int) -> Figures:
    rows = [
        [
            (
                *(one.height, one.girth, *one.circle_center, one.circle_radius, one.circle_phase, one.turn_rate),
                *(number for joint in Joint for number in one.joints.get(joint, _STATIC)),
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
    """Stack materials, each with its own offset into its pattern."""
    table = _column([[_material_row(material) for material in row] for row in materials])
    pattern, palette, frame, grain, rest = _split(table, 1, 9, 9, 3, 5)
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
