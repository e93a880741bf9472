"""Closed-form ray intersections with unit boxes, spheres and capsules, and with the walls of a room from inside.

Directions need not be unit vectors: distances are multiples of the direction's length; `NO_HIT` or more is a miss.
Vectors are passed as three coordinate tensors, because reductions over an axis of three are slow, and the code is
branch-free, because `torch.where` costs about ten additions.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.synthetic.world import Shape

Coordinates = tuple[Tensor, Tensor, Tensor]

NO_HIT = 1e30
"""Distance of a ray that hits nothing."""

_STEEP = 1e18
"""Limit of reciprocal directions, so that products with sizes stay finite."""


def slabs(half: tuple[Tensor | float, ...], origin: Coordinates, direction: Coordinates) -> tuple[Tensor, Tensor]:
    """Return the distances at which rays enter the last and leave the first of the three slabs of a box.

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


def valid_hits(distance: Tensor, missed_by: Tensor) -> Tensor:
    """Return positive distances where `missed_by` is at most 0, else `NO_HIT` or more."""
    found = torch.add(distance, missed_by.clamp(min=0), alpha=NO_HIT)
    return torch.nn.functional.threshold(found, 0.0, NO_HIT)


def intersect_box(origin: Coordinates, direction: Coordinates) -> Float[Tensor, "K P"]:
    """Intersect rays that start outside with the box from -1 to 1."""
    entry, leave = slabs((1.0, 1.0, 1.0), origin, direction)
    return valid_hits(entry, entry - leave)


def intersect_sphere(origin: Coordinates, direction: Coordinates) -> Float[Tensor, "K P"]:
    """Intersect rays that start outside with the sphere of radius 1."""
    return valid_hits(*_intersect_round(origin, direction))


def intersect_capsule(origin: Coordinates, direction: Coordinates, length: Tensor) -> Float[Tensor, "K P"]:
    """Intersect rays that start outside with a capsule along y: its cylinder, else the cap on the same side.

    A ray that starts above or below the capsule, or is parallel to y, enters the infinite cylinder behind its origin,
    on the side that it comes from.

    Source: Quilez, "Ray capsule intersection" (2016), for the choice of the cap.
    """
    (x, y, z), (u, v, w) = origin, direction
    reach = length - 1
    side, missed_by = _intersect_round((x, z), (u, w))
    height = torch.addcmul(y, side, v)
    beyond = height.abs() - reach
    cap = intersect_sphere((x, y - torch.copysign(reach, height), z), direction)
    return torch.minimum(valid_hits(side, torch.maximum(missed_by, beyond)), cap)


def _intersect_round(origin: tuple[Tensor, ...], direction: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Return entry distances into a sphere of radius 1, or an infinite cylinder for two coordinates, and miss values.

    The miss value is the squared distance of the ray from the centre minus 1. Distances are computed from the point
    of the ray closest to the centre, which preserves precision for distant origins.

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


INTERSECT: dict[Shape, Callable[[Coordinates, Coordinates, Tensor], Tensor]] = {
    Shape.BOX: lambda origin, direction, _: intersect_box(origin, direction),
    Shape.ELLIPSOID: lambda origin, direction, _: intersect_sphere(origin, direction),
    Shape.CAPSULE: intersect_capsule,
}
"""Intersection by shape in the object's unit frame; the last argument is the half length of capsules."""
