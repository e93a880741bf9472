"""Where rays meet unit boxes, balls and capsules, and the walls of a room from inside: closed forms.

Directions need not be unit vectors: distances are counted in lengths of the direction, and `NOWHERE` or more means no
meeting. Vectors come as three coordinates, because sums over three neighbours in memory are slow. Nothing branches:
choosing between two tensors costs as much as ten additions.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.synthetic.world import Shape

Coordinates = tuple[Tensor, Tensor, Tensor]

NOWHERE = 1e30
"""Distance to what a ray does not meet."""

_STEEP = 1e18
"""Largest slope that counts: what remains finite when it is multiplied with a size."""


def slabs(half: tuple[Tensor | float, ...], origin: Coordinates, direction: Coordinates) -> tuple[Tensor, Tensor]:
    """Return where rays have entered all three slabs of a box of half sizes `half`, and where they leave the first.

    Source: Kay & Kajiya, "Ray tracing complex scenes" (1986), section 2.
    """
    entries, exits = [], []
    for size, start, along in zip(half, origin, direction, strict=True):
        inverse = along.reciprocal().clamp(-_STEEP, _STEEP)
        middle, reach = start * inverse, inverse.abs() * size
        entries.append(middle + reach)
        exits.append(reach - middle)
    entry = torch.maximum(torch.maximum(-entries[0], -entries[1]), -entries[2])
    return entry, torch.minimum(torch.minimum(exits[0], exits[1]), exits[2])


def ahead(distance: Tensor, missed_by: Tensor) -> Tensor:
    """Keep distances above zero whose rays miss by nothing."""
    found = torch.add(distance, missed_by.clamp(min=0), alpha=NOWHERE)
    return torch.nn.functional.threshold(found, 0.0, NOWHERE)


def enter_box(origin: Coordinates, direction: Coordinates) -> Float[Tensor, "K P"]:
    """Return where rays that start outside enter a box from -1 to 1."""
    entry, leave = slabs((1.0, 1.0, 1.0), origin, direction)
    return ahead(entry, entry - leave)


def enter_ball(origin: Coordinates, direction: Coordinates) -> Float[Tensor, "K P"]:
    """Return where rays that start outside enter a ball of radius 1."""
    return ahead(*_enter_round(origin, direction))


def enter_capsule(origin: Coordinates, direction: Coordinates, length: Tensor) -> Float[Tensor, "K P"]:
    """Return where rays that start outside enter a capsule along y: its cylinder, or else the cap on that side.

    A ray that starts above or below, or runs along y, has come into the endless cylinder behind its start, on the
    side that it comes from.

    Source: Quilez, "Ray capsule intersection" (2016), for the choice of the cap.
    """
    (x, y, z), (u, v, w) = origin, direction
    reach = length - 1
    side, missed_by = _enter_round((x, z), (u, w))
    height = torch.addcmul(y, side, v)
    beyond = height.abs() - reach
    cap = enter_ball((x, y - torch.copysign(reach, height), z), direction)
    return torch.minimum(ahead(side, torch.maximum(missed_by, beyond)), cap)


def _enter_round(origin: tuple[Tensor, ...], direction: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Enter a ball of radius 1, or with two coordinates an endless cylinder; above zero it was missed by that much.

    Distances are measured from the point of the ray that is closest to the centre, which keeps digits far from it.

    Source: Haines, Guenther & Akenine-Moeller, "Precision improvements for ray/sphere intersection", in Ray Tracing
    Gems (2019), chapter 7.
    """
    inverse = _dot(direction, direction).reciprocal().clamp(max=_STEEP)
    closest = -_dot(origin, direction) * inverse
    off = tuple(torch.addcmul(start, closest, along) for start, along in zip(origin, direction, strict=True))
    missed_by = _dot(off, off) - 1
    return closest - (-missed_by.clamp(max=0) * inverse).sqrt(), missed_by


def _dot(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> Tensor:
    total = first[0] * second[0]
    for a, b in zip(first[1:], second[1:], strict=True):
        total = torch.addcmul(total, a, b)
    return total


MEET: dict[Shape, Callable[[Coordinates, Coordinates, Tensor], Tensor]] = {
    Shape.BOX: lambda origin, direction, _: enter_box(origin, direction),
    Shape.ELLIPSOID: lambda origin, direction, _: enter_ball(origin, direction),
    Shape.CAPSULE: enter_capsule,
}
"""How rays meet what stands in a world, in its unit frame; the last argument is the half length of capsules."""
