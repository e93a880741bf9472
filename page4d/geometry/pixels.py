"""Network input sizes, and the mapping from original to network pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

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


Region = tuple[slice, slice]
"""Rows and columns."""

_MIN_TILE, _MAX_TILES = 16, 32
"""Smallest tile in px, and largest number of tiles along a side: parts in adjacent tiles are not separated."""

_BOX_MARGIN = 16
_OVERHEAD = 64 * 64
"""Cost of a region in pixels: that of a box with a margin on every side, and of starting its operations."""


def covering_regions(mask: Bool[Tensor, "H W"]) -> list[Region]:
    """Return the regions that together contain all True pixels; none for an empty mask.

    The boxes of connected parts are merged while one box costs no more than two.
    """
    side = max(_MIN_TILE, -(-max(mask.shape) // _MAX_TILES))
    tiles = functional.max_pool2d(mask[None, None].to(torch.float32), side, ceil_mode=True)[0, 0] > 0
    _, _, stats, _ = cv2.connectedComponentsWithStats(tiles.byte().cpu().numpy(), connectivity=8)
    corner = stats[1:, [cv2.CC_STAT_TOP, cv2.CC_STAT_LEFT]]
    extent = stats[1:, [cv2.CC_STAT_HEIGHT, cv2.CC_STAT_WIDTH]]
    boxes = np.concatenate([corner, corner + extent], axis=1).astype(np.int64) * side
    regions = []
    for top, left, bottom, right in _merged(boxes):
        inner = bounding_box(mask[top:bottom, left:right])
        assert inner is not None
        rows, columns = inner
        regions.append((slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop)))
    return regions


def _merged(boxes: Int[np.ndarray, "N 4"]) -> list[list[int]]:
    """Merge the pair of boxes (top, left, bottom, right) that saves the most, until none saves anything."""
    while len(boxes) > 1:
        union = np.concatenate(
            [np.minimum(boxes[:, None, :2], boxes[:, :2]), np.maximum(boxes[:, None, 2:], boxes[:, 2:])], axis=2
        )
        cost = _cost(boxes)
        saved = cost[:, None] + cost - _cost(union)
        np.fill_diagonal(saved, -1)
        first, second = np.unravel_index(saved.argmax(), saved.shape)
        if saved[first, second] < 0:
            break
        boxes = np.concatenate([np.delete(boxes, [first, second], axis=0), union[first, second][None]])
    found: list[list[int]] = boxes.tolist()
    return found


def _cost(boxes: Int[np.ndarray, "*batch 4"]) -> Int[np.ndarray, "*batch"]:
    height, width = (boxes[..., 2 + axis] - boxes[..., axis] + 2 * _BOX_MARGIN for axis in (0, 1))
    cost: Int[np.ndarray, "*batch"] = height * width + _OVERHEAD
    return cost


_CONTEXT_PX = 8
"""Pixels around a region that are refined with it, as context of windows and paths."""


def resized_region(region: Region, full: tuple[int, int], size: tuple[int, int]) -> Region:
    """Return a region of an image of size `full` at another size, with a margin."""
    rows, columns = (
        slice(
            max(0, int(part.start * short / long) - _CONTEXT_PX),
            min(short, -int(-part.stop * short // long) + _CONTEXT_PX),
        )
        for part, long, short in zip(region, full, size, strict=True)
    )
    return rows, columns
