"""The picture of a run: what it minimised, and what held-out scenes say, over samples."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import ImageDraw

from page4d.io.atomic import write_bytes_atomic
from page4d.plotting.canvas import (
    BACKGROUND,
    FAINT,
    INK,
    NO_VALUE,
    VIEW_COLORS,
    blank,
    drawable,
    font,
    round_length,
)
from page4d.training.validation.validation import MEAN, NETWORK, NETWORK_WITH_CAMERAS

_PANEL = (400, 250)
_MARGIN = (52, 34, 16, 28)
"""Of a panel, in pixels: left, top, right, bottom."""

_TITLES = {
    "abs_rel": "depth AbsRel",
    "rotation_deg": "rotation, degrees",
    "direction_deg": "direction, degrees",
    "focal": "focal length, relative",
    "mask_iou": "mask IoU",
}
_COLUMNS = 3
_FOOTNOTE = "over samples; held-out scenes by family, told: the cameras; dashed: the mean scene, said of every scene"


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points (samples, value); a dashed one is what the network must beat."""

    name: str
    points: tuple[tuple[float, float], ...]
    color: tuple[int, int, int]
    dashed: bool = False


def draw_curve(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the lines of a run's `metrics.jsonl` as a PNG.

    Raises:
        OutputError: if it cannot be written.
    """
    panels = {"loss": _loss(metrics)} | {title: _held_out(metrics, name) for name, title in _TITLES.items()}
    _draw_panels(panels, path, _FOOTNOTE)


def draw_losses(metrics: Sequence[Mapping[str, Any]], path: Path, titles: Mapping[str, str]) -> None:
    """Draw some losses of a run's `metrics.jsonl` as a PNG, each under its title, from its lowest value up.

    Raises:
        OutputError: if it cannot be written.
    """
    panels = {title: [replace(line, name="") for line in _loss(metrics, name)] for name, title in titles.items()}
    _draw_panels(panels, path, "over samples", floor=math.inf)


def _draw_panels(panels: Mapping[str, Sequence[Line]], path: Path, footnote: str, floor: float = 0.0) -> None:
    """Draw panels whose axes reach down to `floor`, or to the lowest value if that is lower."""
    width, height = _PANEL
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    picture, pen = blank(width * columns, height * rows + 24)
    for index, (title, lines) in enumerate(panels.items()):
        _draw_panel(pen, ((index % columns) * width, (index // columns) * height), title, lines, floor)
    pen.text((_MARGIN[0], height * rows), footnote, fill=FAINT, font=font(12))
    encoded = io.BytesIO()
    picture.save(encoded, format="PNG", optimize=True)
    write_bytes_atomic(path, encoded.getvalue())


def _loss(metrics: Sequence[Mapping[str, Any]], name: str = "total") -> list[Line]:
    points = [
        (float(line["samples"]), float(line["losses"][name]))
        for line in metrics
        if line["kind"] == "step" and line["losses"].get(name) is not None
    ]
    group = max(1, len(points) // 200)
    means = [
        tuple(math.fsum(values) / len(values) for values in zip(*points[start : start + group], strict=True))
        for start in range(0, len(points), group)
    ]
    return [Line(name=name, points=tuple((x, y) for x, y in means), color=VIEW_COLORS[1])]


def _held_out(metrics: Sequence[Mapping[str, Any]], figure: str) -> list[Line]:
    evaluations = [line for line in metrics if line["kind"] == "evaluation"]
    lines = []
    for number, family in enumerate(dict.fromkeys(name for line in evaluations for name in line["figures"])):
        for shift, (row, told) in enumerate(((NETWORK, ""), (NETWORK_WITH_CAMERAS, ", told"))):
            points = [
                (float(line["samples"]), float(value))
                for line in evaluations
                if (value := line["figures"][family].get(row, {}).get(figure)) is not None
            ]
            color = VIEW_COLORS[(2 * number + shift) % len(VIEW_COLORS)]
            if points and (not told or figure in ("abs_rel", "mask_iou")):
                lines.append(Line(name=f"{family}{told}", points=tuple(points), color=color))
        lines += _to_beat(metrics, figure, family, VIEW_COLORS[2 * number % len(VIEW_COLORS)])
    return lines


def _to_beat(
    metrics: Sequence[Mapping[str, Any]], figure: str, family: str, color: tuple[int, int, int]
) -> list[Line]:
    last = max((float(line["samples"]) for line in metrics if "samples" in line), default=0.0)
    values = [
        line["figures"][family][MEAN][figure]
        for line in metrics
        if line["kind"] == "baselines" and line["figures"].get(family, {}).get(MEAN, {}).get(figure) is not None
    ]
    return [Line(name="", points=((0.0, value), (last, value)), color=color, dashed=True) for value in values[:1]]


def _draw_panel(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], title: str, lines: Sequence[Line], floor: float
) -> None:
    left, top = corner[0] + _MARGIN[0], corner[1] + _MARGIN[1]
    right, bottom = corner[0] + _PANEL[0] - _MARGIN[2], corner[1] + _PANEL[1] - _MARGIN[3]
    pen.text((left, corner[1] + 6), title, fill=INK, font=font(14))
    points = [point for line in lines for point in line.points]
    if not points:
        pen.text(((left + right) / 2, (top + bottom) / 2), "no values", fill=FAINT, font=font(12), anchor="mm")
        return
    furthest = max(max(x for x, _ in points), 1.0)
    lowest = min(floor, min(y for _, y in points))
    heights = _round_steps(lowest, max(max(y for _, y in points), lowest + 1e-9))
    lowest, highest = heights[0], heights[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / furthest, bottom - (bottom - top) * (y - lowest) / (highest - lowest)

    for value in heights:
        y = at(0, value)[1]
        pen.line((left, y, right, y), fill=NO_VALUE)
        pen.text((left - 6, y), f"{value:g}", fill=FAINT, font=font(11), anchor="rm")
    for value in _round_steps(0, furthest):
        if value <= furthest:
            pen.text((at(value, 0)[0], bottom + 6), f"{value:,.0f}", fill=FAINT, font=font(11), anchor="ma")
    for line in lines:
        _draw_line(pen, [at(x, y) for x, y in line.points], line)
    _draw_legend(pen, (right, corner[1] + 8), [line for line in lines if line.name])


def _round_steps(lowest: float, highest: float) -> list[float]:
    """Return round numbers that enclose a range, three to eight of them."""
    step = round_length((highest - lowest) / 3)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _draw_line(pen: ImageDraw.ImageDraw, points: Sequence[tuple[float, float]], line: Line) -> None:
    if line.dashed:
        (start, height), (end, _) = points[0], points[-1]
        for left in range(round(start), round(end), 8):
            pen.line((left, height, min(left + 4, end), height), fill=line.color)
    elif len(points) == 1:
        (x, y) = points[0]
        pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=line.color)
    else:
        pen.line(list(points), fill=line.color, width=2, joint="curve")


def _draw_legend(pen: ImageDraw.ImageDraw, corner: tuple[float, float], lines: Sequence[Line]) -> None:
    """Name the lines from right to left above a panel."""
    x, y = corner
    for line in reversed(lines):
        text = drawable(line.name)
        x -= pen.textlength(text, font=font(11))
        pen.text((x, y), text, fill=line.color, font=font(11))
        pen.rectangle((x - 12, y + 3, x - 4, y + 10), fill=line.color, outline=BACKGROUND)
        x -= 22
