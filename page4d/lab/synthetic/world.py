"""Synthetic worlds: descriptions in numbers, their conversion to batches of tensors, and their state over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import invert_rigid, rigid
from page4d.lab.synthetic.figure import Figures, Joint, Part
from page4d.lab.synthetic.materials import Material, Pattern, Rows, Texture
from page4d.lab.synthetic.rigs import Vector


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Motion of N objects in each of B worlds; objects without swing and turn are static.

    The centre in metres is `center + swing[0] sin_0 + swing[1] sin_1` with
    `sin_k = sin(2 pi swing_hz[k] t + swing_phase[k])`. The initial orientation is the rotation vector `rotation`; the
    object turns about `axis`, a unit vector of the world, by `turn_rate * t + turn_swing * sin_0` radians. A ball of
    radius r whose swing is r * turn_swing long rolls without slipping.
    """

    center: Float[Tensor, "B N 3"]
    rotation: Float[Tensor, "B N 3"]
    swing: Float[Tensor, "B N 2 3"]
    swing_hz: Float[Tensor, "B N 2"]
    swing_phase: Float[Tensor, "B N 2"]
    axis: Float[Tensor, "B N 3"]
    turn_rate: Float[Tensor, "B N"]
    turn_swing: Float[Tensor, "B N"]

    @property
    def moving(self) -> Bool[Tensor, "B N"]:
        """True for objects that move during the capture, turning on the spot included."""
        swings = ((self.swing != 0).any(-1) & (self.swing_hz != 0)).any(-1)
        turns = (self.turn_rate != 0) | ((self.turn_swing != 0) & (self.swing_hz[..., 0] != 0))
        return swings | turns

    def object_to_world(self, times: Float[Tensor, "B T"]) -> Float[Tensor, "B T N 4 4"]:
        """Return the pose of every object at `times` in seconds."""
        instants = times[:, :, None]
        sine = torch.sin(2 * math.pi * self.swing_hz[:, None] * instants[..., None] + self.swing_phase[:, None])
        center = self.center[:, None] + (self.swing[:, None] * sine[..., None]).sum(-2)
        angle = self.turn_rate[:, None] * instants + self.turn_swing[:, None] * sine[..., 0]
        turn = matrix_from_rotation_vector(self.axis[:, None] * angle[..., None])
        return rigid(turn @ matrix_from_rotation_vector(self.rotation)[:, None], center)


ROOM_FACES = 6
"""Number of textures of a room: the walls at -x and +x, ceiling (-y), floor (+y), the walls at -z and +z."""


class Shape(IntEnum):
    """Shape of an object; ABSENT pads worlds with fewer objects than others of the batch."""

    ABSENT = 0
    ROOM = 1
    GROUND = 2
    BOX = 3
    ELLIPSOID = 4
    CAPSULE = 5


@dataclass(frozen=True, kw_only=True)
class Lights:
    """Point light with shadows, ambient light and directional fill light of each world, in linear RGB.

    The irradiance of the point light halves at `reach` metres. Fill light falls along `fill_direction` without
    shadows. `sky` holds the colours of zenith, horizon and clouds.
    """

    position: Float[Tensor, "B 3"]
    reach: Float[Tensor, " B"]
    color: Float[Tensor, "B 3"]
    ambient: Float[Tensor, "B 3"]
    fill: Float[Tensor, "B 3"]
    fill_direction: Float[Tensor, "B 3"]
    sky: Float[Tensor, "B 3 3"]


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """B worlds of N objects in metres. Object 0 is the enclosing room, seen from inside, or open ground.

    `half_size` holds half edge lengths of boxes, semi-axes of ellipsoids, and (radius, half length with caps, radius)
    of capsules, which lie along y. The last objects are the parts of the figures. Textures 0 to 5 belong to the faces
    of the room (0 to the ground), texture i + 5 to object i.

    Raises:
        ShapeError: if the numbers of objects, motions and textures do not match.
    """

    shape: Int[Tensor, "B N"]
    half_size: Float[Tensor, "B N 3"]
    motion: Motion
    figures: Figures
    texture: Texture
    lights: Lights

    def __post_init__(self) -> None:
        batch, count = self.shape.shape
        objects, parts = self.motion.center.shape[1], self.figures.half_sizes.shape[1:3].numel()
        found = tuple(self.half_size.shape), objects + parts, self.texture.pattern.shape[1]
        if found != ((batch, count, 3), count, count - 1 + ROOM_FACES):
            raise ShapeError(
                f"{count} objects with sizes {found[0]}, {found[1]} motions and {found[2]} textures",
                "pass one of each per object",
            )

    @property
    def moving(self) -> Bool[Tensor, "B N"]:
        """True for objects that move during the capture."""
        return torch.cat([self.motion.moving, self.figures.moving.flatten(1)], dim=1)

    def object_to_world(self, times: Float[Tensor, "B T"]) -> Float[Tensor, "B T N 4 4"]:
        """Return the pose of every object at `times` in seconds."""
        parts = self.figures.part_to_world(times).flatten(2, 3)
        return torch.cat([self.motion.object_to_world(times), parts], dim=2)


EDGE = 1e-3
"""Width of the rounded edges of boxes, relative to their size."""


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Worlds at S instants, with the transforms from the world to the unit frame of every object.

    In its unit frame a box extends from -1 to 1, an ellipsoid is the sphere of radius 1, and a capsule has radius 1
    and half length `length`. `matrix` and `offset` map world points to it; `unit` is its scale in metres. Spheres of
    `radius` about `center` bound the objects. Open ground is the upper face of an infinite box.
    """

    shape: Int[Tensor, "S N"]
    matrix: Float[Tensor, "S N 3 3"]
    offset: Float[Tensor, "S N 3"]
    unit: Float[Tensor, "S N 3"]
    length: Float[Tensor, "S N"]
    center: Float[Tensor, "S N 3"]
    radius: Float[Tensor, "S N"]

    @staticmethod
    def of(world: Worlds, times: Float[Tensor, "B T"], dtype: torch.dtype) -> "Snapshots":
        """Evaluate worlds at `times`; S = B T."""
        poses = world.object_to_world(times).flatten(0, 1)
        shape, half = (part.repeat_interleave(times.shape[1], dim=0) for part in (world.shape, world.half_size))
        unit = torch.where((shape == Shape.CAPSULE)[..., None], half[..., :1], half)
        to_object = invert_rigid(poses)
        ground = (shape == Shape.GROUND)[..., None] * half.new_tensor([0.0, -1.0, 0.0])
        parts = {
            "matrix": to_object[..., :3, :3] / unit[..., None],
            "offset": to_object[..., :3, 3] / unit + ground,
            "unit": unit,
            "length": half[..., 1] / unit[..., 1],
            "center": poses[..., :3, 3],
            "radius": torch.where(shape == Shape.BOX, half.square().sum(-1).sqrt(), half.amax(-1)),
        }
        return Snapshots(shape=shape, **{name: part.to(dtype) for name, part in parts.items()})

    @cached_property
    def table(self) -> Float[Tensor, "SN 16"]:
        """Matrix, offset, length and unit of every object, one row per object."""
        parts = (self.matrix.flatten(2), self.offset, self.length[..., None], self.unit)
        return torch.cat(parts, dim=-1).flatten(0, 1)

    @cached_property
    def surface_table(self) -> Float[Tensor, "15 SN"]:
        """Matrix, offset, half extents of the core across and along y, and side of every object, one column each.

        A surface point minus the nearest point of the core is the normal in the object's frame. The side is -1 for
        objects seen from inside.
        """
        shape = self.shape.flatten()
        flat = (shape == Shape.BOX) | (shape == Shape.ROOM) | (shape == Shape.GROUND)
        across = torch.where(flat, 1 - EDGE, 0.0).to(self.matrix)
        along = torch.where(shape == Shape.CAPSULE, self.length.flatten() - 1, across)
        across = torch.where(shape == Shape.GROUND, torch.inf, across)
        side = torch.where(shape == Shape.ROOM, -1.0, 1.0).to(self.matrix)
        last = torch.stack([across, along, side])
        return torch.cat([self.table[:, :12].T, last]).contiguous()


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


def build_world(specs: Sequence[WorldSpec]) -> Worlds:
    """Convert specs to a batch of worlds in float64; shorter lists are padded with absent objects."""
    max_objects = max(len(spec.objects) for spec in specs)
    max_people = max(len(spec.people) for spec in specs)
    objects = [[spec.enclosure, *spec.objects, *[_ABSENT] * (max_objects - len(spec.objects))] for spec in specs]
    people = [[*spec.people, *[_ABSENT_PERSON] * (max_people - len(spec.people))] for spec in specs]
    figures = _figures(people)
    motion = _stacked(
        [[(item.half, item.center, item.rotation, *item.motion) for item in row] for row in objects],
        {"half": ZERO, "center": ZERO, "rotation": ZERO, **MotionSpec()._asdict()},
    )
    half = torch.cat([motion.pop("half"), figures.half_sizes.flatten(1, 2)], dim=1)
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
    # Texture seeds of figures do not depend on the number of objects, so padding changes nothing.
    numbers = [
        *range(ROOM_FACES + max_objects),
        *range(_FIRST_PART_NUMBER, _FIRST_PART_NUMBER + max_people * len(Part)),
    ]
    seed = (torch.tensor([spec.seed for spec in specs])[:, None] * 131 + 7 * torch.tensor(numbers)) % 9973
    lights = _stacked([[spec.lights for spec in specs]], specs[0].lights._asdict())
    return Worlds(
        shape=shape,
        half_size=half,
        motion=Motion(**motion),
        figures=figures,
        texture=_texture(materials, seed, shape, half),
        lights=Lights(**{name: values[0] for name, values in lights.items()}),
    )


def _stacked(rows: Sequence[Sequence[tuple[Any, ...]]], like: Mapping[str, object]) -> dict[str, Tensor]:
    """Stack B rows of N tuples of quantities: a float64 tensor [B, N, ...] for each of them.

    A quantity is a number or nested tuples of numbers; `like` has their names and an example of each. One table is
    converted, which is much faster than one per quantity.
    """
    shapes = [np.asarray(example).shape for example in like.values()]
    sizes = [math.prod(shape) for shape in shapes]
    table = torch.from_numpy(np.array([[_numbers(item) for item in row] for row in rows], dtype=np.float64))
    parts = torch.split(table.reshape(len(rows), len(rows[0]), sum(sizes)), sizes, dim=-1)
    return {
        name: part.reshape(*part.shape[:2], *shape) for name, part, shape in zip(like, parts, shapes, strict=True)
    }


def _numbers(value: tuple[Any, ...]) -> list[float]:
    """Flatten nested tuples."""
    numbers: list[float] = []
    for part in value:
        if isinstance(part, tuple):
            numbers += _numbers(part)
        else:
            numbers.append(part)
    return numbers


def _figures(people: Sequence[Sequence[Person]]) -> Figures:
    def numbers(one: Person) -> tuple[Any, ...]:
        return (*one[:6], tuple(one.joints.get(joint, _STATIC) for joint in Joint))

    example = dict(zip(Person._fields[:7], numbers(_ABSENT_PERSON), strict=True))
    found = _stacked([[numbers(one) for one in row] for row in people], example)
    joints = zip(Swing._fields, found.pop("joints").unbind(-1), strict=True)
    return Figures(**found, **{f"joint_{name}": values for name, values in joints})


def _texture(
    materials: Sequence[Sequence[Material]], seed: Int[Tensor, "B K"], shape: Tensor, half: Tensor
) -> Texture:
    """Stack materials, each with its own offset into its pattern."""
    found = _stacked(materials, _NO_MATERIAL._asdict())
    length = found["frame"].norm(dim=-1)
    offset = torch.stack([(seed * factor) % 8 for factor in (0.618, 1.414, 2.236)], dim=-1).double()
    unit = torch.where((shape == Shape.CAPSULE)[..., None], half[..., :1], half)
    return Texture(
        pattern=found.pop("pattern").long(),
        offset=torch.where(length == 0, torch.floor(offset) + 0.5, offset),
        joint=found.pop("joint_m")[..., None] * length,
        unit=torch.cat([unit[:, :1].expand(-1, ROOM_FACES, -1), unit[:, 1:]], dim=1),
        seed=seed,
        **found,
    )
