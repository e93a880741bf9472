"""Random furniture, plants and trees of boxes, ellipsoids and capsules, and their placement on the floor.

Objects are clear of each other, of the capture volume and of all sight lines.
"""

import math
from collections.abc import Callable, Sequence

from page4d.lab.synthetic.materials import Material, near, object_material, plain_material
from page4d.lab.synthetic.rigs import CameraSpec, CaptureVolume, RigSpec, Rng, Vector
from page4d.lab.synthetic.world import ObjectSpec, Shape


def box(low: Vector, high: Vector, material: Material) -> ObjectSpec:
    """Make a box between two corners given as x, height above the floor, and z."""
    half = tuple((b - a) / 2 for a, b in zip(low, high, strict=True))
    center = ((low[0] + high[0]) / 2, -(low[1] + high[1]) / 2, (low[2] + high[2]) / 2)
    return ObjectSpec(Shape.BOX, half, center, material)  # type: ignore[arg-type]


def table(half_x: float, half_z: float, height: float, rng: Rng) -> list[ObjectSpec]:
    """Make a table with four legs or a solid base."""
    material = plain_material(rng, 0.12, 0.8, 0.8) if rng.chance(0.7) else object_material(rng, 1.2)
    thick = rng.uniform(0.02, 0.05)
    objects = [box((-half_x, height - thick, -half_z), (half_x, height, half_z), material)]
    under = height - thick
    if rng.chance(0.35):
        x, z = half_x * rng.uniform(0.5, 0.97), half_z * rng.uniform(0.5, 0.97)
        return [*objects, box((-x, 0, -z), (x, under, z), plain_material(rng, 0.15, 0.7, 0.8))]
    leg = rng.uniform(0.02, 0.035)
    for x, z in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        a, b = x * (half_x - 2 * leg), z * (half_z - 2 * leg)
        objects.append(box((a - leg, 0, b - leg), (a + leg, under, b + leg), material))
    return objects


def chair(rng: Rng) -> list[ObjectSpec]:
    """Make a chair of a seat, a back and two sides."""
    material = plain_material(rng, 0.15, 0.75, 1.5)
    seat = rng.uniform(0.4, 0.48)
    back = rng.uniform(0.8, 1.05)
    return [
        box((-0.21, seat - 0.05, -0.21), (0.21, seat, 0.21), material),
        box((-0.21, seat + 0.12, -0.21), (0.21, back, -0.17), material),
        box((-0.21, 0, -0.2), (-0.18, seat + 0.12, 0.2), material),
        box((0.18, 0, -0.2), (0.21, seat + 0.12, 0.2), material),
    ]


def sofa(rng: Rng) -> list[ObjectSpec]:
    """Make a sofa or an armchair with its back at -z."""
    material = object_material(rng, 1.0) if rng.chance(0.3) else plain_material(rng, 0.15, 0.75, 1.0)
    wide, deep = rng.uniform(0.42, 1.0), rng.uniform(0.36, 0.45)
    seat, back, arm = rng.uniform(0.36, 0.45), rng.uniform(0.7, 0.9), rng.uniform(0.5, 0.62)
    return [
        box((-wide, 0.05, -deep), (wide, seat, deep), material),
        box((-wide, seat, -deep), (wide, back, -deep + 0.18), material),
        box((-wide, seat, -deep + 0.18), (-wide + 0.14, arm, deep), material),
        box((wide - 0.14, seat, -deep + 0.18), (wide, arm, deep), material),
    ]


def cupboard(rng: Rng) -> list[ObjectSpec]:
    """Make a cupboard with its back at -z, with or without two doors."""
    material = plain_material(rng, 0.25, 0.85, 0.8)
    wide, tall, deep = rng.uniform(0.3, 0.75), rng.uniform(0.7, 2.1), rng.uniform(0.16, 0.3)
    objects = [box((-wide, 0, -deep), (wide, tall, deep), material)]
    if rng.chance(0.7):
        front = material._replace(palette=(near(rng, material.palette[0], 0.4),) * 3)
        objects.append(box((-wide * 0.92, 0.08, deep), (-0.02, tall - 0.05, deep + 0.02), front))
        objects.append(box((0.02, 0.08, deep), (wide * 0.92, tall - 0.05, deep + 0.02), front))
    return objects


def shelf(rng: Rng) -> list[ObjectSpec]:
    """Make open shelves with their back at -z and rows of books, one textured box per row."""
    material = plain_material(rng, 0.25, 0.8, 0.8)
    wide, tall, deep = rng.uniform(0.35, 0.7), rng.uniform(1.0, 2.0), 0.15
    objects = [box((side * wide - 0.015, 0, -deep), (side * wide + 0.015, tall, deep), material) for side in (-1, 1)]
    levels = 3 + rng.integer(2)
    for level in range(levels):
        y = 0.06 + (tall - 0.08) * level / (levels - 1)
        objects.append(box((-wide, y - 0.012, -deep), (wide, y + 0.012, deep), material))
        if level < levels - 1 and rng.chance(0.6):
            end = wide * rng.uniform(-0.2, 0.95)
            top = y + 0.012 + min(0.75 * (tall - 0.08) / (levels - 1), rng.uniform(0.15, 0.28))
            objects.append(box((-wide + 0.02, y + 0.012, -deep), (end, top, deep * 0.7), object_material(rng, 0.35)))
    return objects


def plant(rng: Rng) -> list[ObjectSpec]:
    """Make a potted plant."""
    pot, tall = rng.uniform(0.12, 0.2), rng.uniform(0.5, 1.4)
    green = plain_material(rng, 0.15, 0.5, 2.0)
    red, _, blue = green.palette[0]
    leaves = ((red * 0.7, red, blue * 0.5), (red * 0.35, red * 0.6, blue * 0.3), green.palette[2])
    leaf = green._replace(palette=leaves, strength=0.3, fine=0.3)
    objects = [ObjectSpec(Shape.CAPSULE, (pot, pot * 1.5, pot), (0.0, -pot * 1.4, 0.0), object_material(rng, 0.3))]
    objects.append(ObjectSpec(Shape.CAPSULE, (0.025, tall / 2, 0.025), (0.0, -tall / 2, 0.0), green))
    for _ in range(2 + rng.integer(2)):
        size = rng.uniform(0.15, 0.3)
        half = (size, size * rng.uniform(0.6, 1.2), size)
        center = (rng.uniform(-0.1, 0.1), -tall - rng.uniform(-0.15, 0.2), rng.uniform(-0.1, 0.1))
        objects.append(ObjectSpec(Shape.ELLIPSOID, half, center, leaf))
    return objects


def standard_lamp(rng: Rng) -> list[ObjectSpec]:
    """Make a floor lamp that is switched off."""
    metal, tall = plain_material(rng, 0.1, 0.7, 2.0), rng.uniform(1.2, 1.7)
    return [
        ObjectSpec(Shape.CAPSULE, (0.02, tall / 2, 0.02), (0.0, -tall / 2, 0.0), metal),
        ObjectSpec(Shape.ELLIPSOID, (0.16, 0.02, 0.16), (0.0, -0.02, 0.0), metal),
        ObjectSpec(Shape.ELLIPSOID, (0.18, 0.14, 0.18), (0.0, -tall, 0.0), plain_material(rng, 0.6, 0.9, 1.0)),
    ]


def boxes(rng: Rng) -> list[ObjectSpec]:
    """Make a stack of one to three boxes."""
    objects, top = [], 0.0
    size = rng.log_uniform(0.15, 0.5)
    for _ in range(1 + rng.integer(3)):
        x, y, z = (size * rng.uniform(0.6, 1.0) for _ in range(3))
        shift_x, shift_z = rng.uniform(-0.15, 0.15) * size, rng.uniform(-0.15, 0.15) * size
        objects.append(
            box(
                (shift_x - x, top, shift_z - z),
                (shift_x + x, top + 1.4 * y, shift_z + z),
                object_material(rng, size * 2),
            )
        )
        top, size = top + 1.4 * y, size * 0.75
    return objects


def round_thing(rng: Rng) -> list[ObjectSpec]:
    """Make a ball, a cushion or a post."""
    size = rng.log_uniform(0.1, 0.35)
    material = object_material(rng, 2 * size)
    kind = rng.integer(3)
    if kind == 0:
        return [ObjectSpec(Shape.ELLIPSOID, (size,) * 3, (0.0, -size, 0.0), material)]
    if kind == 1:
        return [ObjectSpec(Shape.ELLIPSOID, (size * 1.4, size * 0.5, size), (0.0, -size * 0.5, 0.0), material)]
    tall = size * rng.uniform(2, 5)
    return [ObjectSpec(Shape.CAPSULE, (size * 0.6, tall / 2, size * 0.6), (0.0, -tall / 2, 0.0), material)]


def tree(rng: Rng) -> list[ObjectSpec]:
    """Make a tree of a trunk and one to three crowns."""
    tall, thick = rng.uniform(1.6, 4.0), rng.uniform(0.08, 0.25)
    bark = plain_material(rng, 0.15, 0.45, 1.0)
    tone = rng.uniform(0.05, 0.2)
    palette = ((tone * 0.75, tone, tone * 0.35), (tone * 0.3, tone * 0.5, tone * 0.2), bark.palette[2])
    leaf = bark._replace(palette=palette, grain=(0.3,) * 3, strength=0.35, fine=0.35)
    objects = [ObjectSpec(Shape.CAPSULE, (thick, tall / 2, thick), (0.0, -tall / 2, 0.0), bark)]
    for _ in range(1 + rng.integer(3)):
        size = tall * rng.uniform(0.3, 0.5)
        center = (
            0.4 * size * rng.uniform(-1, 1),
            -tall - 0.3 * size * rng.uniform(-0.5, 1.5),
            0.4 * size * rng.uniform(-1, 1),
        )
        objects.append(ObjectSpec(Shape.ELLIPSOID, (size, size * rng.uniform(0.7, 1.2), size), center, leaf))
    return objects


def extent(objects: Sequence[ObjectSpec]) -> Vector:
    """Return the half sizes of a box, centred on the vertical axis, that bounds unrotated objects."""
    x = max(abs(item.center[0]) + item.half[0] for item in objects)
    z = max(abs(item.center[2]) + item.half[2] for item in objects)
    top = max(-item.center[1] + item.half[1] for item in objects)
    return (x, top / 2, z)


FREE_STANDING: tuple[Callable[[Rng], list[ObjectSpec]], ...] = (chair, boxes, round_thing, plant, standard_lamp, sofa)
"""Furniture for the free floor of a room."""

AT_WALLS: tuple[Callable[[Rng], list[ObjectSpec]], ...] = (cupboard, shelf, sofa, cupboard)
"""Furniture for places along a wall."""


def side_table(rng: Rng) -> list[ObjectSpec]:
    """Make a table with one or two objects on it."""
    half_x, half_z, height = rng.uniform(0.3, 0.7), rng.uniform(0.25, 0.45), rng.uniform(0.4, 0.76)
    objects = table(half_x, half_z, height, rng)
    for _ in range(1 + rng.integer(2)):
        size = rng.uniform(0.05, 0.16)
        x, z = half_x * rng.uniform(-0.6, 0.6), half_z * rng.uniform(-0.6, 0.6)
        tall = size * rng.uniform(0.8, 2.5)
        shape = rng.choice((Shape.BOX, Shape.CAPSULE, Shape.ELLIPSOID))
        half = (size, size, size) if shape is Shape.ELLIPSOID else (size * 0.7, max(tall / 2, size * 0.7), size * 0.7)
        objects.append(
            ObjectSpec(
                shape,
                half,
                (x, -height - half[1], z),
                object_material(rng, 2 * size),
                (0.0, rng.angle() if shape is Shape.BOX else 0.0, 0.0),
            )
        )
    return objects


def diagonal(half: Vector) -> float:
    """Return half the diagonal of a box on the floor."""
    return math.hypot(half[0], half[2])


VIEW_GAP = 0.12
"""Minimum distance in metres of objects from the sight lines between cameras and the volume's centre."""

_STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class FloorPlan:
    """Occupied areas of the floor of a world, between the corners `low` and `high` (x, z)."""

    def __init__(self, rig: RigSpec, low: tuple[float, float], high: tuple[float, float]) -> None:
        self.rig, self.low, self.high = rig, low, high
        self._taken: list[tuple[float, float, float]] = []
        self._keep_out = [point for camera in rig.cameras for point in _sight_line(camera, rig.volume)]

    def find(
        self, rng: Rng, half: Vector, *, tries: int = 10, reach: tuple[float, float] | None = None
    ) -> tuple[float, float, float] | None:
        """Draw a free x, z and yaw for a box of half sizes `half` by rejection sampling; None after `tries` failures.

        `reach` limits the distance from the origin.
        """
        size = diagonal(half)
        for _ in range(tries):
            if reach is None:
                x, z = (
                    rng.uniform(a + size, b - size) if b - a > 2 * size else (a + b) / 2
                    for a, b in zip(self.low, self.high, strict=True)
                )
            else:
                away, angle = rng.uniform(*reach), rng.angle()
                x, z = away * math.cos(angle), away * math.sin(angle)
            yaw = rng.angle()
            if self.occupy(half, x, z, yaw):
                return x, z, yaw
        return None

    def occupy(self, half: Vector, x: float, z: float, yaw: float) -> bool:
        """Occupy the area of a box on the floor; return False if it is not free."""
        discs = list(_discs(half[0], half[2], x, z, yaw))
        volume = self.rig.volume
        if any(math.hypot(a - volume.center[0], b - volume.center[2]) < r + volume.radius for a, b, r in discs):
            return False
        if any(math.hypot(a - c, b - d) < r + s for a, b, r in discs for c, d, s in self._taken):
            return False
        if not self._is_clear(half, (x, -half[1], z), yaw):
            return False
        self._taken += discs
        return True

    def _is_clear(self, half: Vector, center: Vector, yaw: float) -> bool:
        """Return True if a box keeps its distance from every camera and sight line."""
        cosine, sine = math.cos(yaw), math.sin(yaw)
        (a, b, c), (x, y, z) = half, center
        reach = math.hypot(a, c)
        for u, v, w, gap in self._keep_out:
            over = abs(v - y) - b
            if over > gap:
                continue
            u, w = u - x, w - z
            if abs(u) > reach + gap or abs(w) > reach + gap:
                continue
            across = max(0.0, abs(cosine * u - sine * w) - a)
            along = max(0.0, abs(sine * u + cosine * w) - c)
            if across * across + along * along + max(0.0, over) ** 2 < gap * gap:
                return False
        return True


def _sight_line(camera: CameraSpec, volume: CaptureVolume) -> list[tuple[float, float, float, float]]:
    """Return points from a camera to the volume, each with the radius to keep free."""
    ahead = [b - a for a, b in zip(camera.center, volume.center, strict=True)]
    length = math.hypot(*ahead)
    points = []
    for step in _STEPS:
        if step * length > length - volume.radius:
            break
        x, y, z = (a + step * part for a, part in zip(camera.center, ahead, strict=True))
        points.append((x, y, z, VIEW_GAP if step else camera.clearance))
    return points


def placed(objects: Sequence[ObjectSpec], x: float, z: float, yaw: float) -> list[ObjectSpec]:
    """Move objects from the origin to (x, z), rotated by `yaw` about the vertical."""
    cosine, sine = math.cos(yaw), math.sin(yaw)
    moved = []
    for item in objects:
        a, b, c = item.center
        center = (x + cosine * a + sine * c, b, z - sine * a + cosine * c)
        moved.append(item._replace(center=center, rotation=(0.0, yaw + item.rotation[1], 0.0)))
    return moved


def _discs(half_x: float, half_z: float, x: float, z: float, yaw: float) -> list[tuple[float, float, float]]:
    """Cover a rectangle on the floor with discs along its longer side."""
    long, short = max(half_x, half_z), min(half_x, half_z)
    count = min(5, max(1, round(long / max(short, 0.1))))
    angle = yaw if half_x >= half_z else yaw - math.pi / 2
    radius = math.hypot(short, long / count)
    steps = [(2 * i + 1) / count - 1 for i in range(count)]
    return [(x + s * long * math.cos(angle), z - s * long * math.sin(angle), radius) for s in steps]
