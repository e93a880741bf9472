"""The record of a synthetic world: a room, boxes and balls, how they move, what they look like, what lights them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.errors import ShapeError
from page4d.synthetic.motion import Motion
from page4d.synthetic.texture import Texture

ROOM_FACES = 6
"""Textures of the room: the walls at -x and +x, ceiling (-y), floor (+y), the walls at -z and +z."""


class Shape(IntEnum):
    """What an object is; objects of a world are in this order."""

    ROOM = 0
    BOX = 1
    SPHERE = 2


@dataclass(frozen=True, kw_only=True)
class Lights:
    """A lamp that casts shadows and a glow from everywhere that corners keep out; linear RGB.

    The lamp is a disc of `radius` metres: supersampled images get soft shadows.
    """

    position: Float[Tensor, "*worlds 3"]
    radius: Float[Tensor, "*worlds"]
    color: Float[Tensor, "*worlds 3"]
    glow: Float[Tensor, "*worlds 3"]


@dataclass(frozen=True, kw_only=True)
class World:
    """N objects in metres; object 0 is the room, seen from inside. Leading axes hold several worlds of one make-up.

    `half_sizes` are half edge lengths; a sphere has its radius three times. Textures 0 to 5 belong to the faces of
    the room, texture i + 5 to object i.

    Raises:
        ShapeError: if object 0 is not the only room, or the numbers of objects and textures do not belong together.
    """

    shapes: tuple[Shape, ...]
    half_sizes: Float[Tensor, "*worlds N 3"]
    motion: Motion
    texture: Texture
    lights: Lights

    def __post_init__(self) -> None:
        count = len(self.shapes)
        if list(self.shapes) != sorted(self.shapes) or self.shapes.count(Shape.ROOM) != 1:
            raise ShapeError(
                f"a world of shapes {[shape.name for shape in self.shapes]}", "give room, boxes, spheres"
            )
        found = self.half_sizes.shape[-2], self.motion.center.shape[-2], self.texture.pattern.shape[-1]
        if found != (count, count, count - 1 + ROOM_FACES):
            raise ShapeError(f"{count} shapes with {found} sizes, motions and textures", "give each object its own")

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading axes: () for a single world."""
        return tuple(self.half_sizes.shape[:-2])

    @property
    def moving(self) -> Bool[Tensor, "*worlds N"]:
        """True for objects that move during the capture."""
        return self.motion.moving

    def object_to_world(self, time: Float[Tensor, "*worlds"] | float) -> Float[Tensor, "*worlds N 4 4"]:
        """Return the pose of every object at `time` in seconds."""
        instants = torch.as_tensor(time, dtype=self.half_sizes.dtype, device=self.half_sizes.device)
        return self.motion.object_to_world(instants.expand(self.batch))

    def texture_index(self, objects: Int[Tensor, "*points"], face: Int[Tensor, "*points"]) -> Int[Tensor, "*points"]:
        """Return which texture covers a point of an object; `face` matters for the room only."""
        return torch.where(objects == 0, face, objects + (ROOM_FACES - 1))

    def map(self, change: Callable[[Tensor], Tensor]) -> "World":
        """Apply `change` to every tensor of the world: move it to a device, expand its axes, cast it."""
        return dataclasses.replace(
            self,
            half_sizes=change(self.half_sizes),
            motion=Motion(**{name: change(value) for name, value in vars(self.motion).items()}),
            texture=Texture(**{name: change(value) for name, value in vars(self.texture).items()}),
            lights=Lights(**{name: change(value) for name, value in vars(self.lights).items()}),
        )


def stack_worlds(worlds: Sequence[World]) -> World:
    """Put worlds with the same shapes behind a new leading axis, to render them in one call.

    Raises:
        ShapeError: if their shapes differ.
    """
    if len({world.shapes for world in worlds}) != 1:
        raise ShapeError(f"{len(worlds)} worlds whose shapes differ", "stack worlds sampled with the same options")
    fields = [iter(_tensors(world)) for world in worlds]
    return worlds[0].map(lambda _: torch.stack([next(field) for field in fields]))


def _tensors(world: World) -> list[Tensor]:
    """List the tensors of a world in the order in which `map` visits them."""
    seen: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    world.map(note)
    return seen
