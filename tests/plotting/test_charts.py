"""Line charts: legends, gaps, empty charts, and pixels that depend on the data only."""

import subprocess
import sys

import numpy as np
import pytest

from page4d.plotting.canvas import BACKGROUND, INK, PREDICTED_POINTS, TRUE_POINTS, VIEW_COLORS, Color
from page4d.plotting.charts import Chart, Curve, draw_chart

SIZE = (430, 300)


def chart(*curves: Curve, **options: object) -> Chart:
    return Chart(title="title", x_label="time [s]", y_label="error [m]", curves=curves, **options)


def count(picture: np.ndarray, color: Color) -> int:
    return int((picture == color).all(-1).sum())


def rising(name: str = "curve", color: Color = VIEW_COLORS[0], **options: object) -> Curve:
    return Curve(name=name, color=color, x=[0.0, 1.0, 2.0], y=[1.0, 2.0, 4.0], width=3, **options)


@pytest.mark.parametrize("points", [PREDICTED_POINTS, TRUE_POINTS])
def test_points_differ_from_what_is_drawn_over_them(points: Color) -> None:
    assert np.abs(np.array([BACKGROUND, INK, *VIEW_COLORS]) - points).max(-1).min() > 60


def test_a_chart_has_its_size_and_the_colours_of_its_curves() -> None:
    picture = draw_chart(chart(rising(), rising("b", VIEW_COLORS[1])), size=SIZE)
    assert picture.shape == (SIZE[1], SIZE[0], 3)
    assert picture.dtype == np.uint8
    assert min(count(picture, color) for color in VIEW_COLORS[:2]) > 100
    assert count(draw_chart(chart(), size=SIZE), VIEW_COLORS[0]) == 0


def test_equal_charts_have_equal_pixels_whatever_the_user_style() -> None:
    first = draw_chart(chart(rising()))
    from matplotlib import rc_context

    with rc_context({"lines.linewidth": 9.0, "font.size": 30.0, "axes.facecolor": "black"}):
        second = draw_chart(chart(rising()))
    assert np.array_equal(first, second)


def test_missing_values_are_gaps_and_lone_points_are_dots() -> None:
    def inked(y: list[float | None]) -> int:
        return count(draw_chart(chart(Curve(name="", color=VIEW_COLORS[0], x=[0, 1, 2, 3, 4], y=y))), VIEW_COLORS[0])

    whole, gap, dots, none = (
        inked(y) for y in ([1.0] * 5, [1.0, 1.0, None, 1.0, 1.0], [1.0, None, None, None, 1.0], [None] * 5)
    )
    assert whole > 1.5 * gap > 1.5 * dots > 0 == none


def test_names_with_special_characters_are_drawn() -> None:
    plain = draw_chart(chart(rising("camera")))
    for name in ("_camera", "$x^2", "$camera$", "Kamera ü", "日本", "x" * 200):
        assert not np.array_equal(draw_chart(chart(rising(name))), plain), name


def test_a_legend_of_many_curves_leaves_space_for_the_data() -> None:
    few, many = (
        draw_chart(chart(*(rising(f"camera {index}", VIEW_COLORS[0]) for index in range(number))))
        for number in (2, 60)
    )
    assert count(many, VIEW_COLORS[0]) > 0.7 * count(few, VIEW_COLORS[0])


@pytest.mark.parametrize("y", [[0.0, 0.0], [1e-9, 2e-9], [-3.0, 5.0], [1e12, 2e12]])
def test_any_range_of_values_is_drawn(y: list[float]) -> None:
    curve = Curve(name="", color=VIEW_COLORS[0], x=[5.0, 6.0], y=y, width=3)
    assert count(draw_chart(chart(curve)), VIEW_COLORS[0]) > 100


def test_matplotlib_is_imported_only_when_a_chart_is_drawn() -> None:
    code = (
        "import sys; from page4d.plotting.charts import Chart, draw_chart\n"
        "assert 'matplotlib' not in sys.modules\n"
        "draw_chart(Chart(title='', x_label='', y_label='', curves=[]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
