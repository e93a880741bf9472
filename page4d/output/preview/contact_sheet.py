"""Contact sheet of images, depth, confidence, motion masks and velocities of every view at up to four instants."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from page4d.conventions import Scale
from page4d.output.reader import Output
from page4d.plotting.canvas import (
    BACKGROUND,
    CONFIDENCE_MAP,
    DEPTH_MAP,
    FAINT,
    INK,
    MOVING,
    NO_VALUE,
    STILL,
    blank,
    color_bar,
    colored,
    draw_key,
    drawable,
    fitted_text,
    font,
    text_size,
    tile,
    velocity_colors,
    with_banner,
)

MAX_INSTANTS = 4
_TILE_AREA = 220 * 165
_FULL_TILES = 16
"""Views up to which tiles have that area; those of 64 and more have a quarter of it."""

_ONE_STRIP = 8
"""Views up to which an instant is one strip."""

_GAP = 6
_LABEL = 20
_BLOCK_GAP = 26
_MARGIN = 18
_WHEEL = 72
"""Diameter of the colour wheel of velocities in pixels."""


@dataclass(frozen=True, kw_only=True)
class FrameMaps:
    """Maps [H, W] of one frame and its image [h, w, 3] of the same aspect ratio, if available; depth 0 is unknown.

    `velocity` [H, W, 3] is in the axes of the camera, per second, and NaN where it is unknown.
    """

    view: str
    time: float
    depth: NDArray[np.float32]
    image: NDArray[np.uint8] | None = None
    confidence: NDArray[np.float32] | None = None
    dynamic: NDArray[np.bool_] | None = None
    velocity: NDArray[np.float32] | None = None


def read_frames(
    output: Output, time_index: int, images: Sequence[NDArray[np.uint8] | None] | None = None
) -> list[FrameMaps]:
    """Read the maps of all views at one instant from an output folder, which contains no images: pass them."""
    return [
        FrameMaps(
            view=view,
            time=output.run.times[time_index],
            depth=output.depth(time_index, view),
            image=None if images is None else images[index],
            confidence=output.confidence(time_index, view),
            dynamic=output.dynamic(time_index, view),
            velocity=_camera_velocity(output, time_index, index) if output.has_velocity else None,
        )
        for index, view in enumerate(output.view_names)
    ]


def _camera_velocity(output: Output, time_index: int, view: int) -> NDArray[np.float32]:
    """Return the velocities [H, W, 3] of a frame in the axes of its camera, NaN where they are unknown."""
    velocity, sigma = output.velocity(time_index, output.view_names[view])
    rotation = output.cameras.world_to_camera[time_index, view, :3, :3].numpy()
    turned: NDArray[np.float32] = np.where((sigma > 0)[..., None], velocity @ rotation.T, np.nan).astype(np.float32)
    return turned


def contact_sheet(instants: Sequence[Sequence[FrameMaps]], scale: Scale, notice: str = "") -> NDArray[np.uint8]:
    """Draw one block per instant, with one column per view, in several strips for many views.

    All share one depth range.

    Returns the picture [H, W, 3] in RGB.
    """
    all_frames = [frame for frames in instants for frame in frames]
    lowest, highest = depth_range(all_frames)
    fastest = highest_speed(all_frames)
    blocks = [_block(frames, lowest, highest, fastest) for frames in instants]
    block_width = max(block.width for block in blocks)
    columns = _columns(len(blocks), block_width, blocks[0].height)
    rows = math.ceil(len(blocks) / columns)
    bars = _color_bars(lowest, highest, scale, min(blocks[0].height, 420))
    if fastest is not None:
        bars = _stacked(bars, _velocity_legend(fastest, scale))
    width = 2 * _MARGIN + columns * block_width + (columns - 1) * _BLOCK_GAP + _BLOCK_GAP + bars.width
    height = 2 * _MARGIN + rows * blocks[0].height + (rows - 1) * _BLOCK_GAP
    picture, _ = blank(width, max(height, bars.height + 2 * _MARGIN))
    for index, block in enumerate(blocks):
        x = _MARGIN + (index % columns) * (block_width + _BLOCK_GAP)
        y = _MARGIN + (index // columns) * (block.height + _BLOCK_GAP)
        picture.paste(block, (x, y))
    picture.paste(bars, (width - _MARGIN - bars.width, _MARGIN))
    return np.asarray(with_banner(picture, notice))


def depth_range(frames: Sequence[FrameMaps]) -> tuple[float, float]:
    """Return the 2nd and 98th percentile of all known depths; (0, 1) if there are none."""
    known = [frame.depth[frame.depth > 0] for frame in frames]
    values = np.concatenate(known) if known else np.zeros(0)
    if values.size == 0:
        return 0.0, 1.0
    lowest, highest = (float(bound) for bound in np.quantile(values, (0.02, 0.98)))
    return (lowest, highest) if highest > lowest else (lowest * 0.9, highest * 1.1)


def highest_speed(frames: Sequence[FrameMaps]) -> float | None:
    """Return the 95th percentile of the speeds of all moving pixels; 1 if nothing moves, None without velocities."""
    speeds = [np.linalg.norm(frame.velocity, axis=-1) for frame in frames if frame.velocity is not None]
    if not speeds:
        return None
    moving = np.concatenate([speed[speed > 0] for speed in speeds])  # NaN is not above 0
    return float(np.quantile(moving, 0.95)) if moving.size else 1.0


def _block(frames: Sequence[FrameMaps], lowest: float, highest: float, fastest: float | None) -> Image.Image:
    """Draw one instant: as many strips as bring it close to 3:2."""
    number = len(frames)
    area = _TILE_AREA / min(max(number / _FULL_TILES, 1), 4)
    width = fmean(_tile_size(frame, area)[0] for frame in frames) + _GAP
    columns = number
    if number > _ONE_STRIP:
        columns = _columns(number, width, _strip(frames[:1], area, lowest, highest, fastest).height)
    parts = (frames[first : first + columns] for first in range(0, number, columns))
    return reduce(_stacked, (_strip(part, area, lowest, highest, fastest) for part in parts))


def _strip(
    frames: Sequence[FrameMaps], area: float, lowest: float, highest: float, fastest: float | None
) -> Image.Image:
    """Draw some views at an instant: its time, the view names, and one row per kind of map, in tiles of an area."""
    sizes = [_tile_size(frame, area) for frame in frames]
    cells = [_cells(frame, lowest, highest, fastest) for frame in frames]
    rows = [label for label in cells[0] if any(column[label] is not None for column in cells)]
    label_width, row_height = 78, max(height for _, height in sizes)
    width = label_width + sum(tile_width for tile_width, _ in sizes) + _GAP * (len(sizes) - 1)
    top = _LABEL + 22
    picture, pen = blank(width, top + len(rows) * (row_height + _GAP) - _GAP)
    pen.text((0, 8), f"t = {frames[0].time:.3f} s", fill=INK, font=font(15), anchor="lm")
    for index, label in enumerate(rows):
        pen.text(
            (0, top + index * (row_height + _GAP) + row_height / 2), label, fill=FAINT, font=font(13), anchor="lm"
        )
    x = label_width
    for frame, (tile_width, tile_height), column in zip(frames, sizes, cells, strict=True):
        name = fitted_text(drawable(frame.view), 13, tile_width)
        pen.text((x + tile_width / 2, 22 + _LABEL / 2), name, fill=INK, font=font(13), anchor="mm")
        for index, label in enumerate(rows):
            cell, y = column[label], top + index * (row_height + _GAP) + (row_height - tile_height) // 2
            if cell is None:
                pen.rectangle((x, y, x + tile_width - 1, y + tile_height - 1), fill=NO_VALUE)
            else:
                picture.paste(tile(cell, tile_width, tile_height), (x, y))
        x += tile_width + _GAP
    return picture


def _tile_size(frame: FrameMaps, area: float) -> tuple[int, int]:
    """Return width and height of a view's tiles; portrait and landscape views get equal areas."""
    aspect = min(max(frame.depth.shape[1] / frame.depth.shape[0], 0.25), 4.0)
    return round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))


def _cells(
    frame: FrameMaps, lowest: float, highest: float, fastest: float | None
) -> dict[str, NDArray[np.uint8] | None]:
    """Return the coloured maps of a frame by row label; None where a map is missing."""
    known = frame.depth > 0
    return {
        "image": frame.image,
        "depth": colored((frame.depth - lowest) / (highest - lowest), known, DEPTH_MAP),
        "confidence": None if frame.confidence is None else colored(frame.confidence, known, CONFIDENCE_MAP),
        "moving": None if frame.dynamic is None else _motion_overlay(frame.dynamic, frame.image),
        "velocity": None if frame.velocity is None else velocity_colors(frame.velocity, fastest or 1.0),
    }


def _motion_overlay(mask: NDArray[np.bool_], image: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Paint moving pixels red over a pale grey image."""
    grey = np.full(mask.shape, 200.0)
    if image is not None:
        grey = cv2.resize(image, mask.shape[::-1], interpolation=cv2.INTER_AREA).mean(axis=-1) * 0.6 + 96
    rgb = grey[..., None].repeat(3, axis=-1)
    return np.where(mask[..., None], 0.25 * rgb + 0.75 * np.array(MOVING), rgb).astype(np.uint8)


def _columns(number: int, width: float, height: float) -> int:
    """Return the number of cells per row that brings a picture of all close to 3:2 with few empty places."""

    def cost(columns: int) -> float:
        rows = math.ceil(number / columns)
        empty = 1 - number / (rows * columns)
        return abs(math.log(columns * width / (rows * height) / 1.5)) + 2 * empty

    return min(range(1, number + 1), key=cost)


def _color_bars(lowest: float, highest: float, scale: Scale, height: int) -> Image.Image:
    decimals = max(0, 2 - math.floor(math.log10(highest))) if highest > 0 else 0  # three digits of the highest
    labels = tuple(f"{lowest + fraction * (highest - lowest):.{decimals}f}" for fraction in (0, 0.25, 0.5, 0.75, 1))
    height = max(height // 2, 110)
    depth = color_bar(height, DEPTH_MAP, labels, f"depth [{scale.symbol}]")
    confidence = color_bar(height, CONFIDENCE_MAP, ("0", "0.5", "1"), "confidence")
    picture, pen = blank(max(depth.width, confidence.width) + 2, 2 * height + 64)
    picture.paste(depth, (0, 0))
    picture.paste(confidence, (0, height + 10))
    draw_key(pen, (0, 2 * height + 24), NO_VALUE, "no value", 12)
    draw_key(pen, (0, 2 * height + 46), MOVING, "moving", 12)
    return picture


def _velocity_legend(fastest: float, scale: Scale) -> Image.Image:
    """Draw the colours of all directions in the picture, speeds from 0 in the middle to the fastest at the rim."""
    title, size = f"velocity [{scale.symbol}/s]", _WHEEL
    rim = f"rim: {fastest:.{max(0, 1 - math.floor(math.log10(fastest)))}f}"
    picture, pen = blank(max(size, *(text_size(text, 12)[0] for text in (title, rim))) + 6, size + 68)
    pen.text((0, 2), title, fill=INK, font=font(12))
    along = (np.arange(size) + 0.5) * 2 / size - 1
    x, y = np.meshgrid(along, along)
    colors = velocity_colors(np.stack([x, y, np.zeros_like(x)], axis=-1) * fastest, fastest)
    outside = (x**2 + y**2 > 1)[..., None]
    picture.paste(Image.fromarray(np.where(outside, np.array(BACKGROUND), colors).astype(np.uint8)), (0, 22))
    pen.text((0, size + 28), rim, fill=INK, font=font(12))
    draw_key(pen, (0, size + 48), STILL, "still", 12)
    return picture


def _stacked(above: Image.Image, below: Image.Image) -> Image.Image:
    picture, _ = blank(max(above.width, below.width), above.height + _MARGIN + below.height)
    picture.paste(above, (0, 0))
    picture.paste(below, (0, above.height + _MARGIN))
    return picture
