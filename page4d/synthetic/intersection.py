"""Where rays meet rooms, boxes and spheres: closed forms in the object's own frame."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from page4d.geometry.rigid import invert_rigid
from page4d.synthetic.world import Shape, World


def nearest_hits(
    world: World,
    poses: Float[Tensor, "M N 4 4"],
    origins: Float[Tensor, "M P 3"],
    directions: Float[Tensor, "M P 3"],
) -> tuple[Float[Tensor, "M P"], Int[Tensor, "M P"]]:
    """Return how far along each ray the first object is, in lengths of the direction, and which object it is.

    Origins may have P = 1: all rays of an image then start there.
    """
    to_local = invert_rigid(poses)
    # One product of [3 N, 3] with [3, P] for all objects of an image: many small ones cost ten times as much.
    rotations, split = to_local[:, :, :3, :3].flatten(1, 2), (len(poses), len(world.shapes), 3, -1)
    turned = (rotations @ origins.transpose(1, 2).contiguous()).reshape(split)
    local_origins = turned + to_local[:, :, :3, 3:]
    local_directions = (rotations @ directions.transpose(1, 2).contiguous()).reshape(split)
    distances = nearest_distances(world.shapes, world.half_sizes, local_origins, local_directions)
    nearest, objects = distances.min(dim=1)
    return nearest, objects


def nearest_distances(
    shapes: tuple[Shape, ...],
    half_sizes: Float[Tensor, "M N 3"],
    origins: Float[Tensor, "M N 3 P"],
    directions: Float[Tensor, "M N 3 P"],
) -> Float[Tensor, "M N P"]:
    """Return the smallest positive t with `origin + t * direction` on each object; infinity where there is none.

    Origins and directions are in each object's frame and broadcast over the P rays, which come last because sums over
    three neighbours in memory are slow. A room is met from inside.
    """
    distances, start = [], 0
    for shape, meet in ((Shape.ROOM, _leave_box), (Shape.BOX, _enter_box), (Shape.SPHERE, _enter_sphere)):
        group = slice(start, start + shapes.count(shape))
        distances.append(meet(half_sizes[:, group, :, None], origins[:, group], directions[:, group]))
        start = group.stop
    return torch.cat(distances, dim=1)


def _slabs(half: Tensor, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return where rays enter and leave the three slabs of a box.

    Source: Kay & Kajiya, "Ray tracing complex scenes" (1986), section 2.
    """
    tiny = torch.finfo(direction.dtype).tiny ** 0.5
    inverse = 1 / torch.where(direction.abs() < tiny, tiny, direction)
    middle, reach = -origin * inverse, half * inverse.abs()
    return middle - reach, middle + reach


def _leave_box(half: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    return _slabs(half, origin, direction)[1].amin(-2)


def _enter_box(half: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    near, far = _slabs(half, origin, direction)
    entry = near.amax(-2)
    return torch.where((entry <= far.amin(-2)) & (entry > 0), entry, torch.inf)


def _enter_sphere(half: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """Measure from the point of the ray that is closest to the centre, which keeps digits far from it.

    Source: Haines, Guenther & Akenine-Moeller, "Precision improvements for ray/sphere intersection", in Ray Tracing
    Gems (2019), chapter 7.
    """
    squared = direction.square().sum(-2)
    closest = -(origin * direction).sum(-2) / squared
    room = half[..., 0, :].square() - (origin + closest[..., None, :] * direction).square().sum(-2)
    entry = closest - (room.clamp(min=0) / squared).sqrt()
    return torch.where((room >= 0) & (entry > 0), entry, torch.inf)
