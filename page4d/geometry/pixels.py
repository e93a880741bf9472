"""Network input sizes, and the mapping from original to network pixels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from page4d.errors import UsageError
from page4d.geometry.camera import crop_intrinsics, resize_intrinsics

Size = tuple[int, int]


class Window(NamedTuple):
    """Part of an original image, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, width and height."""
        return self.left, self.top, self.width, self.height

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

    def of_part(self, part: Window | None, original_size: Size) -> "PixelTransform":
        """Return the placement of images of another size, of which this one places a part; None is all of them."""
        if part is None:
            return self
        inner = self.source
        window = Window(part.top + inner.top, part.left + inner.left, inner.height, inner.width)
        return replace(self, original_size=original_size, window=window)

    def content_mask(self, size: tuple[int, int] | None = None) -> Bool[Tensor, "H W"]:
        """Return True on pixels covered by the image; `size` extends the canvas at the bottom and right."""
        mask = torch.zeros(size or self.canvas_size, dtype=torch.bool)
        mask[self.rows, self.columns] = True
        return mask


def fit_long_side(original: Size, long_side: int) -> Size:
    """Return the (height, width) with this long side and the same aspect ratio, in whole pixels, which may be 0."""
    factor = long_side / max(original)
    return round(original[0] * factor), round(original[1] * factor)


def fit_views(original_sizes: list[tuple[int, int]], long_side: int, multiple: int) -> tuple[PixelTransform, ...]:
    """Resize every view to `long_side`, keeping its aspect ratio, and centre it on a shared canvas without cropping.

    The canvas is the smallest whose sides are multiples of `multiple` (the patch size). Sizes are (height, width);
    contents are rounded to whole pixels.

    Raises:
        UsageError: if the short side of an image would be rounded to 0 px.
    """
    contents = []
    for height, width in original_sizes:
        content = fit_long_side((height, width), long_side)
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


def shared_canvas(transforms: Sequence[PixelTransform]) -> tuple[int, int]:
    """Return the smallest size that contains the canvases of all views."""
    height, width = (max(sides) for sides in zip(*(transform.canvas_size for transform in transforms), strict=True))
    return height, width


def _fits(start: int, length: int, available: int) -> bool:
    """Return True if the interval lies inside [0, available] or covers it."""
    stop = start + length
    return (start >= 0 and stop <= available) or (start <= 0 and stop >= available)
