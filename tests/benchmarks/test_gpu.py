"""The GPU benchmark runs on the CPU at small size, and compares two schedules of one network."""

import json
from argparse import Namespace
from functools import partial

import pytest
import torch

from page4d.networks.layers.execution import NO_LIMITS
from tests.benchmarks import gpu

CPU = torch.device("cpu")


def test_both_schedules_give_the_same_depth() -> None:
    public, ours = (gpu.network_of(gpu.SMALL, CPU, torch.float32, public=public) for public in (True, False))
    images = torch.rand(1, 1, 3, 3, 56, 70)
    with torch.inference_mode():
        torch.testing.assert_close(public(images, limits=NO_LIMITS).depth, ours(images).depth)


def test_every_combination_is_measured() -> None:
    options = Namespace(images=[1, 2], size=[28, 42], precisions=list(gpu.PRECISIONS))
    rows = list(gpu.schedules(gpu.SMALL, CPU, options))
    assert len(rows) == 8
    assert all(row["measured"]["bytes"] > 0 for row in rows)
    json.dumps(rows)


def test_sweeps_are_compared_with_those_of_the_cpu_and_with_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "peaks", partial(gpu.peaks, side=256))
    rows = list(gpu.sweeps(CPU, widths=(32,)))
    assert [row["work"] for row in rows] == ["correlation", "aggregation"]
    for row in rows:
        assert row["difference"] == 0
        assert 0 < row["cpu"]["of_arithmetic"] < 1
        assert row["cpu"]["of_memory"] > 0
    with gpu.waiting(CPU) as samples:
        assert samples == []
