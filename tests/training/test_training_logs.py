"""Metrics files that survive kills and resuming, and their chart."""

import json

import numpy as np
import pytest
from PIL import Image

from page4d.errors import InputError
from page4d.lab.training.curves import draw_curve
from page4d.lab.training.logs import MetricsFile, read_metrics
from page4d.lab.training.validation import MEAN, NETWORK
from page4d.plotting.canvas import VIEW_COLORS


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, steps, start: int) -> None:
    log = MetricsFile(path, start)
    for step in steps:
        log.write("step", {"step": step, "samples": step, "losses": {"total": 1.0 / step}})
    log.close()


def test_resuming_drops_the_lines_after_the_position(path):
    write(path, range(1, 6), 0)
    write(path, (4, 5), 3)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4, 5]


def test_an_incomplete_last_line_is_dropped(path):
    write(path, (1, 2), 0)
    path.write_text(path.read_text() + '{"kind": "step", "st')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    write(path, (3,), 2)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]


def test_non_finite_numbers_are_null(path):
    log = MetricsFile(path, 0)
    log.write("step", {"step": 1, "samples": 1, "losses": {"total": float("nan"), "depth": float("inf")}})
    log.close()
    assert read_metrics(path)[0]["losses"] == {"total": None, "depth": None}


def test_a_file_without_json_is_refused(path):
    path.write_text("step 1\nstep 2\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        read_metrics(path)


def test_the_chart_shows_losses_metrics_and_baselines(tmp_path):
    figures = {"abs_rel": 0.2, "rotation_deg": 20.0, "direction_deg": None, "focal": 0.1, "mask_iou": None}
    metrics = [{"kind": "baselines", "step": 0, "figures": {"arc": {MEAN: figures}}}]
    for step in range(1, 9):
        metrics.append({"kind": "step", "step": step, "samples": 10 * step, "losses": {"total": 8.0 / step}})
        found = {**figures, "abs_rel": 0.4 / step}
        metrics.append(
            {"kind": "evaluation", "step": step, "samples": 10 * step, "figures": {"arc": {NETWORK: found}}}
        )
    draw_curve(json.loads(json.dumps(metrics)), tmp_path / "curve.png")
    pixels = np.asarray(Image.open(tmp_path / "curve.png"))
    loss, depth, rotation = (pixels[:280, column * 430 : (column + 1) * 430] for column in range(3))
    assert (loss == VIEW_COLORS[1]).all(-1).sum() > 200
    assert (depth == VIEW_COLORS[0]).all(-1).sum() > 200
    assert (rotation == VIEW_COLORS[0]).all(-1).sum() > 200
    draw_curve([], tmp_path / "empty.png")
    assert Image.open(tmp_path / "empty.png").size == Image.open(tmp_path / "curve.png").size
