"""Ray casting in packets: conservative culling of objects per packet, then exact closed-form intersections."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.lab.synthetic.world import Shape, Snapshots

_SLACK = 1e-3
"""Margin in metres that makes culling conservative under rounding."""

_MISS = 1e9
"""Distance above which a ray has hit nothing."""

Coordinates = tuple[Tensor, Tensor, Tensor]

NO_HIT = 1e30
"""Distance of a ray that hits nothing."""

_STEEP = 1e18
"""Limit of reciprocal directions, so that products with sizes stay finite."""


@dataclass(frozen=True, kw_only=True)
class RayPackets:
    """K packets of P rays with a common origin, each at one of S instants.

    Distances along a ray are multiples of its direction's length.
    """

    instant: Int[Tensor, " K"]
    origin: Float[Tensor, "3 K"]
    direction: Float[Tensor, "3 K P"]

    @cached_property
    def cone(self) -> tuple[Float[Tensor, "3 K"], Float[Tensor, " K"], Float[Tensor, " K"]]:
        """Bounding cone: axis, tangent of the half angle, and length of the longest direction along the axis."""
        x, y, z = self.direction
        mean = self.direction.mean(-1)
        axis = mean * mean.square().sum(0).rsqrt()
        a, b, c = axis[..., None]
        along = torch.addcmul(torch.addcmul(x * a, y, b), z, c)
        across = (self.direction - axis[..., None] * along).square().sum(0)
        spread = (across / along.clamp(min=1e-6).square()).amax(-1).sqrt()
        return axis, spread, along.amax(-1)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Pairs of a packet and an object that its rays may hit, sorted by packet.

    `instance` is the index of the object over all instants.
    """

    packet: Int[Tensor, " L"]
    object_index: Int[Tensor, " L"]
    instance: Int[Tensor, " L"]

    def __getitem__(self, chosen: Tensor) -> "Candidates":
        return Candidates(**{name: value[chosen] for name, value in vars(self).items()})

    def for_packets(self, packets: Int[Tensor, " K"], count: int) -> "Candidates":
        """Return the pairs of `packets`, a selection of `count` packets; the k-th selected becomes packet k."""
        sizes = torch.bincount(self.packet, minlength=count)
        start = sizes.cumsum(0) - sizes
        own = sizes[packets]
        packet = torch.repeat_interleave(own)
        first = own.cumsum(0) - own
        chosen = start[packets][packet] + torch.arange(len(packet), device=packet.device) - first[packet]
        return Candidates(packet=packet, object_index=self.object_index[chosen], instance=self.instance[chosen])


def cull(
    snapshots: Snapshots,
    packets: RayPackets,
    max_distance: float = torch.inf,
    active: Bool[Tensor, " K"] | None = None,
) -> Candidates:
    """Return the objects that the rays of each packet may hit within `max_distance`; a superset of the actual hits.

    Only packets where `active` is True get candidates.
    """
    touched = _cull_spheres(snapshots, packets, max_distance)
    if active is not None:
        touched &= active[:, None]
    packet, object_index = touched.nonzero(as_tuple=True)
    instance = packets.instant.index_select(0, packet) * snapshots.shape.shape[1] + object_index
    candidates = Candidates(packet=packet, object_index=object_index, instance=instance)
    return _cull_boxes(snapshots, packets, candidates, max_distance)


def closest_hit(
    snapshots: Snapshots, packets: RayPackets, candidates: Candidates
) -> tuple[Float[Tensor, "K P"], Int[Tensor, "K P"]]:
    """Return the distance to the first hit of each ray, `NO_HIT` without one, and the index of the object (or 0)."""
    wall = background(snapshots, packets)
    own, near = _intersections(snapshots, packets, candidates)
    rows = own.packet[:, None].expand_as(near)
    best = wall.scatter_reduce(0, rows, near, "amin")
    is_best = (near == best.index_select(0, own.packet)) & (near < wall.index_select(0, own.packet))
    place = torch.arange(len(near), dtype=torch.int32, device=near.device)[:, None].where(is_best, len(near))
    first = torch.full_like(best, len(near), dtype=torch.int32).scatter_reduce(0, rows, place, "amin")
    which = torch.nn.functional.pad(own.object_index, (0, 1))[first]
    lost = best > _MISS
    return best.masked_fill(lost, NO_HIT), which.masked_fill(lost, 0)


def occluded(snapshots: Snapshots, packets: RayPackets, candidates: Candidates) -> Bool[Tensor, "K P"]:
    """Return which rays hit an object, other than room and ground, closer than the length of their directions."""
    own, near = _intersections(snapshots, packets, candidates)
    end = torch.ones_like(packets.direction[0])
    return end.scatter_reduce(0, own.packet[:, None].expand_as(near), near, "amin") < 1


def background(snapshots: Snapshots, packets: RayPackets) -> Float[Tensor, "K P"]:
    """Return the distance along each ray to the walls of the room or to the ground; both are axis-aligned."""
    first = packets.instant
    scale = snapshots.unit[:, 0].reciprocal().index_select(0, first).T[..., None]
    start = packets.origin[..., None] * scale + snapshots.offset[:, 0].index_select(0, first).T[..., None]
    direction = packets.direction * scale
    wall = slabs((1.0, 1.0, 1.0), (start[0], start[1], start[2]), (direction[0], direction[1], direction[2]))[1]
    outdoors = snapshots.shape[:, 0] == Shape.GROUND
    if not bool(outdoors.any()):
        return wall
    ground = (-packets.origin[1, :, None] / direction[1]).clamp(max=NO_HIT)
    ground = torch.nn.functional.threshold(ground, 0.0, NO_HIT)
    return torch.where(outdoors.index_select(0, first)[:, None], ground, wall)


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


INTERSECT: dict[Shape, Callable[[Coordinates, Coordinates, Tensor], Tensor]] = {
    Shape.BOX: lambda origin, direction, _: intersect_box(origin, direction),
    Shape.ELLIPSOID: lambda origin, direction, _: intersect_sphere(origin, direction),
    Shape.CAPSULE: intersect_capsule,
}
"""Intersection by shape in the object's unit frame; the last argument is the half length of capsules."""


def _cull_boxes(snapshots: Snapshots, packets: RayPackets, candidates: Candidates, max_distance: float) -> Candidates:
    """Keep the candidates whose bounding boxes the packets' cones may hit.

    Every box is enlarged by the width of the cone at the box's far end: if any ray hits the object, the axis of the
    cone hits the enlarged box.
    """
    axis, spread, longest = packets.cone
    matrix, offset, length, unit = _object_transforms(snapshots, candidates.instance)
    origin = _transform(matrix, packets.origin.index_select(1, candidates.packet))
    direction = _transform(matrix, axis.index_select(1, candidates.packet))
    x, y, z = (part + shift for part, shift in zip(origin, offset, strict=True))
    far = max_distance * longest.index_select(0, candidates.packet)
    reach = (torch.stack([x, y, z]) * unit).square().sum(0).sqrt() + snapshots.radius.flatten().index_select(
        0, candidates.instance
    )
    width = torch.minimum(reach, far) * spread.index_select(0, candidates.packet) + _SLACK
    wide = width / unit
    entry, leave = slabs((1 + wide[0], length + wide[1], 1 + wide[2]), (x, y, z), direction)
    return candidates[((entry <= leave) & (leave > 0) & (entry < far + _SLACK)).nonzero()[:, 0]]


def _cull_spheres(snapshots: Snapshots, packets: RayPackets, max_distance: float) -> Bool[Tensor, "K N"]:
    """Return which bounding spheres overlap the cones of packets."""
    axis, spread, longest = (part[..., None] for part in packets.cone)
    radius = snapshots.radius.index_select(0, packets.instant)
    center = snapshots.center.movedim(-1, 0).index_select(1, packets.instant) - packets.origin[..., None]
    along = (center * axis).sum(0)
    limit = max_distance * longest + radius
    wide = radius + spread * torch.minimum(along + radius, limit)
    # Cancellation grows with the distance; the relative and absolute slack cover it.
    touched = center.square().sum(0) * (1 - 1e-5) - along * along <= wide * wide + _SLACK
    return touched & (along > -radius) & (along < limit) & (snapshots.shape >= Shape.BOX)[packets.instant]


def _intersections(
    snapshots: Snapshots, packets: RayPackets, candidates: Candidates
) -> tuple[Candidates, Float[Tensor, "L P"]]:
    """Return the candidates grouped by shape, and the hit distances of their rays."""
    kinds = snapshots.shape.flatten().index_select(0, candidates.instance)
    groups, near = [], []
    for kind, intersect in INTERSECT.items():
        groups.append((kinds == kind).nonzero()[:, 0])
        own = candidates[groups[-1]]
        matrix, offset, length, _ = _object_transforms(snapshots, own.instance)
        origin = _transform(matrix, packets.origin.index_select(1, own.packet))
        x, y, z = ((part + shift)[:, None] for part, shift in zip(origin, offset, strict=True))
        direction = _transform(matrix[..., None], packets.direction.index_select(1, own.packet))
        near.append(intersect((x, y, z), direction, length[:, None]))
    return candidates[torch.cat(groups)], torch.cat(near)


def _object_transforms(snapshots: Snapshots, instance: Int[Tensor, " L"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return matrices [3, 3, L], offsets [3, L], lengths [L] and units [3, L] of object instances."""
    rows = snapshots.table.index_select(0, instance).T.contiguous()
    return rows[:9].reshape(3, 3, -1), rows[9:12], rows[12], rows[13:]


def _transform(matrix: Float[Tensor, "3 3 ..."], vector: Float[Tensor, "3 ..."]) -> Coordinates:
    x, y, z = vector
    return tuple(torch.addcmul(torch.addcmul(x * r[0], y, r[1]), z, r[2]) for r in matrix)  # type: ignore[return-value]


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
