"""Sizes and placement of the input images of the public networks, as their own code has them."""

import math
from collections.abc import Sequence

from page4d.choices import Preprocess
from page4d.errors import UsageError
from page4d.geometry.pixels import PixelTransform, Size, Window, fit_long_side, fit_views

VGGT_SIDE = 518
DA3_SIDE = 504
OMEGA_SIDE = 512
PI3_MAX_PIXELS = 255_000
_PATCH = 14
"""Patch size of the public networks; their code rounds sides to multiples of it."""

_OMEGA_PATCH = 16
_OMEGA_ASPECT = 2


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
        canvas = budget_size(original_sizes[0])  # whatever the aspect ratio of a view
        transforms = _centered(original_sizes, [canvas] * len(original_sizes), canvas)
    elif preprocess is Preprocess.DA3:
        transforms = crop_views(original_sizes, [da3_input_sizes(size)[1] for size in original_sizes])
    elif preprocess is Preprocess.VGGT_OMEGA:
        transforms = pad_windows(original_sizes)
    else:
        contents = [vggt_size(size, crop=preprocess is Preprocess.VGGT_CROP) for size in original_sizes]
        transforms = center_views(original_sizes, contents, square=preprocess is Preprocess.VGGT_PAD)
    height, width = transforms[0].canvas_size
    if height % multiple or width % multiple:
        raise UsageError(
            f"⟨preprocess={preprocess}⟩ gives images of {width}x{height} px, but patches are {multiple} px",
            "use ⟨preprocess=native⟩",
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
            f"an image of {width}x{height} px has no pixels left at {VGGT_SIDE} px", "use ⟨preprocess=native⟩"
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


def _centered(
    original_sizes: list[Size], contents: list[Size], canvas: Size, windows: Sequence[Window | None] | None = None
) -> tuple[PixelTransform, ...]:
    """Centre contents on a canvas, or crop them at its middle; an odd remainder goes to the bottom and the right."""
    rows = zip(original_sizes, contents, windows or [None] * len(contents), strict=True)
    return tuple(
        PixelTransform(
            original_size=original,
            content_size=content,
            canvas_size=canvas,
            left=int((canvas[1] - content[1]) / 2),
            top=int((canvas[0] - content[0]) / 2),
            window=window,
        )
        for original, content, window in rows
    )


def center_views(original_sizes: list[Size], contents: list[Size], *, square: bool) -> tuple[PixelTransform, ...]:
    """Centre contents on a canvas of 518 x 518 px, or on the smallest one that contains all cropped contents.

    Contents are cropped at top and bottom to 518 px.

    Source: `load_and_preprocess_images` of the public VGGT code (reference facts).
    """
    kept = [(min(height, VGGT_SIDE), width) for height, width in contents]
    return _centered(original_sizes, contents, (VGGT_SIDE, VGGT_SIDE) if square else _largest(kept))


def _largest(sizes: list[Size]) -> Size:
    return max(height for height, _ in sizes), max(width for _, width in sizes)


def da3_input_sizes(original: Size, long_side: int = DA3_SIDE) -> tuple[Size, Size]:
    """Return the sizes after the two resamplings of Depth Anything 3.

    The first has the requested long side, the second the nearest whole patches, the larger of two equally near ones.

    Raises:
        UsageError: if a side has no patch left.

    Source: "upper_bound_resize" of the public Depth Anything 3 code, rounding to even included (reference facts).
    """
    bounded = fit_long_side(original, long_side)
    height, width = ((side + _PATCH // 2) // _PATCH * _PATCH for side in bounded)
    if min(height, width) < _PATCH:
        raise UsageError(
            f"an image of {original[1]}x{original[0]} px has no patch left at {long_side} px",
            "use ⟨preprocess=native⟩",
        )
    return bounded, (height, width)


def crop_views(original_sizes: list[Size], contents: list[Size]) -> tuple[PixelTransform, ...]:
    """Crop every view at its middle to the smallest height and width of all contents.

    Source: the input processor of the public Depth Anything 3 code (reference facts).
    """
    canvas = (min(height for height, _ in contents), min(width for _, width in contents))
    return _centered(original_sizes, contents, canvas)


def omega_size(original: Size, side: int = OMEGA_SIDE) -> tuple[Window | None, Size]:
    """Return the window of an image, None for all of it, and the size in whole patches to which it is resized.

    The size has about `side` * `side` pixels and the aspect ratio of the window, which is at most 2.

    Source: the "balanced" loader of the public VGGT-Omega code, rounding to even included (reference facts).
    """
    height, width = min(original[0], _OMEGA_ASPECT * original[1]), min(original[1], _OMEGA_ASPECT * original[0])
    window = Window((original[0] - height) // 2, (original[1] - width) // 2, height, width)
    patches = (side // _OMEGA_PATCH) ** 2
    columns = math.sqrt(patches / (height / width))
    rows = patches / columns
    size = (max(round(rows), 1) * _OMEGA_PATCH, max(round(columns), 1) * _OMEGA_PATCH)
    return None if (height, width) == original else window, size


def pad_windows(original_sizes: list[Size], side: int = OMEGA_SIDE) -> tuple[PixelTransform, ...]:
    """Centre the windows of `omega_size` on the smallest canvas that contains all of them."""
    windows, contents = zip(*(omega_size(size, side) for size in original_sizes), strict=True)
    return _centered(original_sizes, list(contents), _largest(list(contents)), windows)
