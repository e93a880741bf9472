"""Rectangular parts of images: the boxes that contain the pixels to refine, and their context."""

import cv2
import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

Region = tuple[slice, slice]
"""Rows and columns."""


def bounding_box(mask: Bool[Tensor, "H W"]) -> Region | None:
    """Return the rows and columns that contain all True pixels; None without any."""
    rows, columns = (mask.any(dim=1 - axis).nonzero()[:, 0] for axis in (0, 1))
    if not len(rows):
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


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
    tiles = functional.max_pool2d(mask[None, None].float(), side, ceil_mode=True)[0, 0] > 0
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
