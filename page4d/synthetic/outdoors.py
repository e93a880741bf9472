"""Random outdoor surroundings: ground, houses, walls, trees, rocks and hills around the volume, sun and sky."""

import math

from page4d.synthetic.camera_rigs import RigSpec
from page4d.synthetic.furniture import box, boxes, extent, tree
from page4d.synthetic.materials import Material, color, near, object_material, plain_material
from page4d.synthetic.placement import FloorPlan, placed
from page4d.synthetic.rng import Rng, Vector
from page4d.synthetic.texture import Pattern
from page4d.synthetic.world import Shape
from page4d.synthetic.world_spec import LightSpec, ObjectSpec

SUN_DISTANCE = 150.0


def ground(rng: Rng) -> ObjectSpec:
    """Draw ground of grass, sand, asphalt or paving."""
    kind = rng.integer(4)
    material = plain_material(rng, 0.25, 0.65, 0.12)._replace(strength=0.12, fine=0.2)
    gray = sum(material.palette[0]) / 3
    first, second, third = (_toward(gray, one) for one in material.palette)
    material = material._replace(palette=(first, second, third))
    if kind == 0:
        tone = rng.uniform(0.08, 0.25)
        palette = ((tone * 0.8, tone, tone * 0.4), (tone * 0.9, tone * 0.8, tone * 0.4), material.palette[2])
        material = material._replace(palette=palette)
    elif kind == 1:
        cells, base = rng.uniform(0.8, 3.0), color(rng, 0.3, 0.7, 0.3)
        frame = ((cells, 0.0, 0.0), (0.0, 0.0, cells * rng.uniform(0.5, 1.0)), (0.0, 0.0, 0.0))
        palette = (base, near(rng, base, 0.4), near(rng, base, 0.8))
        material = Material(Pattern.CELLS, palette, frame, (0.15,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.02)
    return ObjectSpec(Shape.GROUND, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), material)


def _toward(gray: float, tint: Vector) -> Vector:
    """Halve the saturation of a colour."""
    return (0.5 * (gray + tint[0]), 0.5 * (gray + tint[1]), 0.5 * (gray + tint[2]))


def sunlight(rng: Rng) -> LightSpec:
    """Draw a sun at 15 to 70 degrees of elevation, or an overcast sky."""
    cloudy = rng.chance(0.3)
    height, angle = math.radians(rng.uniform(15, 70)), rng.angle()
    level = SUN_DISTANCE * math.cos(height)
    power = rng.uniform(0.15, 0.4) if cloudy else rng.uniform(1.0, 1.7)
    ambient = rng.uniform(0.6, 0.9) if cloudy else rng.uniform(0.3, 0.5)
    warm = rng.uniform(0.0, 0.12)
    zenith: Vector = (0.55, 0.6, 0.66) if cloudy else (0.16, 0.32, 0.62)
    horizon: Vector = (0.75, 0.76, 0.78) if cloudy else (0.55, 0.68, 0.85)
    bright = rng.uniform(0.8, 1.25)
    return LightSpec(
        position=(level * math.cos(angle), -SUN_DISTANCE * math.sin(height), level * math.sin(angle)),
        reach=1e6,
        color=(power, power * (1 - warm), power * (1 - 2 * warm)),
        ambient=(ambient * 0.92, ambient * 0.97, ambient * 1.05),
        fill=(0.05, 0.05, 0.05),
        fill_direction=(-math.cos(angle), 0.0, -math.sin(angle)),
        sky=tuple(tuple(part * bright for part in one) for one in (zenith, horizon, (0.95, 0.95, 0.97))),  # type: ignore[arg-type]
    )


def surroundings(rng: Rng, floor_plan: FloorPlan, rig: RigSpec) -> list[ObjectSpec]:
    """Draw objects near the volume, behind the cameras, and hills at the horizon."""
    widest = max(math.hypot(camera.center[0], camera.center[2]) + camera.clearance for camera in rig.cameras)
    objects: list[ObjectSpec] = []
    for _ in range(3 + rng.integer(4)):
        made = rng.choice((boxes, _rock, _wall, tree, _bench))(rng)
        place = floor_plan.find(rng, extent(made), tries=8, reach=(rig.volume.radius + 0.5, widest + 4))
        if place is not None:
            objects += placed(made, *place)
    for _ in range(4 + rng.integer(4)):
        made = rng.choice((_house, _house, tree, tree, _wall))(rng)
        half = extent(made)
        size = math.hypot(half[0], half[2])
        place = floor_plan.find(rng, half, tries=8, reach=(widest + size + 1.0, widest + size + 18))
        if place is not None:
            objects += placed(made, *place)
    for _ in range(rng.integer(4)):
        wide, high, angle = rng.uniform(8, 22), rng.uniform(2, 8), rng.angle()
        away = rng.uniform(35, 48)
        center = (away * math.cos(angle), 0.0, away * math.sin(angle))
        hill = plain_material(rng, 0.2, 0.5, 0.03)._replace(fine=0.2)
        objects.append(ObjectSpec(Shape.ELLIPSOID, (wide, high, wide), center, hill))
    return objects


def _house(rng: Rng) -> list[ObjectSpec]:
    wide, deep, tall = rng.uniform(1.5, 5), rng.uniform(1.5, 4), rng.uniform(2.5, 9)
    wall = color(rng, 0.4, 0.85)
    window = color(rng, 0.1, 0.4)
    rows = ((rng.uniform(0.25, 0.5), 0.0, rng.uniform(0.1, 0.2)), (0.0, rng.uniform(0.3, 0.45), 0.0), (0.0,) * 3)
    panes = Material(
        Pattern.CELLS, (window, window, wall), rows, (0.2,) * 3, 0.12, 0.1, joint_m=rng.uniform(1.0, 1.8)
    )
    front = panes if rng.chance(0.6) else object_material(rng, 3.0)
    roof = plain_material(rng, 0.15, 0.6, 0.5)
    return [
        box((-wide, 0, -deep), (wide, tall, deep), front),
        box((-wide - 0.2, tall, -deep - 0.2), (wide + 0.2, tall + 0.25, deep + 0.2), roof),
    ]


def _wall(rng: Rng) -> list[ObjectSpec]:
    wide, tall = rng.uniform(0.8, 3.5), rng.uniform(0.5, 1.8)
    return [box((-wide, 0, -0.12), (wide, tall, 0.12), object_material(rng, 1.5))]


def _bench(rng: Rng) -> list[ObjectSpec]:
    wood = object_material(rng, 1.0)
    return [
        box((-0.75, 0.4, -0.2), (0.75, 0.46, 0.2), wood),
        box((-0.6, 0, -0.15), (-0.5, 0.4, 0.15), wood),
        box((0.5, 0, -0.15), (0.6, 0.4, 0.15), wood),
    ]


def _rock(rng: Rng) -> list[ObjectSpec]:
    size = rng.log_uniform(0.15, 0.8)
    half = (size, size * rng.uniform(0.4, 0.9), size * rng.uniform(0.6, 1.0))
    material = plain_material(rng, 0.2, 0.6, 0.8)._replace(strength=0.2, fine=0.2)
    return [ObjectSpec(Shape.ELLIPSOID, half, (0.0, -half[1] * 0.6, 0.0), material, (0.0, rng.angle(), 0.0))]
