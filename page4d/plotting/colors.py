"""Palette and colour maps of all pictures."""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]
"""Red, green and blue from 0 to 255."""

BACKGROUND: Color = (246, 246, 243)
INK: Color = (32, 34, 38)
FAINT: Color = (122, 126, 132)
GRID: Color = (222, 222, 217)
FRAME: Color = (205, 205, 200)
NO_VALUE: Color = (214, 214, 210)
BANNER: Color = (190, 24, 30)
MOVING: Color = (226, 40, 48)
TRUE_POINTS: Color = (150, 162, 178)
PREDICTED_POINTS: Color = (228, 140, 70)

VIEW_COLORS: tuple[Color, ...] = (
    (214, 69, 65),
    (38, 110, 190),
    (38, 148, 87),
    (219, 130, 20),
    (126, 72, 170),
    (20, 150, 160),
    (196, 62, 134),
    (110, 104, 30),
)

DEPTH_MAP = cv2.COLORMAP_TURBO
CONFIDENCE_MAP = cv2.COLORMAP_VIRIDIS
ERROR_MAP = cv2.COLORMAP_INFERNO
ATTENTION_MAP = cv2.COLORMAP_INFERNO


STILL: Color = (38, 40, 46)
"""Colour of a velocity of 0."""

_SPEED_GAMMA = 0.7
"""Below 1: slow motion is visible."""

_TOWARDS = 0.3
"""Saturation of a velocity along the viewing direction."""


def velocity_colors(velocity: NDArray[np.floating[Any]], highest: float) -> NDArray[np.uint8]:
    """Return colours of velocities [..., 3] in the axes of a camera (x right, y down, z forward); NaN becomes grey.

    The hue is the direction in the picture (red: right, yellow-green: down, cyan: left, violet: up), the brightness
    the speed up to `highest`. What moves towards the camera or away from it is pale.
    """
    known = np.isfinite(velocity).all(axis=-1)
    values = np.where(known[..., None], velocity, 0.0)
    speed, across = np.linalg.norm(values, axis=-1), np.linalg.norm(values[..., :2], axis=-1)
    hue = np.degrees(np.arctan2(values[..., 1], values[..., 0])) % 360
    saturation = _TOWARDS + (0.9 - _TOWARDS) * across / np.maximum(speed, 1e-12)
    hsv = np.stack([hue, saturation, np.ones_like(hue)], axis=-1).astype(np.float32)
    bright = cv2.cvtColor(hsv.reshape(1, -1, 3), cv2.COLOR_HSV2RGB).reshape(hsv.shape) * 255.0
    part = (speed / highest).clip(0.0, 1.0)[..., None] ** _SPEED_GAMMA
    rgb = np.rint((1.0 - part) * np.array(STILL) + part * bright)
    return np.where(known[..., None], rgb, np.array(NO_VALUE)).astype(np.uint8)


def view_color(index: int) -> Color:
    """Return the colour of a view or curve; colours repeat after eight."""
    return VIEW_COLORS[index % len(VIEW_COLORS)]


def colored(values: NDArray[np.floating[Any]], known: NDArray[np.bool_], colormap: int) -> NDArray[np.uint8]:
    """Apply a colour map to values in [0, 1]; unknown pixels become grey."""
    levels = np.rint(np.where(known, values, 0.0).clip(0.0, 1.0) * 255).astype(np.uint8)
    rgb = cv2.applyColorMap(levels, colormap)[..., ::-1]
    return np.where(known[..., None], rgb, np.array(NO_VALUE, dtype=np.uint8)).astype(np.uint8)
