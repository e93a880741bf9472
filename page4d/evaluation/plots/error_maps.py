"""Depth error maps of one instant: true depth, aligned prediction and relative error of every view."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from page4d.conventions import Scale
from page4d.evaluation.comparison import FramePair
from page4d.evaluation.depth_alignment import DepthFit
from page4d.plotting.canvas import blank, color_bar, drawable, font, short_unit, shortened, tile
from page4d.plotting.colors import DEPTH_MAP, ERROR_MAP, FAINT, INK, colored

MAX_VIEWS = 8
_TILE_HEIGHT = 170
_MAX_TILE_WIDTH = 320
_GAP, _MARGIN, _LABEL, _HEADING = 6, 18, 92, 58
Map = NDArray[np.float64]
_LIMITS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def draw_error_maps(frames: Sequence[FramePair], fit: DepthFit, scale: Scale, title: str) -> NDArray[np.uint8]:
    """Draw one column per view and one row per map; all depths share one range, the error range is round.

    `scale` is that of the truth. Returns the picture [H, W, 3] in RGB.
    """
    shown = frames[:MAX_VIEWS]
    columns = [_maps(frame, fit) for frame in shown]
    depths = np.concatenate([column[0][column[0] > 0] for column in columns])
    lowest, highest = (float(bound) for bound in np.quantile(depths, (0.02, 0.98)))
    highest = highest if highest > lowest else lowest + 1.0
    worst = float(np.quantile(np.concatenate([column[2][column[3]] for column in columns]), 0.95))
    limit = next((limit for limit in _LIMITS if worst <= limit), _LIMITS[-1])
    sizes = [_tile_size(frame.truth.shape) for frame in shown]
    bars = _bars(lowest, highest, limit, scale)
    width = 2 * _MARGIN + _LABEL + sum(size[0] + _GAP for size in sizes) + 14 + bars.width
    picture, pen = blank(width, _HEADING + 3 * (_TILE_HEIGHT + _GAP) + _MARGIN)
    pen.text((_MARGIN, 20), title, fill=INK, font=font(17), anchor="lm")
    for row, label in enumerate(("truth", "prediction", "error")):
        y = _HEADING + row * (_TILE_HEIGHT + _GAP) + _TILE_HEIGHT / 2
        pen.text((_MARGIN, y), label, fill=FAINT, font=font(14), anchor="lm")
    x = _MARGIN + _LABEL
    for frame, (true, aligned, error, counted), size in zip(shown, columns, sizes, strict=True):
        name = shortened(drawable(frame.view.name), 13, size[0])
        pen.text((x + size[0] / 2, _HEADING - 12), name, fill=INK, font=font(13), anchor="mm")
        span = highest - lowest
        maps = (
            colored((true - lowest) / span, true > 0, DEPTH_MAP),
            colored((aligned - lowest) / span, counted, DEPTH_MAP),
            colored(error / limit, counted, ERROR_MAP),
        )
        for row, pixels in enumerate(maps):
            picture.paste(tile(pixels, *size), (x, _HEADING + row * (_TILE_HEIGHT + _GAP)))
        x += size[0] + _GAP
    picture.paste(bars, (x + 14, _HEADING))
    return np.asarray(picture)


def _maps(frame: FramePair, fit: DepthFit) -> tuple[Map, Map, Map, NDArray[np.bool_]]:
    """Return true depth, aligned prediction, absolute relative error, and the mask of counted pixels."""
    true, counted = np.where(frame.known, frame.truth, 0.0), frame.counted.numpy()
    aligned = fit.apply(frame.prediction.double()).numpy()
    error = np.where(counted, np.abs(aligned - true) / np.where(counted, true, 1.0), 0.0)
    return true, aligned, error, counted


def _tile_size(shape: Sequence[int]) -> tuple[int, int]:
    return min(round(_TILE_HEIGHT * shape[1] / shape[0]), _MAX_TILE_WIDTH), _TILE_HEIGHT


def _bars(lowest: float, highest: float, limit: float, scale: Scale) -> Image.Image:
    labels = tuple(f"{lowest + share * (highest - lowest):.3g}" for share in (0, 0.5, 1))
    depth = color_bar(2 * _TILE_HEIGHT + _GAP, DEPTH_MAP, labels, f"depth [{short_unit(scale)}]")
    percent = ("0", f"{50 * limit:g} %", f">= {100 * limit:g} %")
    error = color_bar(_TILE_HEIGHT, ERROR_MAP, percent, "|p - g| / g")
    picture, _ = blank(max(depth.width, error.width), 3 * _TILE_HEIGHT + 2 * _GAP)
    picture.paste(depth, (0, 0))
    picture.paste(error, (0, 2 * (_TILE_HEIGHT + _GAP)))
    return picture
