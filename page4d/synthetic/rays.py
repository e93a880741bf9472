"""Bundles of neighbouring rays against worlds: which objects a bundle can meet at all, then what each ray meets."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from page4d.synthetic.intersection import MEET, NOWHERE, Coordinates, slabs
from page4d.synthetic.world import Instants, Shape

PAIRS_AT_ONCE = 2**16
"""Rays times objects in memory at once on a CPU: what its caches hold."""

_SLACK = 1e-3

_ENDLESS = 1e9
"""Distances above this come from rays that missed."""


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """K bundles of P rays, each at one of S instants. The rays of a bundle start at one point.

    Distances along rays count in lengths of their directions.
    """

    instant: Int[Tensor, " K"]
    origin: Float[Tensor, "3 K"]
    direction: Float[Tensor, "3 K P"]

    @cached_property
    def cone(self) -> tuple[Float[Tensor, "3 K"], Float[Tensor, " K"], Float[Tensor, " K"]]:
        """A cone that holds all rays: its axis, the tangent of its angle, how far along it the directions reach."""
        x, y, z = self.direction
        mean = self.direction.mean(-1)
        axis = mean * mean.square().sum(0).rsqrt()
        a, b, c = axis[..., None]
        along = torch.addcmul(torch.addcmul(x * a, y, b), z, c)
        squared = torch.addcmul(torch.addcmul(x * x, y, y), z, z)
        nearest = along.clamp(min=1e-6).square()
        spread = (squared / nearest - 1).amax(-1).clamp(min=0).sqrt()
        return axis, spread, along.amax(-1)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Which objects the rays of which bundles may meet, in the order of the bundles."""

    bundle: Int[Tensor, " L"]
    thing: Int[Tensor, " L"]
    item: Int[Tensor, " L"]
    """The object's number through all instants."""

    def __getitem__(self, chosen: Tensor) -> "Pairs":
        """Select some pairs."""
        return Pairs(**{name: value[chosen] for name, value in vars(self).items()})

    def of(self, bundles: Int[Tensor, " K"], count: int) -> "Pairs":
        """Return the pairs of some of `count` bundles; the k-th of `bundles` becomes bundle k."""
        sizes = torch.bincount(self.bundle, minlength=count)
        start = sizes.cumsum(0) - sizes
        own = sizes[bundles]
        bundle = torch.repeat_interleave(own)
        first = own.cumsum(0) - own
        chosen = start[bundles][bundle] + torch.arange(len(bundle), device=bundle.device) - first[bundle]
        return Pairs(bundle=bundle, thing=self.thing[chosen], item=self.item[chosen])


def reachable(
    world: Instants, bundles: Bundles, farthest: float = torch.inf, only: Bool[Tensor, " K"] | None = None
) -> Pairs:
    """Return which objects the rays of each bundle may meet before `farthest` lengths of their directions.

    `only` leaves out bundles.
    """
    touched = _touched(world, bundles, farthest)
    if only is not None:
        touched &= only[:, None]
    bundle, thing = touched.nonzero(as_tuple=True)
    item = bundles.instant.index_select(0, bundle) * world.shape.shape[1] + thing
    return _sifted(world, bundles, Pairs(bundle=bundle, thing=thing, item=item), farthest)


def split(
    world: Instants, bundles: Bundles, pairs: Pairs, parts: int, farthest: float = torch.inf
) -> tuple[Bundles, Pairs]:
    """Cut every bundle into parts of neighbouring rays, and sift out what the parts cannot meet."""
    smaller = Bundles(
        instant=bundles.instant.repeat_interleave(parts),
        origin=bundles.origin.repeat_interleave(parts, dim=1),
        direction=bundles.direction.reshape(3, len(bundles.instant) * parts, -1),
    )
    # Pairs stay in the order of their bundles.
    sizes = torch.bincount(pairs.bundle, minlength=len(bundles.instant))
    every = pairs.of(torch.arange(len(sizes), device=sizes.device).repeat_interleave(parts), len(sizes))
    return smaller, _sifted(world, smaller, every, farthest)


def _sifted(world: Instants, bundles: Bundles, pairs: Pairs, farthest: float) -> Pairs:
    """Keep the pairs that may meet.

    Boxes that hold the objects are widened by the width of the bundle's cone at their far end: if any ray meets an
    object, the axis of the cone meets its box.
    """
    axis, spread, longest = bundles.cone
    matrix, offset, length, unit = _look_up(world, pairs.item)
    origin = _turned(matrix, bundles.origin.index_select(1, pairs.bundle))
    direction = _turned(matrix, axis.index_select(1, pairs.bundle))
    x, y, z = (part + shift for part, shift in zip(origin, offset, strict=True))
    far = farthest * longest.index_select(0, pairs.bundle)
    reach = (torch.stack([x, y, z]) * unit).square().sum(0).sqrt() + world.radius.flatten().index_select(
        0, pairs.item
    )
    width = torch.minimum(reach, far) * spread.index_select(0, pairs.bundle) + _SLACK
    wide = width / unit
    entry, leave = slabs((1 + wide[0], length + wide[1], 1 + wide[2]), (x, y, z), direction)
    return pairs[((entry <= leave) & (leave > 0) & (entry < far + _SLACK)).nonzero()[:, 0]]


def _touched(world: Instants, bundles: Bundles, farthest: float) -> Bool[Tensor, "K N"]:
    """Return the objects whose bounding spheres touch the cones of bundles, which are equally many an instant."""
    instants = len(world.shape)
    axis, spread, longest = bundles.cone
    ray, start = (part.T.reshape(instants, -1, 3) for part in (axis, bundles.origin))
    spread, longest = (part.reshape(instants, -1, 1) for part in (spread, longest))
    center, radius = world.center.transpose(1, 2), world.radius[:, None]
    along = ray @ center - (ray * start).sum(-1, keepdim=True)
    apart = start.square().sum(-1, keepdim=True) - 2 * start @ center + world.center.square().sum(-1)[:, None]
    limit = farthest * longest + radius
    wide = radius + spread * torch.minimum(along + radius, limit)
    # The products of coordinates lose digits far away; the slack covers them.
    touched = apart * (1 - 1e-5) - along * along <= wide * wide + _SLACK
    touched &= (along > -radius) & (along < limit) & (world.shape >= Shape.BOX)[:, None]
    return touched.flatten(0, 1)


def nearest(world: Instants, bundles: Bundles, pairs: Pairs) -> tuple[Float[Tensor, "K P"], Int[Tensor, "K P"]]:
    """Return how far along each ray the first object is, `NOWHERE` if there is none, and which object (or 0)."""
    best = around(world, bundles)
    which = torch.zeros_like(best)
    for own, near in _meetings(world, bundles, pairs):
        # Each round updates every bundle at most once, with the next of its objects.
        for chosen in _rounds(own.bundle):
            rows, candidate = own.bundle.index_select(0, chosen), near.index_select(0, chosen)
            held = best.index_select(0, rows)
            closer = (held - candidate).sign().clamp(min=0)
            best.index_copy_(0, rows, torch.minimum(held, candidate))
            number = own.thing.index_select(0, chosen)[:, None].to(which.dtype)
            which.index_copy_(0, rows, torch.lerp(which.index_select(0, rows), number, closer))
    lost = best > _ENDLESS
    if bool(lost.any()):
        best[lost], which[lost] = NOWHERE, 0
    return best, which.long()


def blocked(world: Instants, bundles: Bundles, pairs: Pairs, before: float) -> Bool[Tensor, "K P"]:
    """Return which rays meet something that stands in the world before `before` lengths of their directions."""
    dark = torch.zeros(bundles.direction.shape[1:], dtype=torch.bool, device=bundles.direction.device)
    for own, near in _meetings(world, bundles, pairs):
        hit = near < before
        for chosen in _rounds(own.bundle):
            rows = own.bundle.index_select(0, chosen)
            dark.index_copy_(0, rows, dark.index_select(0, rows) | hit.index_select(0, chosen))
    return dark


def around(world: Instants, bundles: Bundles) -> Float[Tensor, "K P"]:
    """Return how far along each ray the room ends or the ground begins; both are level and turned no way."""
    first = bundles.instant
    scale = world.unit[:, 0].reciprocal().index_select(0, first).T[..., None]
    start = bundles.origin[..., None] * scale + world.offset[:, 0].index_select(0, first).T[..., None]
    direction = bundles.direction * scale
    wall = slabs((1.0, 1.0, 1.0), (start[0], start[1], start[2]), (direction[0], direction[1], direction[2]))[1]
    outdoors = world.shape[:, 0] == Shape.GROUND
    if not bool(outdoors.any()):
        return wall
    ground = (-bundles.origin[1, :, None] / direction[1]).clamp(max=NOWHERE)
    ground = torch.nn.functional.threshold(ground, 0.0, NOWHERE)
    return torch.where(outdoors.index_select(0, first)[:, None], ground, wall)


def _rounds(bundle: Int[Tensor, " L"]) -> list[Int[Tensor, " l"]]:
    """Split pairs, which are in the order of their bundles, into rounds in which each bundle occurs once at most."""
    if not len(bundle):
        return []
    place = torch.arange(len(bundle), device=bundle.device)
    fresh = torch.ones_like(bundle, dtype=torch.bool)
    fresh[1:] = bundle[1:] != bundle[:-1]
    rank = place - torch.where(fresh, place, 0).cummax(0).values
    return [(rank == turn).nonzero()[:, 0] for turn in range(int(rank.max()) + 1)]


def _meetings(world: Instants, bundles: Bundles, pairs: Pairs) -> list[tuple[Pairs, Float[Tensor, "L P"]]]:
    """Return where the rays of each pair meet, shape by shape."""
    kinds = world.shape.flatten().index_select(0, pairs.item)
    found = []
    for kind, meet in MEET.items():
        own = pairs[(kinds == kind).nonzero()[:, 0]]
        rays = bundles.direction.shape[2]
        step = max(1, PAIRS_AT_ONCE // rays) if own.item.device.type == "cpu" else max(1, len(own.item))
        parts = [bundles.direction.new_empty(0, rays)]
        for start in range(0, len(own.item), step):
            rows, item = own.bundle[start : start + step], own.item[start : start + step]
            matrix, offset, length, _ = _look_up(world, item)
            origin = _turned(matrix, bundles.origin.index_select(1, rows))
            local = tuple((part + shift)[:, None] for part, shift in zip(origin, offset, strict=True))
            turned = _turned(matrix[..., None], bundles.direction.index_select(1, rows))
            parts.append(meet((local[0], local[1], local[2]), turned, length[:, None]))
        found.append((own, torch.cat(parts)))
    return found


def _look_up(world: Instants, item: Int[Tensor, " L"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return matrices [3, 3, L], offsets [3, L], lengths [L] and units [3, L] of objects."""
    rows = world.table.index_select(0, item).T.contiguous()
    return rows[:9].reshape(3, 3, -1), rows[9:12], rows[12], rows[13:]


def _turned(matrix: Float[Tensor, "3 3 ..."], vector: Float[Tensor, "3 ..."]) -> Coordinates:
    x, y, z = vector
    return tuple(torch.addcmul(torch.addcmul(x * r[0], y, r[1]), z, r[2]) for r in matrix)  # type: ignore[return-value]
