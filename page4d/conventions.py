"""Coordinate, unit and axis conventions of every module, file and record.

* Camera axes follow OpenCV: x right, y down, z forward. Lengths are in metres or in an arbitrary unit; every file
  declares its unit.
* Transforms are 4x4 `world_to_camera`. The world is the camera frame of the first view at the first instant, the
  world of the calibration if one is given, or an upright one: an axis points up, and the origin is on the floor.
* The centre of the top-left pixel is (0.5, 0.5): `cx = W / 2` is the middle of the image, and resizing an image
  scales the rows of its intrinsics. Formats with integer pixel centres are converted on reading and writing.
* Quaternions are `wxyz`; `xyzw` only in TUM files and in the VGGT pose encoding.
* `depth` is z-depth. `confidence` lies in [0, 1], higher is better. A dynamic mask is 1 on moving objects.
* Tensor axes: B batch, T time, V view, N tokens of an image, P patches, R registers, C channels.
"""

import math
from enum import StrEnum
from typing import Literal

PIXEL_CENTER = 0.5
"""Coordinate of the centre of the top-left pixel."""

INTEGER_PIXEL_CENTER = 0.0
"""The same coordinate in OpenCV, Open3D, KITTI, Qualisys and the public VGGT code."""

OPENGL_AXES = (1.0, -1.0, -1.0, 1.0)
"""Signs of the axes x, y, z, 1 of an OpenGL camera (x right, y up, z backwards) in one of OpenCV, and vice versa."""

IMAGE_MEAN = (0.485, 0.456, 0.406)
IMAGE_DEVIATION = (0.229, 0.224, 0.225)
"""Mean and standard deviation of RGB in [0, 1] by which networks normalize images.

Source: ImageNet, as in the public DINOv2 and VGGT code.
"""

MAX_FPS = 1e8
"""Largest frame rate, ten times that of the fastest cameras."""

METRIC_DEPTH_SCALE = 1000.0
"""Levels of a metric 16-bit depth PNG per metre, as written by RGB-D sensors."""


class ClockOrigin(StrEnum):
    """Time 0 of the clock of a scene."""

    STAMPS = "time stamp"
    EARLIEST = "start of the earliest view"
    FILE = "sync file"


class Scale(StrEnum):
    """Unit of length of a result."""

    METRIC = "metric"
    ARBITRARY = "arbitrary"

    @property
    def unit(self) -> Literal["metre", "arbitrary"]:
        """Name of the unit, as written into files."""
        return "metre" if self is Scale.METRIC else "arbitrary"

    @property
    def symbol(self) -> str:
        """The unit as texts and pictures abbreviate it."""
        return "m" if self is Scale.METRIC else "units"


class ScaleSource(StrEnum):
    """Origin of the metre of a metric result."""

    CALIBRATION = "calibration"
    DISTANCE = "distance"
    """A known distance between two cameras."""

    POINTS = "points"
    """Coordinates of points that are marked in the pictures."""

    PERSON = "person"
    """The known height of the people in the scene."""

    NETWORK = "network"
    """An estimate by a network that predicts metres."""


DESCRIPTION = {
    "axes": "OpenCV: x right, y down, z forward",
    "transforms": "world_to_camera, 4x4, row-major, acting on column vectors",
    "pixel_center": "the centre of the top-left pixel is (0.5, 0.5)",
    "quaternions": "wxyz; xyzw in TUM files",
    "depth": "z-depth along the optical axis",
    "confidence": "0 to 1, higher is better",
    "dynamic": "1 (255 in PNG files) where something moves",
    "time": "seconds on the common clock",
}
"""The conventions as written into `run.json` and `cameras.json`."""


def round_down(largest: float) -> float:
    """Return the largest of 1, 2 or 5 times a power of ten that is at most `largest`."""
    power = math.floor(math.log10(largest))
    # The logarithm of a power of ten may be rounded to either side.
    steps = [mantissa * 10.0**exponent for exponent in (power - 1, power, power + 1) for mantissa in (1, 2, 5)]
    return max(step for step in steps if step <= largest)
