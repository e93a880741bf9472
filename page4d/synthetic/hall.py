"""Fittings of a large hall: what carries the cameras, posts, columns, furniture, beams and ducts."""

import math
from itertools import pairwise

from page4d.synthetic.camera_rigs import RigSpec
from page4d.synthetic.furniture import AT_WALLS, FREE_STANDING, box, extent, side_table
from page4d.synthetic.materials import Material, plain_material
from page4d.synthetic.placement import FloorPlan, placed
from page4d.synthetic.rng import Rng
from page4d.synthetic.world import Shape
from page4d.synthetic.world_spec import ObjectSpec


def fittings(rng: Rng, floor_plan: FloorPlan, hall: ObjectSpec, rig: RigSpec) -> list[ObjectSpec]:
    """Draw what stands in a hall and hangs from its ceiling, clear of cameras and of their view of the volume."""
    height = 2 * hall.half[1]
    near = rig.volume.radius + 0.4
    objects = _under_the_ceiling(rng, hall, max(-camera.center[1] + camera.clearance for camera in rig.cameras))
    if rng.chance(0.7):
        objects += _camera_mounts(rng, rig, height - 0.1)
    for _ in range(rng.integer(4)):
        objects += _standing(
            rng, floor_plan, _post(rng, min(height - 0.1, rng.uniform(1.4, 3.5))), (near, near + 2.5)
        )
    for _ in range(rng.integer(4)):
        thick = rng.uniform(0.1, 0.35)
        column = [box((-thick, 0, -thick), (thick, height, thick), plain_material(rng, 0.3, 0.9, 0.6))]
        objects += _standing(rng, floor_plan, column, (near + 1.0, near + 9.0))
    for _ in range(2 + rng.integer(4)):
        made = side_table(rng) if rng.chance(0.3) else rng.choice((*FREE_STANDING, *AT_WALLS))(rng)
        objects += _standing(rng, floor_plan, made, (near, near + 7.0))
    return objects


def _camera_mounts(rng: Rng, rig: RigSpec, highest: float) -> list[ObjectSpec]:
    """Draw what carries the cameras behind them, which the others see: posts with housings, and bars between them.

    Cameras that sway, or look down too steeply for a post behind them, have none.
    """
    metal, housing = plain_material(rng, 0.04, 0.8, 1.0), plain_material(rng, 0.04, 0.85, 1.0)
    thick, behind, rise = rng.uniform(0.012, 0.04), rng.uniform(0.3, 0.45), rng.uniform(0.0, 0.8)
    objects: list[ObjectSpec] = []
    feet: list[tuple[float, float]] = []
    for camera in rig.cameras:
        x, y, z = (center - aim for center, aim in zip(camera.center, rig.volume.center, strict=True))
        level, height = math.hypot(x, z), -camera.center[1]
        if math.hypot(*camera.sway) > 0 or level < abs(y):
            continue
        foot = (camera.center[0] + behind * x / level, camera.center[2] + behind * z / level)
        objects.append(_upright(foot, 0.0, min(height + rise, highest), thick, metal))
        objects.append(_upright(foot, height - 0.05, height + 0.05, rng.uniform(0.04, 0.08), housing))
        feet.append(foot)
    if rng.chance(0.4):
        top = min(max(-camera.center[1] for camera in rig.cameras) + rise, highest)
        objects += [_bar(one, other, top, thick, metal) for one, other in pairwise(feet)]
    return objects


def _upright(foot: tuple[float, float], low: float, high: float, thick: float, material: Material) -> ObjectSpec:
    """Make an upright box between two heights."""
    x, z = foot
    return box((x - thick, low, z - thick), (x + thick, high, z + thick), material)


def _bar(
    one: tuple[float, float], other: tuple[float, float], height: float, thick: float, material: Material
) -> ObjectSpec:
    """Make a horizontal bar between two posts."""
    (a, b), (c, d) = one, other
    half = math.hypot(c - a, d - b) / 2
    made = box((-half, height - thick, -thick), (half, height + thick, thick), material)
    center = ((a + c) / 2, made.center[1], (b + d) / 2)
    return made._replace(center=center, rotation=(0.0, math.atan2(b - d, c - a), 0.0))


def _standing(
    rng: Rng, floor_plan: FloorPlan, made: list[ObjectSpec], reach: tuple[float, float]
) -> list[ObjectSpec]:
    place = floor_plan.find(rng, extent(made), tries=6, reach=reach)
    return [] if place is None else placed(made, *place)


def _post(rng: Rng, tall: float) -> list[ObjectSpec]:
    """Make a post, with or without a lamp, a camera or a bar at its top."""
    metal, thick = plain_material(rng, 0.05, 0.8, 1.0), rng.uniform(0.015, 0.04)
    objects = [box((-thick, 0, -thick), (thick, tall, thick), metal)]
    kind = rng.integer(3)
    if kind == 0:
        objects.append(box((-0.12, tall - 0.16, -0.08), (0.12, tall, 0.08), plain_material(rng, 0.05, 0.9, 1.0)))
    elif kind == 1:
        reach = rng.uniform(0.3, 0.9)
        objects.append(box((-reach, tall - 2 * thick, -thick), (reach, tall, thick), metal))
    return objects


def _under_the_ceiling(rng: Rng, hall: ObjectSpec, free_below: float) -> list[ObjectSpec]:
    """Draw parallel beams and a duct between the ceiling and the height in metres that cameras need."""
    height, room = 2 * hall.half[1], 2 * hall.half[1] - free_below
    objects: list[ObjectSpec] = []
    along = rng.integer(2)
    wide, length = hall.half[2 - 2 * along], hall.half[2 * along]
    middle = (hall.center[0], hall.center[2])
    if rng.chance(0.6):
        material, deep = plain_material(rng, 0.3, 0.95, 0.8), min(rng.uniform(0.1, 0.5), 0.5 * room)
        count = 2 + rng.integer(4)
        for index in range(count):
            across = middle[1 - along] + wide * ((2 * index + 1) / count - 1)
            low, high = [across - 0.1, middle[along] - length], [across + 0.1, middle[along] + length]
            if along == 0:
                low.reverse()
                high.reverse()
            objects.append(box((low[0], height - deep, low[1]), (high[0], height, high[1]), material))
    radius = min(rng.uniform(0.1, 0.4), 0.25 * room)
    if rng.chance(0.4) and length > 2 * radius:
        across = middle[1 - along] + wide * rng.uniform(-0.7, 0.7)
        place = (middle[0], across) if along == 0 else (across, middle[1])
        lying = (0.0, 0.0, math.pi / 2) if along == 0 else (math.pi / 2, 0.0, 0.0)
        half = (radius, length, radius)
        center = (place[0], -(height - 1.2 * radius), place[1])
        objects.append(ObjectSpec(Shape.CAPSULE, half, center, plain_material(rng, 0.4, 0.95, 0.4), lying))
    return objects
