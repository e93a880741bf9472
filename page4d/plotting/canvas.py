"""Palette, colour maps and drawing primitives of pictures: text, banners, tiles, colour bars and scale bars."""

import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from page4d.conventions import Scale, round_down

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
PREDICTED_POINTS: Color = (214, 178, 128)

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


_SMALLEST_NOTICE = 13.0
"""Font size of the notice below which it is broken into lines."""


@cache
def font(size: float, layout: ImageFont.Layout | None = None) -> Any:
    """Return the font of charts, DejaVu Sans, which has Latin, Greek, Cyrillic and some other scripts."""
    # Found without importing matplotlib, which reads settings and writes a cache.
    package = find_spec("matplotlib")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("mpl-data") / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(file, 0.9 * size, layout_engine=layout)


def text_size(text: str, size: float) -> tuple[int, int]:
    """Return width and height in pixels of one line."""
    left, top, right, bottom = font(size).getbbox(text)
    return math.ceil(right - left), math.ceil(bottom - top)


def drawable(text: str) -> str:
    """Leave out the characters that the font lacks; a text without any other is written in code points."""
    glyphs = font(13, ImageFont.Layout.BASIC)  # the other layout fails for control characters
    missing = bytes(glyphs.getmask("\uffff"))
    shown = "".join(each for each in text if each == " " or bytes(glyphs.getmask(each)) != missing).strip()
    return shown or " ".join(f"U+{ord(each):04X}" for each in text) or "?"


def fitted_text(text: str, size: float, width: float) -> str:
    """Replace the middle of a text that is wider than `width` pixels by an ellipsis."""
    if text_size(text, size)[0] <= width:
        return text
    kept = len(text) - 1
    while kept > 2 and text_size(f"{text[: kept // 2]}...{text[-(kept // 2) :]}", size)[0] > width:
        kept -= 1
    return f"{text[: kept // 2]}...{text[-(kept // 2) :]}"


def blank(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return an empty picture and a pen for it."""
    picture = Image.new("RGB", (width, height), BACKGROUND)
    return picture, ImageDraw.Draw(picture)


def with_banner(picture: Image.Image, notice: str) -> Image.Image:
    """Add a red banner with the notice at the top, in lines if it is long; an empty notice adds nothing."""
    if not notice:
        return picture
    size, widest = 22.0, picture.width - 24
    while size > _SMALLEST_NOTICE and text_size(notice, size)[0] > widest:
        size -= 1
    first, *words = notice.split()
    lines = [first]
    for word in words:
        fits = text_size(f"{lines[-1]} {word}", size)[0] <= widest
        lines[-1:] = [f"{lines[-1]} {word}"] if fits else [lines[-1], word]
    height = round(size * (0.7 + 1.3 * len(lines)))
    framed, pen = blank(picture.width, picture.height + height)
    pen.rectangle((0, 0, picture.width, height - 1), fill=BANNER)
    middle, text = (picture.width / 2, height / 2), "\n".join(lines)
    pen.multiline_text(middle, text, fill="white", font=font(size), anchor="mm", align="center")
    framed.paste(picture, (0, height))
    return framed


def tile(pixels: NDArray[np.uint8], width: int, height: int) -> Image.Image:
    """Resize an image to a tile: area mean when it shrinks, nearest neighbour when it grows."""
    shrinks = width * height < pixels.shape[0] * pixels.shape[1]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_NEAREST
    return Image.fromarray(cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=interpolation))


def color_bar(height: int, colormap: int, labels: tuple[str, ...], title: str) -> Image.Image:
    """Draw a vertical colour bar with the first label at the bottom and the last at the top."""
    size, bar_width, top, bottom = 12.0, 14, 24, 8
    width = max([bar_width + 10 + text_size(label, size)[0] for label in labels] + [text_size(title, size)[0]]) + 4
    picture, pen = blank(width, height)
    pen.text((0, 2), title, fill=INK, font=font(size))
    length = max(height - top - bottom, 2)
    ramp = np.linspace(1.0, 0.0, length)[:, None].repeat(bar_width, axis=1)
    picture.paste(Image.fromarray(colored(ramp, np.ones_like(ramp, dtype=bool), colormap)), (0, top))
    for index, label in enumerate(labels):
        y = top + (length - 1) * (1 - index / max(len(labels) - 1, 1))
        pen.line((bar_width, y, bar_width + 4, y), fill=INK)
        pen.text((bar_width + 8, y), label, fill=INK, font=font(size), anchor="lm")
    return picture


def draw_key(pen: ImageDraw.ImageDraw, corner: tuple[float, float], color: Color, text: str, size: float) -> float:
    """Draw a coloured square with its meaning; returns the x at which the text ends."""
    x, y = corner
    pen.rectangle((x, y, x + 13, y + 13), fill=color)
    pen.text((x + 20, y + 7), text, fill=INK, font=font(size), anchor="lm")
    return x + 20 + float(font(size).getlength(text))


def draw_scale_bar(panel: Image.Image, pixels_per_unit: float, scale: Scale) -> None:
    """Draw a scale bar of round length, about a quarter of the width, in the lower left corner."""
    pen = ImageDraw.Draw(panel)
    length = round_down(panel.width * 0.28 / pixels_per_unit)
    pixels, left, y = length * pixels_per_unit, 20.0, panel.height - 20.0
    label = f"{length:g} {scale.symbol}"
    box = (left - 8, y - 30, left + max(pixels, text_size(label, 14)[0]) + 8, y + 10)
    pen.rounded_rectangle(box, radius=4, fill=BACKGROUND)
    pen.line((left, y, left + pixels, y), fill=INK, width=3)
    for end in (left, left + pixels):
        pen.line((end, y - 5, end, y + 5), fill=INK, width=2)
    pen.text((left, y - 16), label, fill=INK, font=font(14), anchor="lm")
