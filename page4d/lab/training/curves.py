"""Charts of a training: losses, and metrics of validation with their baselines, over samples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page4d.formats.maps import write_png
from page4d.lab.training.validation import MEAN, NETWORK, NETWORK_WITH_CAMERAS
from page4d.plotting.canvas import INK, view_color
from page4d.plotting.charts import Chart, Curve, draw_charts

_PANEL = (430, 300)
_COLUMNS = 3
_MAX_LOSS_POINTS = 200
"""The loss is averaged over groups of steps, so that a curve has about this many points."""

_METRICS = {
    "abs_rel": ("Depth", "AbsRel"),
    "rotation_deg": ("Relative rotation", "error [deg]"),
    "direction_deg": ("Relative translation direction", "error [deg]"),
    "focal": ("Focal length", "relative error"),
    "mask_iou": ("Motion mask", "IoU"),
}
_WITH_CAMERAS = ("abs_rel", "mask_iou")
"""Metrics that are meaningful for a network with given cameras."""

_KEYS = (
    Curve(name="cameras given", color=INK, style="--"),
    Curve(name="mean scene (baseline)", color=INK, style=":"),
)


def draw_curve(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the training loss and the validation metrics of a run's `metrics.jsonl` as PNG.

    Raises:
        OutputError: if it cannot be written.
    """
    charts = [Chart(title="Training loss", x_label="samples", y_label="loss", curves=[_loss(metrics)], whole_x=True)]
    charts += [
        Chart(title=title, x_label="samples", y_label=label, curves=_validation(metrics, name), whole_x=True)
        for name, (title, label) in _METRICS.items()
    ]
    write_png(path, draw_charts(charts, _COLUMNS, _PANEL, legend="shared"))


def draw_losses(metrics: Sequence[Mapping[str, Any]], path: Path, titles: Mapping[str, str]) -> None:
    """Draw losses of a run's `metrics.jsonl` by name as PNG, one chart per title.

    Raises:
        OutputError: if it cannot be written.
    """
    charts = [
        Chart(
            title=title, x_label="samples", y_label="", curves=[_loss(metrics, name)], from_zero=False, whole_x=True
        )
        for name, title in titles.items()
    ]
    write_png(path, draw_charts(charts, min(_COLUMNS, len(charts)), _PANEL))


def _loss(metrics: Sequence[Mapping[str, Any]], name: str = "total") -> Curve:
    points = [
        (float(line["samples"]), float(line["losses"][name]))
        for line in metrics
        if line["kind"] == "step" and line["losses"].get(name) is not None
    ]
    group = max(1, len(points) // _MAX_LOSS_POINTS)
    groups = [points[start : start + group] for start in range(0, len(points), group)]
    x, y = ([math.fsum(point[axis] for point in part) / len(part) for part in groups] for axis in (0, 1))
    return Curve(name="", x=x, y=y, color=view_color(1))


def _validation(metrics: Sequence[Mapping[str, Any]], metric: str) -> list[Curve]:
    """Return the curves of one metric: per scene family the network, with given cameras, and the baseline."""
    evaluations, starts = ([line for line in metrics if line["kind"] == kind] for kind in ("evaluation", "baselines"))
    last = max((float(line["samples"]) for line in metrics if "samples" in line), default=0.0)
    families = dict.fromkeys(name for line in evaluations for name in line["figures"])
    curves = []
    for index, family in enumerate(families):
        color = view_color(index)
        curves.append(Curve(name=family, color=color, **_points(evaluations, metric, family, NETWORK)))
        if metric in _WITH_CAMERAS:
            points = _points(evaluations, metric, family, NETWORK_WITH_CAMERAS)
            curves.append(Curve(name="", color=color, style="--", **points))
        values = _points(starts, metric, family, MEAN)["y"][:1]
        curves += [Curve(name="", color=color, style=":", x=[0.0, last], y=[value] * 2) for value in values]
    return [*curves, *_KEYS] if curves else []


def _points(lines: Sequence[Mapping[str, Any]], metric: str, family: str, row: str) -> dict[str, Any]:
    points = [
        (float(line.get("samples", 0)), float(value))
        for line in lines
        if (value := line["figures"].get(family, {}).get(row, {}).get(metric)) is not None
    ]
    return {"x": [x for x, _ in points], "y": [y for _, y in points]}
