"""Network input sizes: native, or exactly those of the public VGGT and Pi3 code."""

import math

from page4d.choices import Preprocess
from page4d.errors import UsageError
from page4d.geometry.pixels import PixelTransform, fit_views

VGGT_SIDE = 518
PI3_MAX_PIXELS = 255_000
_PATCH = 14
"""Patch size of the public networks; their code rounds sides to multiples of it."""

Size = tuple[int, int]


def place_views(
    preprocess: Preprocess, original_sizes: list[Size], long_side: int, multiple: int
) -> tuple[PixelTransform, ...]:
    """Place all views of a rig on one canvas; `long_side` applies to `Preprocess.NATIVE` only.

    Sizes are (height, width).

    Raises:
        UsageError: if the short side of an image would be rounded to 0 px, or a side is not a multiple of `multiple`.
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
    """Return the size before cropping or padding: 518 px wide, or 518 px long, the other side in whole patches.

    Source: `load_and_preprocess_images` of the public VGGT code, rounding to even included (reference facts).
    """
    height, width = original
    if crop or width >= height:
        content = (round(height * (VGGT_SIDE / width) / _PATCH) * _PATCH, VGGT_SIDE)
    else:
        content = (VGGT_SIDE, round(width * (VGGT_SIDE / height) / _PATCH) * _PATCH)
    if min(content) < 1:
        raise UsageError(
            f"an image of {width}x{height} px has no pixels left at {VGGT_SIDE} px", "use --preprocess native"
        )
    return content


def budget_size(original: Size, max_pixels: int = PI3_MAX_PIXELS) -> Size:
    """Return the largest size in whole patches with about the same aspect ratio and at most `max_pixels`.

    Source: `load_images_as_tensor` of the public Pi3 code (reference facts).
    """
    height, width = original
    scale = math.sqrt(max_pixels / (width * height))
    rows, columns = round(height * scale / _PATCH), round(width * scale / _PATCH)
    while rows * _PATCH * columns * _PATCH > max_pixels:
        if columns / rows > width / height:
            columns -= 1
        else:
            rows -= 1
    return max(1, rows) * _PATCH, max(1, columns) * _PATCH


def center_views(original_sizes: list[Size], contents: list[Size], *, square: bool) -> tuple[PixelTransform, ...]:
    """Centre contents on a canvas of 518 x 518 px, or on the smallest one that contains all cropped contents.

    Contents are cropped at top and bottom to 518 px. An odd remainder goes to the bottom and the right.

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
    """Stretch every view to the canvas, regardless of its aspect ratio."""
    return tuple(
        PixelTransform(original_size=original, content_size=canvas, canvas_size=canvas) for original in original_sizes
    )
