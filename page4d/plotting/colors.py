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


def view_color(index: int) -> Color:
    """Return the colour of a view or curve; colours repeat after eight."""
    return VIEW_COLORS[index % len(VIEW_COLORS)]


def colored(values: NDArray[np.floating[Any]], known: NDArray[np.bool_], colormap: int) -> NDArray[np.uint8]:
    """Apply a colour map to values in [0, 1]; unknown pixels become grey."""
    levels = np.rint(np.where(known, values, 0.0).clip(0.0, 1.0) * 255).astype(np.uint8)
    rgb = cv2.applyColorMap(levels, colormap)[..., ::-1]
    return np.where(known[..., None], rgb, np.array(NO_VALUE, dtype=np.uint8)).astype(np.uint8)
