"""Line charts and other figures of matplotlib's Agg backend, without pyplot and the user's style settings."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from page4d.plotting.canvas import BACKGROUND, FAINT, GRID, INK, Color, drawable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
_MAX_NAME = 26
_MAX_ENTRIES = 18


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Line through points, with gaps where y is None.

    Points without neighbours are drawn as dots, hollow ones if the line is dashed. `width` is in points. A curve
    without a name has no legend entry, one without points only a legend entry.
    """

    name: str
    color: Color
    x: Sequence[float] = ()
    y: Sequence[float | None] = ()
    width: float = 1.6
    style: Literal["-", "--"] = "-"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over common axes. The y axis starts at 0 if no value is below."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


def draw_chart(chart: Chart, size: tuple[int, int] = (860, 470)) -> NDArray[np.uint8]:
    """Draw a chart of `size` (width, height) px with a legend on its right. Returns the picture [H, W, 3] in RGB.

    Equal input gives equal pixels.
    """

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        _draw_chart(axes, chart)
        add_legend(axes, chart.curves)

    return draw_figure(size, paint)


def draw_figure(size: tuple[int, int], paint: Callable[["Figure"], None]) -> NDArray[np.uint8]:
    """Draw a figure of `size` (width, height) px. Returns the picture [H, W, 3] in RGB."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where it has no folder for its cache
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context("default"):
        width, height = (side / _DPI for side in size)
        figure = Figure(figsize=(width, height), dpi=_DPI, facecolor=rgb(BACKGROUND), layout="constrained")
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.1, h_pad=0.1)
        paint(figure)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _draw_chart(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor(rgb(BACKGROUND))
    axes.set_title(drawable(chart.title), loc="left", fontsize=11, color=rgb(INK), parse_math=False)
    axes.set_xlabel(chart.x_label, fontsize=9.5, color=rgb(INK))
    axes.set_ylabel(chart.y_label, fontsize=9.5, color=rgb(INK))
    axes.tick_params(labelsize=9, colors=rgb(INK))
    axes.grid(visible=True, axis="y", color=rgb(GRID), linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(rgb(FAINT))
    for curve in chart.curves:
        _draw_curve(axes, curve)
    if not axes.lines:
        axes.text(0.5, 0.5, "no values", color=rgb(FAINT), ha="center", va="center", transform=axes.transAxes)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    if axes.dataLim.y0 >= 0:
        axes.set_ylim(0, 1.06 * axes.dataLim.y1 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))


def _draw_curve(axes: "Axes", curve: Curve) -> None:
    y = np.array([np.nan if value is None else value for value in curve.y], dtype=np.float64)
    known = np.isfinite(y)
    if not known.any():
        return
    x = np.asarray(curve.x, dtype=np.float64)
    axes.plot(x, y, **_line(curve))
    beyond = np.pad(known, 1)
    alone = known & ~beyond[:-2] & ~beyond[2:]
    if alone.any():
        face = rgb(curve.color if curve.style == "-" else BACKGROUND)
        dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5, "markerfacecolor": face}
        axes.plot(x[alone], y[alone], color=rgb(curve.color), **dot)


def _line(curve: Curve) -> dict[str, Any]:
    color = rgb(curve.color)
    return {"color": color, "solid_capstyle": "round", "linewidth": curve.width, "linestyle": curve.style}


def add_legend(axes: "Axes", curves: Sequence[Curve]) -> None:
    """Add a legend to the right of the axes; of many curves it names the first ones and the last one."""
    named = [curve for curve in curves if curve.name]
    if len(named) > _MAX_ENTRIES:
        omitted = len(named) - _MAX_ENTRIES + 2
        more = Curve(name=f"... {omitted} more", color=BACKGROUND)
        named = [*named[: _MAX_ENTRIES - 2], more, named[-1]]
    if named:
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0}
        _label(axes.legend(handles=_handles(named), frameon=False, **place), named)


def _handles(curves: Sequence[Curve]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], label=str(index), **_line(curve)) for index, curve in enumerate(curves)]


def _label(legend: Any, curves: Sequence[Curve]) -> None:
    """Set the texts of a legend as they are: matplotlib hides labels with a leading underscore and parses dollars."""
    for text, curve in zip(legend.get_texts(), curves, strict=True):
        text.set_text(short_name(curve.name))
        text.set_parse_math(False)
        text.set_fontsize(9.5)
        text.set_color(rgb(INK))


def short_name(name: str) -> str:
    """Return the characters of a name that can be drawn, without the middle of a long one."""
    name, kept = drawable(name), _MAX_NAME // 2 - 1
    return name if len(name) <= _MAX_NAME else f"{name[:kept]}...{name[-kept:]}"


def rgb(color: Color) -> tuple[float, float, float]:
    """Return a colour as matplotlib takes it."""
    red, green, blue = color
    return red / 255, green / 255, blue / 255
