"""Metrics files that survive kills and resuming, and their chart."""

import pytest

from page4d.errors import InputError
from page4d.lab.training.logs import MetricsFile, read_metrics


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
