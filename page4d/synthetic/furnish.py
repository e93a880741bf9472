"""Draw a world from a seed: a room, a table with things on it, things around it, some of them moving."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.synthetic.materials import (
    Array,
    Material,
    Random,
    ceiling_material,
    floor_material,
    object_material,
    picture_material,
    stack_materials,
    wall_material,
    wood_material,
)
from page4d.synthetic.motion import Motion
from page4d.synthetic.world import Lights, Shape, World

CLEAR_RADIUS = 2.25
"""Nothing stands further than this from the middle, in metres: cameras may stand from here to `WALL_DISTANCE`."""

WALL_DISTANCE = 3.1
"""Smallest distance in metres from the middle of the room to a wall."""

_UP = np.array([0.0, -1.0, 0.0])


@dataclass(frozen=True, kw_only=True)
class _Path:
    """How one object moves: a row of `Motion` but for where it starts."""

    swing: Array = field(default_factory=lambda: np.zeros((2, 3)))
    swing_hz: tuple[float, float] = (0.0, 0.0)
    swing_phase: tuple[float, float] = (0.0, 0.0)
    axis: Array = field(default_factory=lambda: _UP)
    turn_rate: float = 0.0
    turn_swing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Thing:
    """One object before it becomes a row of tensors."""

    shape: Shape
    half: Array
    center: Array
    material: Material
    yaw: float = 0.0
    path: _Path = field(default_factory=_Path)


def sample_world(seed: int) -> World:
    """Draw a furnished room; the same seed gives the same world, and all worlds have the same shapes.

    Five of the thirteen objects move: a ball rolls and a box circles on the floor, a box tumbles and a ball floats
    above the table, and one thing on the table turns on the spot.
    """
    random = np.random.default_rng((seed, 1))
    half_room = np.array([random.uniform(WALL_DISTANCE, 3.7), random.uniform(1.35, 1.6), random.uniform(3.1, 3.7)])
    room = _Thing(
        shape=Shape.ROOM, half=half_room, center=np.array([0, -half_room[1], 0]), material=ceiling_material(random)
    )
    table = _table(random)
    things = [table, *_on_table(random, table), *_on_floor(random, table), *_in_air(random, table)]
    things = sorted([room, *things, *_pictures(random, half_room)], key=lambda thing: thing.shape)
    kinds = random.permutation(4)
    walls = [wall_material(random, int(kinds[i]), axis) for i, axis in enumerate((0, 0, 2, 2))]
    faces = [*walls[:2], room.material, floor_material(random), *walls[2:]]
    lamp = np.array([random.uniform(-1.4, 1.4), -2 * half_room[1] + 0.35, random.uniform(-1.4, 1.4)])
    warmth = random.uniform(0.0, 0.12)
    return World(
        shapes=tuple(thing.shape for thing in things),
        half_sizes=torch.from_numpy(np.stack([thing.half for thing in things])),
        motion=_motion(things),
        texture=stack_materials([*faces, *(thing.material for thing in things[1:])], random),
        lights=Lights(
            position=torch.from_numpy(lamp),
            radius=torch.tensor(0.2, dtype=torch.float64),
            color=torch.tensor([1.0, 1 - warmth, 1 - 2 * warmth], dtype=torch.float64) * random.uniform(1.15, 1.35),
            glow=torch.tensor([0.92, 0.97, 1.0], dtype=torch.float64) * random.uniform(0.36, 0.46),
        ),
    )


def _table(random: Random) -> _Thing:
    half = np.array([random.uniform(0.36, 0.46), random.uniform(0.22, 0.3), random.uniform(0.35, 0.5)])
    return _Thing(
        shape=Shape.BOX,
        half=half,
        center=np.array([0.0, -half[1], 0.0]),
        material=wood_material(random, 0),
        yaw=random.uniform(-math.pi, math.pi),
    )


def _on_table(random: Random, table: _Thing) -> list[_Thing]:
    """Put a still box, a still ball and a box that turns on the spot onto the table."""
    top = -2 * table.half[1]
    first = random.uniform(-math.pi, math.pi)
    things = []
    for index in range(3):
        angle = first + index * 2 * math.pi / 3
        x, z = 0.2 * math.cos(angle), 0.2 * math.sin(angle)
        reach = random.uniform(0.12, 0.15)
        ball = index == 1
        half = np.full(3, reach) if ball else reach * np.array([0.7, random.uniform(0.6, 1.1), 0.7])
        things.append(
            _Thing(
                shape=Shape.SPHERE if ball else Shape.BOX,
                half=half,
                center=np.array([x, top - half[1], z]),
                material=object_material(random, 2 * reach),
                yaw=random.uniform(-math.pi, math.pi),
                path=_Path(turn_rate=_either_sign(random, 0.7, 1.5) if index == 2 else 0.0),
            )
        )
    return things


def _on_floor(random: Random, table: _Thing) -> list[_Thing]:
    """Put two still boxes, a still ball, a rolling ball and a circling box around the table."""
    inner = float(np.linalg.norm(table.half[[0, 2]])) + 0.02
    radii = [0.38, 0.34, 0.26, 0.62, 0.52]
    ball, car = random.uniform(0.18, 0.24), random.uniform(0.14, 0.22, 3) * np.array([1.1, 1.0, 0.8])
    rows = [
        (Shape.BOX, radii[0] * np.array([0.7, random.uniform(0.5, 1.0), 0.6]), _Path()),
        (Shape.BOX, radii[1] * np.array([0.7, random.uniform(0.5, 1.0), 0.6]), _Path()),
        (Shape.SPHERE, np.full(3, radii[2] * 0.85), _Path()),
        (Shape.SPHERE, np.full(3, ball), _rolling(random, ball, radii[3] - ball)),
        (Shape.BOX, car, _circling(random, radii[4] - float(np.linalg.norm(car[[0, 2]])))),
    ]
    things = []
    for (shape, half, path), (x, z) in zip(rows, _scatter(random, radii, inner, CLEAR_RADIUS), strict=True):
        things.append(
            _Thing(
                shape=shape,
                half=half,
                center=np.array([x, -half[1], z]),
                material=object_material(random, 2 * float(half.max())),
                yaw=random.uniform(-math.pi, math.pi),
                path=path,
            )
        )
    return things


def _rolling(random: Random, radius: float, reach: float) -> _Path:
    """Roll without slipping to and fro along a line."""
    angle = random.uniform(-math.pi, math.pi)
    direction = np.array([math.cos(angle), 0.0, math.sin(angle)])
    return _Path(
        swing=np.stack([reach * direction, np.zeros(3)]),
        swing_hz=(random.uniform(0.2, 0.35), 0.0),
        swing_phase=(random.uniform(-math.pi, math.pi), 0.0),
        axis=np.cross(_UP, direction),
        turn_swing=reach / radius,
    )


def _circling(random: Random, reach: float) -> _Path:
    """Drive around a circle, turning with it."""
    hz, phase = random.uniform(0.2, 0.35), random.uniform(-math.pi, math.pi)
    return _Path(
        swing=reach * np.array([[1.0, 0, 0], [0, 0, 1.0]]),
        swing_hz=(hz, hz),
        swing_phase=(phase, phase - math.pi / 2),
        turn_rate=-2 * math.pi * hz,
    )


def _in_air(random: Random, table: _Thing) -> list[_Thing]:
    """Let a box tumble and a ball float on loops above the table."""
    things = []
    for shape, side in ((Shape.BOX, -1.0), (Shape.SPHERE, 1.0)):
        reach = random.uniform(0.14, 0.18)
        half = np.full(3, reach) if shape is Shape.SPHERE else reach * random.uniform(0.7, 1.0, 3)
        height = 2 * table.half[1] + random.uniform(0.76, 0.86)
        axis = random.normal(size=3)
        loop = np.array([[0.0, random.uniform(0.06, 0.12), 0.25 * side], [0.15, 0.0, 0.12]])
        things.append(
            _Thing(
                shape=shape,
                half=half,
                center=np.array([side * 0.42, -height, random.uniform(-0.1, 0.1)]),
                material=object_material(random, 2 * reach),
                path=_Path(
                    swing=loop,
                    swing_hz=(random.uniform(0.25, 0.4), random.uniform(0.15, 0.3)),
                    swing_phase=(random.uniform(-math.pi, math.pi), random.uniform(-math.pi, math.pi)),
                    axis=axis / np.linalg.norm(axis),
                    turn_rate=_either_sign(random, 0.8, 1.6),
                ),
            )
        )
    return things


def _pictures(random: Random, half_room: Array) -> list[_Thing]:
    """Hang a picture on each of three walls."""
    things = []
    for axis, sign in ((0, -1.0), (2, 1.0), (0, 1.0)):
        half = np.array([0.025, random.uniform(0.3, 0.5), random.uniform(0.35, 0.7)])
        half = half if axis == 0 else half[::-1].copy()
        center = np.array([0.0, -random.uniform(1.35, 1.6), 0.0])
        center[axis] = sign * (half_room[axis] - half[axis])
        center[2 - axis] = random.uniform(-1.2, 1.2)
        material = picture_material(random, 2 * float(half.max()))
        things.append(_Thing(shape=Shape.BOX, half=half, center=center, material=material))
    return things


def _scatter(random: Random, radii: list[float], inner: float, outer: float) -> list[tuple[float, float]]:
    """Draw the middles of discs that lie in a ring and do not touch, the largest first.

    The discs fill so little of the ring that a place is found within some tries; the slack only makes sure of an end.
    """
    places: dict[int, tuple[float, float]] = {}
    tries = 0
    for index in sorted(range(len(radii)), key=lambda index: -radii[index]):
        while index not in places:
            tries += 1
            slack = 0.99 ** max(0, tries - 2000)
            reach = slack * radii[index]
            distance, angle = random.uniform(inner + reach, outer - reach), random.uniform(-math.pi, math.pi)
            x, z = distance * math.cos(angle), distance * math.sin(angle)
            if all(math.hypot(x - a, z - b) > reach + radii[i] for i, (a, b) in places.items()):
                places[index] = x, z
    return [places[index] for index in range(len(radii))]


def _either_sign(random: Random, low: float, high: float) -> float:
    return random.uniform(low, high) * (1 if random.random() < 0.5 else -1)


def _motion(things: list[_Thing]) -> Motion:
    def stacked(values: list[object]) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.asarray(value, dtype=np.float64) for value in values]))

    return Motion(
        center=stacked([thing.center for thing in things]),
        rotation=matrix_from_rotation_vector(stacked([thing.yaw * _UP for thing in things])),
        swing=stacked([thing.path.swing for thing in things]),
        swing_hz=stacked([thing.path.swing_hz for thing in things]),
        swing_phase=stacked([thing.path.swing_phase for thing in things]),
        axis=stacked([thing.path.axis for thing in things]),
        turn_rate=stacked([thing.path.turn_rate for thing in things]),
        turn_swing=stacked([thing.path.turn_swing for thing in things]),
    )
