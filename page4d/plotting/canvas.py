"""Text, banners, colour bars and round numbers, shared by the preview pictures."""

import math
import unicodedata
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from page4d.conventions import Scale

BACKGROUND = (246, 246, 243)
INK = (32, 34, 38)
FAINT = (122, 126, 132)
NO_VALUE = (214, 214, 210)
BANNER = (190, 24, 30)

VIEW_COLORS = (
    (214, 69, 65),
    (38, 110, 190),
    (38, 148, 87),
    (219, 130, 20),
    (126, 72, 170),
    (20, 150, 160),
    (196, 62, 134),
    (110, 104, 30),
)
"""Colours of views in pictures, repeated beyond eight."""


def font(size: float) -> Any:
    """Return the font that comes with Pillow."""
    return ImageFont.load_default(size)


def text_size(text: str, size: float) -> tuple[int, int]:
    """Return width and height in pixels of one line."""
    left, top, right, bottom = font(size).getbbox(text)
    return math.ceil(right - left), math.ceil(bottom - top)


def drawable(text: str) -> str:
    """Return the text in the letters that the font has; accents are dropped."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").strip() or "?"


def shortened(text: str, size: float, width: float) -> str:
    """Cut the middle out of a text that is wider than `width` pixels."""
    if text_size(text, size)[0] <= width:
        return text
    kept = len(text) - 1
    while kept > 2 and text_size(f"{text[: kept // 2]}...{text[-(kept // 2) :]}", size)[0] > width:
        kept -= 1
    return f"{text[: kept // 2]}...{text[-(kept // 2) :]}"


def blank(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return an empty picture and the pen that draws on it."""
    picture = Image.new("RGB", (width, height), BACKGROUND)
    return picture, ImageDraw.Draw(picture)


def with_banner(picture: Image.Image, notice: str) -> Image.Image:
    """Put a red strip with the notice on top; an empty notice changes nothing."""
    if not notice:
        return picture
    size = 22.0
    while size > 9 and text_size(notice, size)[0] > picture.width - 24:
        size -= 1
    height = round(size * 2)
    framed, pen = blank(picture.width, picture.height + height)
    pen.rectangle((0, 0, picture.width, height - 1), fill=BANNER)
    pen.text((picture.width / 2, height / 2), notice, fill="white", font=font(size), anchor="mm")
    framed.paste(picture, (0, height))
    return framed


def colored(values: NDArray[np.floating[Any]], known: NDArray[np.bool_], colormap: int) -> NDArray[np.uint8]:
    """Colour a map of values in [0, 1]; unknown pixels are grey."""
    levels = np.rint(np.where(known, values, 0.0).clip(0.0, 1.0) * 255).astype(np.uint8)
    rgb = cv2.applyColorMap(levels, colormap)[..., ::-1]
    return np.where(known[..., None], rgb, np.array(NO_VALUE, dtype=np.uint8)).astype(np.uint8)


def color_bar(height: int, colormap: int, labels: tuple[str, ...], title: str) -> Image.Image:
    """Draw an upright colour bar, the first label at its foot, the last at its head."""
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


def round_length(longest: float) -> float:
    """Return the largest of 1, 2 or 5 times a power of ten that is at most `longest`."""
    power = math.floor(math.log10(longest))
    steps = [mantissa * 10.0**exponent for exponent in (power - 1, power) for mantissa in (1, 2, 5)]
    return max(step for step in steps if step <= longest)


def short_unit(scale: Scale) -> str:
    """Return the unit of length as it stands behind a number in a picture."""
    return "m" if scale is Scale.METRIC else "units"
