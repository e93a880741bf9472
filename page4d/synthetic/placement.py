"""Collision-free placement of objects on the floor, clear of each other, the capture volume and all sight lines."""

import math
from collections.abc import Sequence

from page4d.synthetic.camera_rigs import CameraSpec, CaptureVolume, RigSpec
from page4d.synthetic.rng import Rng, Vector
from page4d.synthetic.world_spec import ObjectSpec

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
        size = math.hypot(half[0], half[2])
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
