"""How views come to a network's size: by the user's choice, or exactly as the code of the public networks does it."""

import math
from enum import StrEnum

from page4d.errors import UsageError
from page4d.geometry.pixels import PixelTransform, fit_views

VGGT_SIDE = 518
PI3_MOST_PIXELS = 255_000
_PATCH = 14
"""Of all public networks: their code makes sides multiples of it."""

Size = tuple[int, int]


class Preprocess(StrEnum):
    """Which sizes images get, and what is cut away or padded."""

    NATIVE = "native"
    """Aspect kept, nothing cut, the long side as wanted."""

    VGGT_CROP = "vggt-crop"
    """518 px wide; what is higher than that loses its top and bottom."""

    VGGT_PAD = "vggt-pad"
    """Long side 518 px, padded to a square in white."""

    PI3 = "pi3"
    """At most 255,000 px of the first view's aspect; views of another aspect are stretched."""


def place_views(
    preprocess: Preprocess, original_sizes: list[Size], long_side: int, multiple: int
) -> tuple[PixelTransform, ...]:
    """Place all views of a rig on one canvas; the published ways choose sizes of their own.

    Sizes are (height, width).

    Raises:
        UsageError: if an image is so narrow that it would vanish, or sides are no multiples of `multiple`.
    """
    if preprocess is Preprocess.NATIVE:
        return fit_views(original_sizes, long_side, multiple)
    if preprocess is Preprocess.PI3:
        transforms = stretch_views(original_sizes, budget_size(original_sizes[0]))
    else:
        contents = [vggt_size(size, crop=preprocess is Preprocess.VGGT_CROP) for size in original_sizes]
        transforms = center_views(original_sizes, contents, square=preprocess is Preprocess.VGGT_PAD)
    height, width = transforms[0].canvas_size
    if height % multiple or width % multiple:
        raise UsageError(
            f"--preprocess {preprocess} gives images of {width}x{height} px, but patches are {multiple} px",
            "use --preprocess native",
        )
    return transforms


def vggt_size(original: Size, *, crop: bool) -> Size:
    """Return the size before cropping or padding: 518 px wide, or long, the other side rounded to whole patches.

    Source: `load_and_preprocess_images` of the public VGGT code, rounding to even included (reference facts).
    """
    height, width = original
    if crop or width >= height:
        content = (round(height * (VGGT_SIDE / width) / _PATCH) * _PATCH, VGGT_SIDE)
    else:
        content = (VGGT_SIDE, round(width * (VGGT_SIDE / height) / _PATCH) * _PATCH)
    if min(content) < 1:
        raise UsageError(f"an image of {width}x{height} px vanishes at {VGGT_SIDE} px", "use --preprocess native")
    return content


def budget_size(original: Size, most_pixels: int = PI3_MOST_PIXELS) -> Size:
    """Return the largest size in whole patches of about the same aspect within a budget of pixels.

    Source: `load_images_as_tensor` of the public Pi3 code (reference facts).
    """
    height, width = original
    scale = math.sqrt(most_pixels / (width * height))
    rows, columns = round(height * scale / _PATCH), round(width * scale / _PATCH)
    while rows * _PATCH * columns * _PATCH > most_pixels:
        if columns / rows > width / height:
            columns -= 1
        else:
            rows -= 1
    return max(1, rows) * _PATCH, max(1, columns) * _PATCH


def center_views(original_sizes: list[Size], contents: list[Size], *, square: bool) -> tuple[PixelTransform, ...]:
    """Centre contents on a canvas of 518 x 518 px, or on the smallest that holds what is left of all of them.

    What is higher than 518 px is cut at top and bottom. Of an odd rest the bottom and the right get one more.

    Source: `load_and_preprocess_images` of the public VGGT code (reference facts).
    """
    kept = [(min(height, VGGT_SIDE), width) for height, width in contents]
    canvas = (VGGT_SIDE, VGGT_SIDE) if square else (max(size[0] for size in kept), max(size[1] for size in kept))
    return tuple(
        PixelTransform(
            original_size=original,
            content_size=content,
            canvas_size=canvas,
            left=(canvas[1] - content[1]) // 2,
            top=(canvas[0] - content[0]) // 2 if content[0] <= canvas[0] else -((content[0] - canvas[0]) // 2),
        )
        for original, content in zip(original_sizes, contents, strict=True)
    )


def stretch_views(original_sizes: list[Size], canvas: Size) -> tuple[PixelTransform, ...]:
    """Fill the canvas with every view, whatever its aspect."""
    return tuple(
        PixelTransform(original_size=original, content_size=canvas, canvas_size=canvas) for original in original_sizes
    )
