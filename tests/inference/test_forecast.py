"""What a run is expected to take, and how the chunks follow from it."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from page4d.errors import InterruptedRunError, MemoryBudgetError, UsageError
from page4d.inference import probe
from page4d.inference.cost import Coefficients, Extent, NetworkCost, fit, process_bytes, quantities
from page4d.inference.forecast import LONGEST_CHUNK, Forecast, MemoryLimit, choose_length
from page4d.inference.memory import parse_memory, usable_bytes, used_bytes
from page4d.inference.output_policy import ExistingOutput
from page4d.inference.predictor import CPU, NetworkPredictor
from page4d.inference.reconstruct import reconstruct
from page4d.models.config import PRESETS
from page4d.models.network import build_network
from tests.inference.test_reconstruct import CAPTURE, NETWORK, SETTINGS, StopAt
from tests.inference.truth import TruthPredictor

TINY = PRESETS["mv-tiny"]


@pytest.fixture(scope="module")
def predictor() -> NetworkPredictor:
    torch.manual_seed(0)
    return NetworkPredictor(network=build_network(TINY).eval(), device=CPU)


def test_a_fit_finds_the_coefficients_of_what_it_was_given_and_none_below_zero():
    extents = [
        Extent(times=times + 1, views=views + 1, size=(14 * side + 14, 28))
        for times, views, side in np.ndindex(4, 3, 3)
    ]
    rows = [quantities(TINY, extent) for extent in extents]
    truth = (5e4, 120.0, 0.0, 3.0)
    found = fit(rows, [float(np.dot(truth, row)) for row in rows], from_above=False)
    np.testing.assert_allclose(found, truth, rtol=1e-6, atol=1e-6)
    noisy = [float(np.dot(truth, row)) * (1 + 0.1 * (-1) ** place) for place, row in enumerate(rows)]
    above = fit(rows, noisy, from_above=True)
    assert min(above) >= 0
    assert all(np.dot(above, row) >= value * (1 - 1e-9) for row, value in zip(rows, noisy, strict=True))


def test_bytes_of_small_passes_foretell_those_of_a_larger_one(predictor: NetworkPredictor):
    cost = NetworkCost(config=TINY, coefficients=probe.measure(predictor))
    extent = Extent(times=5, views=2, size=(140, 112))
    batch = probe.probe_batch(extent)
    counted = probe.cost_of(CPU, lambda: predictor.run(batch)).num_bytes
    assert abs(cost.num_bytes(extent) / counted - 1) < 0.03


def test_what_was_measured_is_remembered_until_the_network_is_another(
    predictor: NetworkPredictor, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []
    first = probe.network_cost(predictor, "ab" * 32, tell=told.append)
    assert "measuring, once" in told[0].text
    monkeypatch.setattr(probe, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert probe.network_cost(predictor, "ab" * 32, tell=told.append) == first
    assert len(told) == 1
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        probe.network_cost(predictor, "cd" * 32)
    for file in (tmp_path / "page4d").iterdir():
        file.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        probe.network_cost(predictor, "ab" * 32)


def forecast(per_pixel: float) -> Forecast:
    coefficients = Coefficients(bytes=(0, per_pixel, 0, 0), seconds=(1, 0, 0, 0))
    cost = NetworkCost(config=TINY, coefficients=coefficients)
    return Forecast(views=2, size=(140, 140), device=torch.device("cuda"), used_bytes=1000, cost=cost)


@pytest.mark.parametrize(("fitting", "chosen"), [(4, 4), (5, 5), (8, 8), (50, LONGEST_CHUNK)])
def test_a_chunk_is_as_long_as_fits_and_no_longer_than_is_good(fitting: int, chosen: int):
    allowed = MemoryLimit(num_bytes=1000 + fitting * 2 * 140 * 140 * 10, is_strict=True)
    assert choose_length(forecast(10.0), allowed, None, 4, 100) == (chosen, [])


def test_what_cannot_fit_is_refused_if_the_user_set_the_limit_and_else_warned_of():
    tight = MemoryLimit(num_bytes=2000, is_strict=True)
    with pytest.raises(MemoryBudgetError, match="chunks of 4 frames of 2 views at 140 px need about") as refused:
        choose_length(forecast(10.0), tight, None, 4, 100)
    assert refused.value.exit_code == 7
    with pytest.raises(MemoryBudgetError, match="chunks of 12 frames"):
        choose_length(forecast(10.0), tight, 12, 4, 100)
    for wanted, chosen in ((None, 4), (12, 12)):
        length, (warning,) = choose_length(forecast(10.0), replace(tight, is_strict=False), wanted, 4, 100)
        assert length == chosen
        assert "memory may run out" in warning.text


def test_memory_is_read_with_its_unit():
    assert [parse_memory(text) for text in ("auto", "20GB", "1.5 GiB", "300MB")] == [None, 20e9, 1.5 * 2**30, 3e8]
    for text in ("20", "GB", "0GB", "-1GB", "20gb"):
        with pytest.raises(UsageError, match="no amount of memory"):
            parse_memory(text)
    assert 0 < used_bytes(CPU) < usable_bytes(CPU)


def test_a_continued_run_keeps_its_plan_whatever_memory_there_is_now(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("page4d.inference.plan.used_bytes", lambda _: 0)
    scene, out = CAPTURE.scene(), tmp_path / "out"
    planned = replace(SETTINGS, chunk=None)
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, out, planned, observer=StopAt(1))
    again = replace(
        planned, memory_bytes=process_bytes(Extent(times=4, views=2, size=(24, 32)), 0, 2 * 24 * 32, preview=False)
    )
    record = reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, out, again, existing=ExistingOutput.RESUME)
    assert [(chunk.start, chunk.stop) for chunk in record.chunks] == [(0, 5), (3, 9)]
    fresh = reconstruct(scene, TruthPredictor(CAPTURE), NETWORK, tmp_path / "fresh", again)
    assert max(chunk.stop - chunk.start for chunk in fresh.chunks) == 4


def test_the_peak_is_that_of_this_process_and_not_of_the_one_that_started_it() -> None:
    ballast = np.ones(1 << 30, dtype=np.uint8)
    code = "import torch; from page4d.inference.memory import peak_bytes; print(peak_bytes(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1 << 26 < int(done.stdout) < len(ballast)
