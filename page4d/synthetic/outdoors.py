"""Open ground under a sky: houses, walls, trees, rocks and hills around a stage, lit by the sun."""

import math

from page4d.synthetic.blueprint import Lighting, Thing
from page4d.synthetic.camera_rigs import Shot
from page4d.synthetic.furniture import box, boxes, extent, tree
from page4d.synthetic.materials import Material, color, near, object_material, plain_material
from page4d.synthetic.place import Space, turned
from page4d.synthetic.rng import Dice, Vector
from page4d.synthetic.texture import Pattern
from page4d.synthetic.world import Shape

SUN_DISTANCE = 150.0


def ground(dice: Dice) -> Thing:
    """Draw grass, sand, asphalt or paving."""
    kind = dice.below(4)
    material = plain_material(dice, 0.25, 0.65, 0.12)._replace(strength=0.12, fine=0.2)
    gray = sum(material.palette[0]) / 3
    first, second, third = (_toward(gray, one) for one in material.palette)
    material = material._replace(palette=(first, second, third))
    if kind == 0:
        tone = dice.between(0.08, 0.25)
        palette = ((tone * 0.8, tone, tone * 0.4), (tone * 0.9, tone * 0.8, tone * 0.4), material.palette[2])
        material = material._replace(palette=palette)
    elif kind == 1:
        cells, base = dice.between(0.8, 3.0), color(dice, 0.3, 0.7, 0.3)
        frame = ((cells, 0.0, 0.0), (0.0, 0.0, cells * dice.between(0.5, 1.0)), (0.0, 0.0, 0.0))
        palette = (base, near(dice, base, 0.4), near(dice, base, 0.8))
        material = Material(Pattern.CELLS, palette, frame, (0.15,) * 3, 0.2, 0.15, bond=0.5, joint_m=0.02)
    return Thing(Shape.GROUND, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), material)


def _toward(gray: float, tint: Vector) -> Vector:
    """Take half of the colour out."""
    return (0.5 * (gray + tint[0]), 0.5 * (gray + tint[1]), 0.5 * (gray + tint[2]))


def sunlight(dice: Dice) -> Lighting:
    """Draw the sun between 15 and 70 degrees high, or clouds before it."""
    cloudy = dice.chance(0.3)
    height, angle = math.radians(dice.between(15, 70)), dice.angle()
    level = SUN_DISTANCE * math.cos(height)
    power = dice.between(0.15, 0.4) if cloudy else dice.between(1.0, 1.7)
    glow = dice.between(0.6, 0.9) if cloudy else dice.between(0.3, 0.5)
    warm = dice.between(0.0, 0.12)
    zenith: Vector = (0.55, 0.6, 0.66) if cloudy else (0.16, 0.32, 0.62)
    horizon: Vector = (0.75, 0.76, 0.78) if cloudy else (0.55, 0.68, 0.85)
    bright = dice.between(0.8, 1.25)
    return Lighting(
        position=(level * math.cos(angle), -SUN_DISTANCE * math.sin(height), level * math.sin(angle)),
        reach=1e6,
        color=(power, power * (1 - warm), power * (1 - 2 * warm)),
        glow=(glow * 0.92, glow * 0.97, glow * 1.05),
        fill=(0.05, 0.05, 0.05),
        fill_to=(-math.cos(angle), 0.0, -math.sin(angle)),
        sky=tuple(tuple(part * bright for part in one) for one in (zenith, horizon, (0.95, 0.95, 0.97))),  # type: ignore[arg-type]
    )


def surroundings(dice: Dice, space: Space, shot: Shot) -> list[Thing]:
    """Draw what stands near the stage, further away, and at the horizon."""
    widest = max(math.hypot(camera.center[0], camera.center[2]) + camera.room for camera in shot.cameras)
    things: list[Thing] = []
    for _ in range(3 + dice.below(4)):
        made = dice.pick((boxes, _rock, _wall, tree, _bench))(dice)
        place = space.find(dice, extent(made), tries=8, reach=(shot.stage.radius + 0.5, widest + 4))
        if place is not None:
            things += turned(made, *place)
    for _ in range(4 + dice.below(4)):
        made = dice.pick((_house, _house, tree, tree, _wall))(dice)
        half = extent(made)
        size = math.hypot(half[0], half[2])
        place = space.find(dice, half, tries=8, reach=(widest + size + 1.0, widest + size + 18))
        if place is not None:
            things += turned(made, *place)
    for _ in range(dice.below(4)):
        wide, high, angle = dice.between(8, 22), dice.between(2, 8), dice.angle()
        away = dice.between(35, 48)
        center = (away * math.cos(angle), 0.0, away * math.sin(angle))
        hill = plain_material(dice, 0.2, 0.5, 0.03)._replace(fine=0.2)
        things.append(Thing(Shape.ELLIPSOID, (wide, high, wide), center, hill))
    return things


def _house(dice: Dice) -> list[Thing]:
    wide, deep, tall = dice.between(1.5, 5), dice.between(1.5, 4), dice.between(2.5, 9)
    wall = color(dice, 0.4, 0.85)
    window = color(dice, 0.1, 0.4)
    rows = ((dice.between(0.25, 0.5), 0.0, dice.between(0.1, 0.2)), (0.0, dice.between(0.3, 0.45), 0.0), (0.0,) * 3)
    panes = Material(
        Pattern.CELLS, (window, window, wall), rows, (0.2,) * 3, 0.12, 0.1, joint_m=dice.between(1.0, 1.8)
    )
    front = panes if dice.chance(0.6) else object_material(dice, 3.0)
    roof = plain_material(dice, 0.15, 0.6, 0.5)
    return [
        box((-wide, 0, -deep), (wide, tall, deep), front),
        box((-wide - 0.2, tall, -deep - 0.2), (wide + 0.2, tall + 0.25, deep + 0.2), roof),
    ]


def _wall(dice: Dice) -> list[Thing]:
    wide, tall = dice.between(0.8, 3.5), dice.between(0.5, 1.8)
    return [box((-wide, 0, -0.12), (wide, tall, 0.12), object_material(dice, 1.5))]


def _bench(dice: Dice) -> list[Thing]:
    wood = object_material(dice, 1.0)
    return [
        box((-0.75, 0.4, -0.2), (0.75, 0.46, 0.2), wood),
        box((-0.6, 0, -0.15), (-0.5, 0.4, 0.15), wood),
        box((0.5, 0, -0.15), (0.6, 0.4, 0.15), wood),
    ]


def _rock(dice: Dice) -> list[Thing]:
    size = dice.log_between(0.15, 0.8)
    half = (size, size * dice.between(0.4, 0.9), size * dice.between(0.6, 1.0))
    material = plain_material(dice, 0.2, 0.6, 0.8)._replace(strength=0.2, fine=0.2)
    return [Thing(Shape.ELLIPSOID, half, (0.0, -half[1] * 0.6, 0.0), material, (0.0, dice.angle(), 0.0))]
