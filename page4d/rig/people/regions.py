"""Regions of people: rotated squares in an image, and crops of them."""

from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

from page4d.rig.records import Array

REGION_SCALE = 2.5
"""Side of a region per distance between the hip centre and the scale point; the networks were trained with it."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """A square [centre, side] in pixels whose up direction is turned clockwise by `angle` radians."""

    centre: tuple[float, float]
    side: float
    angle: float

    def to_image(self, unit: Float[Array, "*n 2"]) -> Float[Array, "*n 2"]:
        """Map points of the unit square (the region upright, y down) to pixels."""
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        pixels: Array = (unit - 0.5) * self.side @ np.array([[cos, sin], [-sin, cos]]) + self.centre
        return pixels

    def scaled(self, factor: float) -> "Region":
        """Return the region in an image resized by a factor."""
        return Region((self.centre[0] * factor, self.centre[1] * factor), self.side * factor, self.angle)


def region_of(hip_centre: Float[Array, " 2"], scale_point: Float[Array, " 2"]) -> Region:
    """Return the region in which the vector from the hip centre to the scale point points up."""
    x, y = scale_point - hip_centre
    angle = float(np.arctan2(x, -y))
    return Region((float(hip_centre[0]), float(hip_centre[1])), REGION_SCALE * float(np.hypot(x, y)), angle)


class Pyramid:
    """An image and its halved copies, from which regions are sampled without aliasing."""

    def __init__(self, image: UInt8[Pixels, "H W 3"]) -> None:
        self._levels = [image]

    def crop(self, region: Region, side: int) -> Float[NDArray[np.float32], "side side 3"]:
        """Return a region as an upright image in [0, 1]; black outside of the image."""
        level, step = 0, region.side / side
        while step >= 2 and min(self._level(level).shape[:2]) >= 2:
            level, step = level + 1, step / 2
        image = self._level(level)
        full = self._levels[0].shape
        scale = np.array([image.shape[1] / full[1], image.shape[0] / full[0]])
        # Three corners of the crop and of the region; cv2 counts pixel centres from 0.
        unit = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        source = (region.to_image(unit) * scale - 0.5).astype(np.float32)
        target = (unit * side - 0.5).astype(np.float32)
        matrix = cv2.getAffineTransform(target, source)
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        crop = cv2.warpAffine(image, matrix, (side, side), flags=flags)
        return crop.astype(np.float32) / np.float32(255)

    def _level(self, level: int) -> Pixels:
        while len(self._levels) <= level:
            last = self._levels[-1]
            half = (max(last.shape[1] // 2, 1), max(last.shape[0] // 2, 1))
            self._levels.append(cv2.resize(last, half, interpolation=cv2.INTER_AREA).astype(np.uint8))
        return self._levels[level]
