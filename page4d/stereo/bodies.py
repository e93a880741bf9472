"""Depth of people from their joints in space: bodies of capsules of average build."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from page4d.geometry.camera import Cameras, camera_rays
from page4d.geometry.transforms import transform_points
from page4d.stereo.regions import Region

_EARS, SHOULDERS, HIPS = [7, 8], [11, 12], [23, 24]
"""Landmarks of BlazePose."""

_SHOULDER_WIDTH = 0.68
"""In lengths of the trunk, from the middle of the shoulders to that of the hips: 0.36 of 0.52 m."""

_LONGEST_NECK = 0.7
"""Distance of the ears from the middle of the shoulders above which they are wrong."""

_PARTS: tuple[tuple[list[int], list[int], float, float, float], ...] = (
    (_EARS, _EARS, 0.21, 0.21, 0.0),
    (_EARS, SHOULDERS, 0.11, 0.13, _LONGEST_NECK),
    (SHOULDERS, HIPS, 0.23, 0.23, 1.01),
    ([11], [12], 0.11, 0.11, 1.4),
    ([23], [24], 0.19, 0.19, 0.8),
    *(
        ([first + side], [joint + side for joint in last], begin, end, longest)
        for first, last, begin, end, longest in (
            (11, [23], 0.11, 0.19, 1.3),
            (11, [13], 0.10, 0.09, 0.9),
            (13, [15], 0.09, 0.05, 0.8),
            (15, [17, 19], 0.06, 0.04, 0.5),
            (23, [25], 0.17, 0.12, 1.2),
            (25, [27], 0.12, 0.07, 1.2),
            (27, [29], 0.07, 0.06, 0.5),
            (29, [31], 0.07, 0.05, 0.7),
        )
        for side in (0, 1)
    ),
)
"""Landmarks of BlazePose at both ends of a part (the mean of several), its radii there, and the length above which
its joints are wrong, one and a half times the usual one, all in lengths of the trunk.

Source: circumferences of adults of average build, NASA-STD-3000, "Man-Systems Integration Standards", 1995, 3.3.
"""

_SURFACE = 0.06
"""Standard deviation of the surface of a body, in lengths of the trunk: 3 cm, clothes included."""

_REACH = 1.6
"""Distance of a ray from the axis of a part, in radii, up to which it shows that part: clothes, hair, and errors."""

_CORE = 0.5
"""Distance up to which a body that moves covers what is behind it, where a mask of motion misses it."""

_IN_FRONT = 0.15
"""Difference in log depth from which it is in front of a background: people who stand still belong to that."""

_MOVING = 0.5
"""Share of the core of a body, over all views, that masks of motion must mark if the body is to complete them: people
who stand still are left to the background, as are bodies of joints of two people."""


class BodyMaps(NamedTuple):
    """Bodies as V cameras see them: log depth, its standard deviation, distance from the axis of a part in radii.

    The deviation and the distance are infinite where nobody is near, and the number of the `person` is -1.
    """

    log_depth: Float[Tensor, "V H W"]
    sigma: Float[Tensor, "V H W"]
    distance: Float[Tensor, "V H W"]
    person: Int64[Tensor, "V H W"]

    def covers(
        self, log_depth: Float[Tensor, "V H W"], known: Bool[Tensor, "V H W"], moving: Bool[Tensor, "V H W"]
    ) -> Bool[Tensor, "V H W"]:
        """Return the pixels of bodies that move by masks of motion and are in front of a background, where known."""
        core = self.distance < _CORE
        number = int(self.person.max()) + 1
        total, marked = (self.person[pixels].bincount(minlength=number) for pixels in (core, core & moving))
        moves = torch.cat([marked >= _MOVING * total, core.new_zeros(1)])  # the last one is nobody
        return core & moves[self.person] & (~known | (self.log_depth < log_depth - _IN_FRONT))


def body_maps(people: Float[Tensor, "P J 3"], cameras: Cameras, size: tuple[int, int]) -> BodyMaps:
    """Return how cameras [V] see people of these joints (landmarks of BlazePose) in the world; NaN where unknown.

    People without known shoulders, without hips or a plausible width of shoulders, or within the length of a trunk
    from a camera are left out.
    """
    none = cameras.intrinsics.new_full((len(cameras.intrinsics), *size), torch.inf, dtype=torch.float32)
    maps = BodyMaps(torch.zeros_like(none), none, none.clone(), torch.full_like(none, -1, dtype=torch.int64))
    for view, intrinsics in enumerate(cameras.intrinsics):
        rays = camera_rays(intrinsics, size)
        nearest = torch.full_like(rays[..., 0], torch.inf)
        placed = transform_points(cameras.world_to_camera[view], people.to(cameras.world_to_camera))
        for person, joints in enumerate(placed):
            trunk = _trunk(joints)
            if trunk is None or (box := _box(joints, intrinsics, trunk, size)) is None:
                continue
            norm = rays[box].norm(dim=-1)
            along, distance = _hit(joints, rays[box] / norm[..., None], trunk)
            shown = (distance < _REACH) & (along < nearest[box])
            nearest[box] = torch.where(shown, along, nearest[box])
            sigma = _SURFACE * trunk * (1 + 2 * (distance - 1).clamp(min=0)) / along
            number = torch.full_like(distance, person).long()
            for target, values in zip(maps, ((along / norm).log(), sigma, distance, number), strict=True):
                target[view][box] = torch.where(shown, values, target[view][box]).to(target)
    return maps


def _box(
    joints: Float[Tensor, "J 3"], intrinsics: Float[Tensor, "3 3"], trunk: float, size: tuple[int, int]
) -> Region | None:
    """Return the part of a picture that may show a body; None if that is nearer than a trunk, or nothing shows it."""
    if not float(_mean(joints, SHOULDERS)[2]) > trunk:
        return None
    points = joints[joints.isfinite().all(-1)]
    if float(points[:, 2].min()) < trunk:
        return slice(0, size[0]), slice(0, size[1])
    margin = 2 * _REACH * max(max(part[2:4]) for part in _PARTS) * trunk
    corners = torch.cat([points + margin * points.new_tensor([x, y, 0]) for x in (-1, 1) for y in (-1, 1)])
    pixels = (corners @ intrinsics.T)[:, :2] / corners[:, 2:]
    (left, top), (right, bottom) = pixels.amin(0).floor().tolist(), pixels.amax(0).ceil().tolist()
    rows, columns = (
        slice(max(0, int(low)), min(side, int(high)))
        for low, high, side in ((top, bottom, size[0]), (left, right, size[1]))
    )
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def _trunk(joints: Float[Tensor, "J 3"]) -> float | None:
    """Return the length of the trunk; None of joints that are no body."""
    width = float((joints[SHOULDERS[0]] - joints[SHOULDERS[1]]).norm())
    length = float((_mean(joints, SHOULDERS) - _mean(joints, HIPS)).norm())
    trunk = width / _SHOULDER_WIDTH if length != length else length
    return trunk if 0.5 < width / (_SHOULDER_WIDTH * trunk) < 2 else None


def _mean(joints: Float[Tensor, "J 3"], chosen: list[int]) -> Float[Tensor, " 3"]:
    return joints[chosen].mean(0)


def _hit(
    joints: Float[Tensor, "J 3"], directions: Float[Tensor, "H W 3"], trunk: float
) -> tuple[Float[Tensor, "H W"], Float[Tensor, "H W"]]:
    """Return the distance along rays from the origin to a body, and that from the axis of its nearest part in radii.

    Inside of a part that is the first surface, elsewhere the point nearest to the nearest part.
    """
    surface, along, nearest = (torch.full_like(directions[..., 0], torch.inf) for _ in range(3))
    if not float((_mean(joints, _EARS) - _mean(joints, SHOULDERS)).norm()) < _LONGEST_NECK * trunk:
        joints = joints.index_fill(0, joints.new_tensor(_EARS, dtype=torch.long), torch.nan)
    for first, last, begin, end_radius, longest in _PARTS:
        start, end = _mean(joints, first), _mean(joints, last)
        axis = end - start
        if not float(axis.norm()) <= longest * trunk or min(float(start[2]), float(end[2])) <= 0:
            continue
        by_axis, by_start = directions @ axis, directions @ start
        across = (axis @ axis - by_axis.square()).clamp(min=1e-9 * trunk**2)
        place = ((by_axis * by_start - axis @ start) / across).clamp(0, 1)
        reached = by_start + place * by_axis
        squared = start @ start + 2 * place * (axis @ start) + place.square() * (axis @ axis) - reached.square()
        radius = trunk * (begin + (end_radius - begin) * place)
        distance = squared.clamp(min=0).sqrt() / radius
        inside = reached - radius * (1 - distance.square()).clamp(min=0).sqrt()
        distance = torch.where(inside > 0, distance, torch.inf)  # others contain the camera, or are behind it
        surface = torch.where((distance < 1) & (inside < surface), inside, surface)
        along = torch.where(distance < nearest, reached, along)
        nearest = torch.minimum(distance, nearest)
    return torch.where(surface.isfinite(), surface, along), nearest
