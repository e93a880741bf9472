"""Network input sizes, native or those of the public networks, and the mapping from original to network pixels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.choices import Preprocess
from page4d.errors import UsageError
from page4d.geometry.camera import crop_intrinsics, resize_intrinsics

VGGT_SIDE = 518
DA3_SIDE = 504
OMEGA_SIDE = 512
PI3_MAX_PIXELS = 255_000
_PATCH = 14
"""Patch size of the public networks; their code rounds sides to multiples of it."""

_OMEGA_PATCH = 16
_OMEGA_ASPECT = 2

Size = tuple[int, int]


class Window(NamedTuple):
    """Part of an original image, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Rows and columns."""
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


@dataclass(frozen=True, kw_only=True)
class PixelTransform:
    """Resize of an image to `content_size` and placement at (`left`, `top`) on a canvas of `canvas_size`.

    Sizes are (height, width). Along each axis the content is either padded to the canvas or cropped by it; when
    cropped, `left` or `top` is negative or 0. With a `window`, the image is cropped to it before it is resized.
    """

    original_size: tuple[int, int]
    content_size: tuple[int, int]
    canvas_size: tuple[int, int]
    left: int = 0
    top: int = 0
    window: Window | None = None

    def __post_init__(self) -> None:
        (height, width), (canvas_height, canvas_width) = self.content_size, self.canvas_size
        fits = _fits(self.top, height, canvas_height) and _fits(self.left, width, canvas_width)
        if not fits or min(*self.original_size, *self.content_size) < 1:
            raise UsageError(
                f"content {width}x{height} at ({self.left}, {self.top}) does not fit a canvas of "
                f"{canvas_width}x{canvas_height}",
                "use a larger ⟨long_side⟩",
            )

    @property
    def scale(self) -> tuple[float, float]:
        """Network pixels per original pixel along x and y."""
        window = self.source
        return self.content_size[1] / window.width, self.content_size[0] / window.height

    @property
    def source(self) -> Window:
        """Part of the original image that is resized."""
        return self.window or Window(0, 0, *self.original_size)

    @property
    def map_size(self) -> tuple[int, int]:
        """Size of maps of the whole original image at the resolution of the content."""
        if self.window is None:
            return self.content_size
        (scale_x, scale_y), (height, width) = self.scale, self.original_size
        return round(height * scale_y), round(width * scale_x)

    @property
    def rows(self) -> slice:
        """Canvas rows covered by the image."""
        return slice(max(self.top, 0), min(self.top + self.content_size[0], self.canvas_size[0]))

    @property
    def columns(self) -> slice:
        """Canvas columns covered by the image."""
        return slice(max(self.left, 0), min(self.left + self.content_size[1], self.canvas_size[1]))

    @property
    def content_rows(self) -> slice:
        """Content rows on the canvas; all unless cropped."""
        return slice(self.rows.start - self.top, self.rows.stop - self.top)

    @property
    def content_columns(self) -> slice:
        """Content columns on the canvas; all unless cropped."""
        return slice(self.columns.start - self.left, self.columns.stop - self.left)

    @property
    def share_cut(self) -> float:
        """Fraction of the image that is cropped, from 0 to 1."""
        shown = len(range(self.canvas_size[0])[self.rows]) * len(range(self.canvas_size[1])[self.columns])
        height, width = self.original_size
        read = self.source.height * self.source.width / (height * width)
        return 1 - read * shown / (self.content_size[0] * self.content_size[1])

    def to_network(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Map original pixel coordinates (x, y) to network pixel coordinates."""
        inside = pixels - pixels.new_tensor([self.source.left, self.source.top])
        return inside * pixels.new_tensor(self.scale) + pixels.new_tensor([self.left, self.top])

    def to_original(self, pixels: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Map network pixel coordinates (x, y) to original pixel coordinates."""
        inside = (pixels - pixels.new_tensor([self.left, self.top])) / pixels.new_tensor(self.scale)
        return inside + pixels.new_tensor([self.source.left, self.source.top])

    def intrinsics_to_network(self, intrinsics: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
        """Convert intrinsics of the original image to the canvas."""
        inside = crop_intrinsics(intrinsics, self.source.left, self.source.top)
        return crop_intrinsics(resize_intrinsics(inside, *self.scale), -self.left, -self.top)

    def intrinsics_to_original(self, intrinsics: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 3 3"]:
        """Convert intrinsics of the canvas to the original image."""
        scale_x, scale_y = self.scale
        inside = resize_intrinsics(crop_intrinsics(intrinsics, self.left, self.top), 1 / scale_x, 1 / scale_y)
        return crop_intrinsics(inside, -self.source.left, -self.source.top)

    def content_mask(self, size: tuple[int, int] | None = None) -> Bool[Tensor, "H W"]:
        """Return True on pixels covered by the image; `size` extends the canvas at the bottom and right."""
        mask = torch.zeros(size or self.canvas_size, dtype=torch.bool)
        mask[self.rows, self.columns] = True
        return mask


def fit_views(original_sizes: list[tuple[int, int]], long_side: int, multiple: int) -> tuple[PixelTransform, ...]:
    """Resize every view to `long_side`, keeping its aspect ratio, and centre it on a shared canvas without cropping.

    The canvas is the smallest whose sides are multiples of `multiple` (the patch size). Sizes are (height, width);
    contents are rounded to whole pixels.

    Raises:
        UsageError: if the short side of an image would be rounded to 0 px.
    """
    contents = []
    for height, width in original_sizes:
        factor = long_side / max(height, width)
        content = (round(height * factor), round(width * factor))
        if min(content) < 1:
            raise UsageError(
                f"an image of {width}x{height} px has no pixels left at ⟨long_side={long_side}⟩",
                "use a larger ⟨long_side⟩",
            )
        contents.append(content)
    canvas = tuple(-(-max(sides) // multiple) * multiple for sides in zip(*contents, strict=True))
    return tuple(
        PixelTransform(
            original_size=original,
            content_size=content,
            canvas_size=(canvas[0], canvas[1]),
            left=(canvas[1] - content[1]) // 2,
            top=(canvas[0] - content[0]) // 2,
        )
        for original, content in zip(original_sizes, contents, strict=True)
    )


def fit_each_view(original_sizes: list[tuple[int, int]], long_side: int, multiple: int) -> tuple[PixelTransform, ...]:
    """Apply `fit_views` to every view separately, so that each has its own canvas.

    Raises:
        UsageError: if the short side of an image would be rounded to 0 px.
    """
    return tuple(fit_views([size], long_side, multiple)[0] for size in original_sizes)


def shared_canvas(transforms: Sequence[PixelTransform]) -> tuple[int, int]:
    """Return the smallest size that contains the canvases of all views."""
    height, width = (max(sides) for sides in zip(*(transform.canvas_size for transform in transforms), strict=True))
    return height, width


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
    elif preprocess is Preprocess.DA3:
        transforms = crop_views(original_sizes, [da3_sizes(size)[1] for size in original_sizes])
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


def da3_sizes(original: Size, long_side: int = DA3_SIDE) -> tuple[Size, Size]:
    """Return the sizes after the two resamplings of Depth Anything 3.

    The first has the requested long side, the second the nearest whole patches, the larger of two equally near ones.

    Raises:
        UsageError: if a side has no patch left.

    Source: "upper_bound_resize" of the public Depth Anything 3 code, rounding to even included (reference facts).
    """
    factor = long_side / max(original)
    bounded = original if factor == 1 else (round(original[0] * factor), round(original[1] * factor))
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
    canvas = (min(size[0] for size in contents), min(size[1] for size in contents))
    return tuple(
        PixelTransform(
            original_size=original,
            content_size=content,
            canvas_size=canvas,
            left=-((content[1] - canvas[1]) // 2),
            top=-((content[0] - canvas[0]) // 2),
        )
        for original, content in zip(original_sizes, contents, strict=True)
    )


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
    placed = [omega_size(size, side) for size in original_sizes]
    canvas = (max(size[0] for _, size in placed), max(size[1] for _, size in placed))
    return tuple(
        PixelTransform(
            original_size=original,
            content_size=content,
            canvas_size=canvas,
            left=(canvas[1] - content[1]) // 2,
            top=(canvas[0] - content[0]) // 2,
            window=window,
        )
        for original, (window, content) in zip(original_sizes, placed, strict=True)
    )


def _fits(start: int, length: int, available: int) -> bool:
    """Return True if the interval lies inside [0, available] or covers it."""
    stop = start + length
    return (start >= 0 and stop <= available) or (start <= 0 and stop >= available)


def bounding_box(mask: Bool[Tensor, "H W"]) -> tuple[slice, slice] | None:
    """Return the rows and columns that contain all True pixels; None without any."""
    rows, columns = (mask.any(dim=1 - axis).nonzero()[:, 0] for axis in (0, 1))
    if not len(rows):
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
