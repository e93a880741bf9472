"""A contact sheet: images, depth, confidence and motion of every view at up to four instants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import ShapeError
from page4d.export.arrays import to_bytes, to_numpy
from page4d.export.maps import DYNAMIC_THRESHOLD, crop_to_content
from page4d.export.output import Output
from page4d.plotting.canvas import (
    FAINT,
    INK,
    NO_VALUE,
    blank,
    color_bar,
    colored,
    drawable,
    font,
    short_unit,
    shortened,
    with_banner,
)
from page4d.predictions import Predictions

MOST_INSTANTS = 4
_TILE_AREA = 220 * 165
_GAP = 6
_LABEL = 20
_BLOCK_GAP = 26
_MARGIN = 18
_DEPTH_COLORS = cv2.COLORMAP_TURBO
_CONFIDENCE_COLORS = cv2.COLORMAP_VIRIDIS
_MOVING = np.array((226, 40, 48), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One frame: the image [h, w, 3] if there is one, and maps [H, W] of the same aspect; depth 0 is unknown."""

    view: str
    time: float
    depth: NDArray[np.float32]
    image: NDArray[np.uint8] | None = None
    confidence: NDArray[np.float32] | None = None
    dynamic: NDArray[np.bool_] | None = None


def tiles_from_predictions(instant: Predictions) -> list[Tile]:
    """Cut the tiles of one instant [1, 1, V, H, W] out of predictions."""
    tiles = []
    for view, name in enumerate(instant.view_names):

        def content(maps: Float[Tensor, "1 1 V *C H W"], view: int = view) -> NDArray[Any]:
            return to_numpy(crop_to_content(maps[0, 0, view], instant.pixel_transforms[view]))

        known = content(instant.valid)
        depth = np.nan_to_num(content(instant.depth), nan=0.0, posinf=0.0, neginf=0.0)
        tiles.append(
            Tile(
                view=name,
                time=float(instant.times[0]),
                depth=np.where(known, depth, 0).clip(min=0).astype(np.float32),
                image=to_bytes(content(instant.images).transpose(1, 2, 0)),
                confidence=content(instant.depth_confidence),
                dynamic=None if instant.dynamic is None else content(instant.dynamic) > DYNAMIC_THRESHOLD,
            )
        )
    return tiles


def tiles_from_output(
    output: Output, time_index: int, images: Sequence[NDArray[np.uint8] | None] | None = None
) -> list[Tile]:
    """Read the tiles of one instant from an output folder; it holds no images, so give them where they are wanted."""
    return [
        Tile(
            view=view,
            time=output.run.times[time_index],
            depth=output.depth(time_index, view),
            image=None if images is None else images[index],
            confidence=output.confidence(time_index, view),
            dynamic=output.dynamic(time_index, view),
        )
        for index, view in enumerate(output.view_names)
    ]


def chosen_instants(num_times: int) -> list[int]:
    """Spread at most four instants over a capture, the first and the last among them."""
    return sorted({round(index) for index in np.linspace(0, num_times - 1, min(MOST_INSTANTS, num_times))})


def contact_sheet(instants: Sequence[Sequence[Tile]], scale: Scale, notice: str = "") -> NDArray[np.uint8]:
    """Draw a block per instant, in it a column per view; one depth range for the whole sheet.

    Returns the picture [H, W, 3] in RGB.

    Raises:
        ShapeError: if there is nothing to draw, or too much.
    """
    if not 1 <= len(instants) <= MOST_INSTANTS or not all(instants):
        raise ShapeError(f"a contact sheet of {len(instants)} instants", f"give 1 to {MOST_INSTANTS}, with views")
    lowest, highest = depth_range([tile for tiles in instants for tile in tiles])
    blocks = [_block(tiles, lowest, highest) for tiles in instants]
    block_width = max(block.width for block in blocks)
    columns = _block_columns(len(blocks), block_width, blocks[0].height)
    rows = math.ceil(len(blocks) / columns)
    bars = _color_bars(lowest, highest, scale, min(blocks[0].height, 420))
    width = 2 * _MARGIN + columns * block_width + (columns - 1) * _BLOCK_GAP + _BLOCK_GAP + bars.width
    height = 2 * _MARGIN + rows * blocks[0].height + (rows - 1) * _BLOCK_GAP
    picture, _ = blank(width, max(height, bars.height + 2 * _MARGIN))
    for index, block in enumerate(blocks):
        x = _MARGIN + (index % columns) * (block_width + _BLOCK_GAP)
        y = _MARGIN + (index // columns) * (block.height + _BLOCK_GAP)
        picture.paste(block, (x, y))
    picture.paste(bars, (width - _MARGIN - bars.width, _MARGIN))
    return np.asarray(with_banner(picture, notice))


def depth_range(tiles: Sequence[Tile]) -> tuple[float, float]:
    """Return the 2nd and 98th percentile of all known depths; (0, 1) if there are none."""
    known = [tile.depth[tile.depth > 0] for tile in tiles]
    values = np.concatenate(known) if known else np.zeros(0)
    if values.size == 0:
        return 0.0, 1.0
    lowest, highest = (float(bound) for bound in np.quantile(values, (0.02, 0.98)))
    return (lowest, highest) if highest > lowest else (lowest * 0.9, highest * 1.1)


def _block(tiles: Sequence[Tile], lowest: float, highest: float) -> Image.Image:
    """Draw one instant: a heading, the names of the views, and a row per kind of map."""
    sizes = [_tile_size(tile) for tile in tiles]
    rows = [_map_row(name, tiles, lowest, highest) for name in ("image", "depth", "confidence", "dynamic")]
    rows = [row for row in rows if any(cell is not None for cell in row[1])]
    label_width, row_height = 78, max(height for _, height in sizes)
    width = label_width + sum(tile_width for tile_width, _ in sizes) + _GAP * (len(sizes) - 1)
    top = _LABEL + 22
    picture, pen = blank(width, top + len(rows) * (row_height + _GAP) - _GAP)
    pen.text((0, 8), f"t = {tiles[0].time:.3f} s", fill=INK, font=font(15), anchor="lm")
    for index, (label, cells) in enumerate(rows):
        y = top + index * (row_height + _GAP)
        pen.text((0, y + row_height / 2), label, fill=FAINT, font=font(13), anchor="lm")
        x = label_width
        for tile, (tile_width, tile_height), cell in zip(tiles, sizes, cells, strict=True):
            if index == 0:
                name = shortened(drawable(tile.view), 13, tile_width)
                pen.text((x + tile_width / 2, 22 + _LABEL / 2), name, fill=INK, font=font(13), anchor="mm")
            place = (x, y + (row_height - tile_height) // 2)
            if cell is None:
                pen.rectangle((*place, place[0] + tile_width - 1, place[1] + tile_height - 1), fill=NO_VALUE)
            else:
                picture.paste(_fitted(cell, tile_width, tile_height), place)
            x += tile_width + _GAP
    return picture


def _tile_size(tile: Tile) -> tuple[int, int]:
    """Return width and height of a view's tiles: portrait and landscape cover the same area."""
    aspect = min(max(tile.depth.shape[1] / tile.depth.shape[0], 0.25), 4.0)
    return round(math.sqrt(_TILE_AREA * aspect)), round(math.sqrt(_TILE_AREA / aspect))


def _map_row(
    name: str, tiles: Sequence[Tile], lowest: float, highest: float
) -> tuple[str, list[NDArray[np.uint8] | None]]:
    """Colour one kind of map of every view; None where a view has none."""
    cells: list[NDArray[np.uint8] | None] = []
    for tile in tiles:
        known = tile.depth > 0
        if name == "image":
            cells.append(tile.image)
        elif name == "depth":
            cells.append(colored((tile.depth - lowest) / (highest - lowest), known, _DEPTH_COLORS))
        elif name == "confidence":
            cells.append(None if tile.confidence is None else colored(tile.confidence, known, _CONFIDENCE_COLORS))
        else:
            cells.append(None if tile.dynamic is None else _moving(tile))
    return {"dynamic": "moving"}.get(name, name), cells


def _moving(tile: Tile) -> NDArray[np.uint8]:
    """Paint what moves red over a pale grey image."""
    mask = np.asarray(tile.dynamic, dtype=bool)
    grey = np.full(mask.shape, 200.0)
    if tile.image is not None:
        size = (mask.shape[1], mask.shape[0])
        grey = cv2.resize(tile.image, size, interpolation=cv2.INTER_AREA).mean(axis=-1) * 0.6 + 96
    rgb = grey[..., None].repeat(3, axis=-1)
    return np.where(mask[..., None], 0.25 * rgb + 0.75 * _MOVING, rgb).astype(np.uint8)


def _fitted(cell: NDArray[np.uint8], width: int, height: int) -> Image.Image:
    smaller = width * height < cell.shape[0] * cell.shape[1]
    interpolation = cv2.INTER_AREA if smaller else cv2.INTER_NEAREST
    return Image.fromarray(cv2.resize(np.ascontiguousarray(cell), (width, height), interpolation=interpolation))


def _block_columns(number: int, width: int, height: int) -> int:
    """Return the number of blocks side by side that brings the sheet near to 3:2 and leaves few places empty."""

    def badness(columns: int) -> float:
        rows = math.ceil(number / columns)
        empty = 1 - number / (rows * columns)
        return abs(math.log(columns * width / (rows * height) / 1.5)) + 2 * empty

    return min(range(1, number + 1), key=badness)


def _color_bars(lowest: float, highest: float, scale: Scale, height: int) -> Image.Image:
    labels = tuple(f"{lowest + fraction * (highest - lowest):.3g}" for fraction in (0, 0.25, 0.5, 0.75, 1))
    height = max(height // 2, 110)
    depth = color_bar(height, _DEPTH_COLORS, labels, f"depth [{short_unit(scale)}]")
    confidence = color_bar(height, _CONFIDENCE_COLORS, ("0", "0.5", "1"), "confidence")
    picture, pen = blank(max(depth.width, confidence.width) + 2, 2 * height + 64)
    picture.paste(depth, (0, 0))
    picture.paste(confidence, (0, height + 10))
    pen.rectangle((0, 2 * height + 24, 13, 2 * height + 37), fill=NO_VALUE)
    pen.text((22, 2 * height + 31), "no value", fill=INK, font=font(12), anchor="lm")
    pen.rectangle((0, 2 * height + 46, 13, 2 * height + 59), fill=tuple(int(channel) for channel in _MOVING))
    pen.text((22, 2 * height + 53), "moving", fill=INK, font=font(12), anchor="lm")
    return picture
