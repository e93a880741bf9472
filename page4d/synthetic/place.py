"""Free places: where things may stand so that they touch neither each other, nor the stage, nor a camera's view."""

import math
from collections.abc import Sequence

from page4d.synthetic.blueprint import Thing
from page4d.synthetic.camera_rigs import Camera, Shot, Stage
from page4d.synthetic.rng import Dice, Vector

VIEW_GAP = 0.12
"""How far things keep from the lines between cameras and the middle of the stage, in metres."""

_STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Space:
    """The floor of a world while it is being furnished."""

    def __init__(self, shot: Shot, low: tuple[float, float], high: tuple[float, float]) -> None:
        self.shot, self.low, self.high = shot, low, high
        self._taken: list[tuple[float, float, float]] = []
        self._seen_through = [point for camera in shot.cameras for point in _line(camera, shot.stage)]

    def find(
        self, dice: Dice, half: Vector, *, tries: int = 10, reach: tuple[float, float] | None = None
    ) -> tuple[float, float, float] | None:
        """Draw x, z and yaw for something of a size, or None if no free place was hit upon.

        `reach` keeps it between two distances from the middle of the stage.
        """
        size = math.hypot(half[0], half[2])
        for _ in range(tries):
            if reach is None:
                x, z = (
                    dice.between(a + size, b - size) if b - a > 2 * size else (a + b) / 2
                    for a, b in zip(self.low, self.high, strict=True)
                )
            else:
                away, angle = dice.between(*reach), dice.angle()
                x, z = away * math.cos(angle), away * math.sin(angle)
            yaw = dice.angle()
            if self.take(half, x, z, yaw):
                return x, z, yaw
        return None

    def take(self, half: Vector, x: float, z: float, yaw: float) -> bool:
        """Occupy a place on the floor for something of a size, if it is free."""
        discs = list(_discs(half[0], half[2], x, z, yaw))
        stage = self.shot.stage
        if any(math.hypot(a - stage.middle[0], b - stage.middle[2]) < r + stage.radius for a, b, r in discs):
            return False
        if any(math.hypot(a - c, b - d) < r + s for a, b, r in discs for c, d, s in self._taken):
            return False
        if not self.clear(half, (x, -half[1], z), yaw):
            return False
        self._taken += discs
        return True

    def clear(self, half: Vector, center: Vector, yaw: float = 0.0) -> bool:
        """Tell whether a box stays away from every camera and from its view of the middle of the stage."""
        cosine, sine = math.cos(yaw), math.sin(yaw)
        (a, b, c), (x, y, z) = half, center
        reach = math.hypot(a, c)
        for u, v, w, gap in self._seen_through:
            over = abs(v - y) - b
            if over > gap:
                continue
            u, w = u - x, w - z
            if abs(u) > reach + gap or abs(w) > reach + gap:
                continue
            beside = max(0.0, abs(cosine * u - sine * w) - a)
            before = max(0.0, abs(sine * u + cosine * w) - c)
            if beside * beside + before * before + max(0.0, over) ** 2 < gap * gap:
                return False
        return True


def _line(camera: Camera, stage: Stage) -> list[tuple[float, float, float, float]]:
    """List points between a camera and the stage, each with how far things must stay away from it."""
    ahead = [b - a for a, b in zip(camera.center, stage.middle, strict=True)]
    length = math.hypot(*ahead)
    points = []
    for step in _STEPS:
        if step * length > length - stage.radius:
            break
        x, y, z = (a + step * part for a, part in zip(camera.center, ahead, strict=True))
        points.append((x, y, z, VIEW_GAP if step else camera.room))
    return points


def turned(things: Sequence[Thing], x: float, z: float, yaw: float, y: float = 0.0) -> list[Thing]:
    """Put things that were made around the origin somewhere else, turned about the vertical."""
    cosine, sine = math.cos(yaw), math.sin(yaw)
    moved = []
    for thing in things:
        a, b, c = thing.center
        center = (x + cosine * a + sine * c, y + b, z - sine * a + cosine * c)
        moved.append(thing._replace(center=center, turned=(0.0, yaw + thing.turned[1], 0.0)))
    return moved


def _discs(half_x: float, half_z: float, x: float, z: float, yaw: float) -> list[tuple[float, float, float]]:
    """Cover a rectangle on the floor with discs along its longer side."""
    long, short = max(half_x, half_z), min(half_x, half_z)
    count = min(5, max(1, round(long / max(short, 0.1))))
    angle = yaw if half_x >= half_z else yaw - math.pi / 2
    radius = math.hypot(short, long / count)
    steps = [(2 * i + 1) / count - 1 for i in range(count)]
    return [(x + s * long * math.cos(angle), z - s * long * math.sin(angle), radius) for s in steps]
