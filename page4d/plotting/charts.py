"""Line charts: a few named curves over one axis, both axes from round numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from page4d.plotting.canvas import BACKGROUND, FAINT, INK, blank, drawable, font, shortened

_SIZE = (860, 470)
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 172, 50, 56
_SUPERSAMPLING = 2
_GRID = (224, 224, 219)
_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line through points; a gap where y is None. A single point is a dot."""

    name: str
    color: tuple[int, int, int]
    x: Sequence[float]
    y: Sequence[float | None]
    width: int = 2


def line_chart(curves: Sequence[Curve], title: str, x_label: str, y_label: str) -> NDArray[np.uint8]:
    """Draw curves with a legend; y starts at 0. Returns the picture [H, W, 3] in RGB."""
    x_values = [x for curve in curves for x in curve.x]
    y_values = [y for curve in curves for y in curve.y if y is not None]
    x_ticks = _ticks(min(x_values, default=0.0), max(x_values, default=1.0))
    y_ticks = _ticks(min([0.0, *y_values]), max(y_values, default=1.0))
    picture, pen = blank(*_SIZE)
    pen.text((_LEFT, 22), title, fill=INK, font=font(17), anchor="lm")
    pen.text((_SIZE[0] - _RIGHT, _SIZE[1] - 12), x_label, fill=FAINT, font=font(13), anchor="rm")
    pen.text((_LEFT, _TOP - 9), y_label, fill=FAINT, font=font(13), anchor="lm")
    for tick in x_ticks:
        x, _ = _place(tick, y_ticks[0], x_ticks, y_ticks)
        pen.line((x, _SIZE[1] - _BOTTOM, x, _SIZE[1] - _BOTTOM + 5), fill=INK)
        pen.text((x, _SIZE[1] - _BOTTOM + 15), f"{tick:g}", fill=INK, font=font(13), anchor="mm")
    for tick in y_ticks:
        _, y = _place(x_ticks[0], tick, x_ticks, y_ticks)
        pen.line((_LEFT, y, _SIZE[0] - _RIGHT, y), fill=_GRID)
        pen.text((_LEFT - 9, y), f"{tick:g}", fill=INK, font=font(13), anchor="rm")
    picture = _with_lines(picture, curves, x_ticks, y_ticks)
    _draw_legend(ImageDraw.Draw(picture), curves)
    return np.asarray(picture)


def _ticks(lowest: float, highest: float) -> list[float]:
    """Return round numbers that enclose a range, about five steps apart; a lone value gets some room."""
    if highest - lowest <= 1e-12 * max(abs(lowest), abs(highest), 1e-300):
        highest = lowest + (abs(lowest) or 1.0)
    rough = (highest - lowest) / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(lowest / step + 1e-9), math.ceil(highest / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _place(x: float, y: float, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> tuple[float, float]:
    width, height = _SIZE[0] - _LEFT - _RIGHT, _SIZE[1] - _TOP - _BOTTOM
    right = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
    up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
    return _LEFT + right * width, _SIZE[1] - _BOTTOM - up * height


def _with_lines(
    picture: Image.Image, curves: Sequence[Curve], x_ticks: Sequence[float], y_ticks: Sequence[float]
) -> Image.Image:
    """Draw the curves finer than the picture and shrink, so that slanted lines are smooth."""
    fine = picture.resize((_SIZE[0] * _SUPERSAMPLING, _SIZE[1] * _SUPERSAMPLING), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(fine)
    for curve in curves:
        run: list[tuple[float, float]] = []
        for x, y in [*zip(curve.x, curve.y, strict=True), (0.0, None)]:
            if y is not None:
                place = _place(x, y, x_ticks, y_ticks)
                run.append((place[0] * _SUPERSAMPLING, place[1] * _SUPERSAMPLING))
                continue
            if len(run) > 1:
                pen.line(run, fill=curve.color, width=curve.width * _SUPERSAMPLING, joint="curve")
            elif run:
                pen.circle(run[0], 4 * _SUPERSAMPLING, fill=curve.color)
            run = []
    return fine.resize(_SIZE, Image.Resampling.BOX)


def _draw_legend(pen: ImageDraw.ImageDraw, curves: Sequence[Curve]) -> None:
    left = _SIZE[0] - _RIGHT + 16
    for row, curve in enumerate(curves):
        y = _TOP + 8 + 22 * row
        pen.line((left, y, left + 20, y), fill=curve.color, width=curve.width + 1)
        name = shortened(drawable(curve.name), 13, _RIGHT - 50)
        pen.text((left + 27, y), name, fill=INK, font=font(13), anchor="lm", stroke_width=2, stroke_fill=BACKGROUND)
