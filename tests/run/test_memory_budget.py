"""Forecast of memory, chunk lengths that fit, and the cost model of a network."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.choices import ExistingOutput
from page4d.errors import InterruptedRunError, MemoryBudgetError, UsageError
from page4d.io.machine import trim_heap, used_memory
from page4d.networks.layers.execution import on_threads, reproducible
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.options import parse_memory
from page4d.run import memory as network_cost
from page4d.run.chunks import MAX_DEFAULT_LENGTH, choose_chunks
from page4d.run.memory import (
    Extent,
    Forecast,
    MemoryLimit,
    NetworkCost,
    fitting_checkpoint,
    total_bytes,
    unless_out_of_memory,
    usable_bytes,
    used_bytes,
)
from page4d.run.predictor import CPU, NetworkPredictor
from page4d.run.reconstruct import reconstruct
from page4d.weights.loading import LoadedNetwork
from tests.run.test_reconstruct import CAPTURE, SETTINGS, StopAt
from tests.run.truth import TruthPredictor

TINY = PRESETS["mv-tiny"]


@pytest.fixture(scope="module")
def predictor() -> NetworkPredictor:
    torch.manual_seed(0)
    return NetworkPredictor(network=build_network(TINY).eval(), device=CPU)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, torch.float32) for name in ("mv-tiny", "mv-demo")),
        *(pytest.param(name, torch.float32, marks=pytest.mark.slow) for name in ("mv-small", "mv-swin")),
        ("mv-demo", torch.bfloat16),
        pytest.param("da3-small", torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_the_memory_of_a_pass_is_predicted(name: str, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    """The limits are those of a machine with little memory, so that they apply."""
    monkeypatch.setattr("page4d.networks.limits.MAX_CPU_BYTES", 3e6)
    config, half = PRESETS[name], precision is torch.bfloat16
    network = (LoadedNetwork(config, precision) if half else build_network(config)).eval()
    network.predicts_ray_map = network.predicts_points = False
    predictor = NetworkPredictor(network=network, device=CPU, precision=precision)
    side = config.patch_size * (56 // config.patch_size)
    extent = Extent(times=3, views=2, size=(2 * side, side))
    batch = network_cost.noise_batch(extent)
    cost = NetworkCost(config=config, device=CPU)
    counted = batch.images.nbytes + network_cost.cost_of(CPU, lambda: predictor.run(batch)).num_bytes
    assert abs(cost.num_bytes(extent) - counted) < 0.1 * counted + 0.5e6


@dataclass(frozen=True, kw_only=True)
class PerPixel(NetworkCost):
    """A network that takes a number of bytes per pixel."""

    per_pixel: float

    def num_bytes(self, extent: Extent) -> int:
        """Return the memory of a forward pass."""
        return int(self.per_pixel * extent.num_pixels)


def forecast(per_pixel: float) -> Forecast:
    cost = PerPixel(config=TINY, device=torch.device("cuda"), per_pixel=per_pixel)
    return Forecast(views=2, size=(140, 140), device=torch.device("cuda"), used_bytes=1000, cost=cost)


@pytest.mark.parametrize(("fitting", "chosen"), [(4, 4), (5, 5), (8, 8), (50, MAX_DEFAULT_LENGTH)])
def test_the_default_chunk_is_the_longest_that_fits_up_to_a_maximum(fitting: int, chosen: int):
    allowed = MemoryLimit(num_bytes=1000 + fitting * 2 * 140 * 140 * 10, is_strict=True)
    chunks, warnings = choose_chunks(forecast(10.0), allowed, None, 2, 100)
    assert (max(chunk.length for chunk in chunks), warnings) == (chosen, [])


def test_finer_depth_on_a_gpu_takes_arrays_by_its_pixels_and_some_of_any_size() -> None:
    finer = [replace(forecast(10.0), fine_size=size).peak_bytes(4) for size in ((140, 140), (280, 280))]
    arrays = 330 * 2 * 140 * 140
    assert [peak - forecast(10.0).peak_bytes(4) for peak in finer] == [180e6 + arrays, 180e6 + 4 * arrays]


def test_chunks_that_cannot_fit_are_refused_under_a_limit_of_the_user_and_else_a_warning():
    tight = MemoryLimit(num_bytes=2000, is_strict=True)
    with pytest.raises(MemoryBudgetError, match="chunks of 4 instants of 2 views at 140 px need about") as refused:
        choose_chunks(forecast(10.0), tight, None, 2, 100)
    assert refused.value.exit_code == 7
    with pytest.raises(MemoryBudgetError, match="chunks of 12 instants"):
        choose_chunks(forecast(10.0), tight, 12, 2, 100)
    for requested, chosen in ((None, 4), (12, 12)):
        chunks, (warning,) = choose_chunks(forecast(10.0), replace(tight, is_strict=False), requested, 2, 100)
        assert max(chunk.length for chunk in chunks) == chosen
        assert "memory may run out" in warning.text


def test_amounts_of_memory_are_parsed_with_their_units():
    assert [parse_memory(text) for text in ("auto", "20GB", "1.5 GiB", "300MB")] == [None, 20e9, 1.5 * 2**30, 3e8]
    for text in ("20", "GB", "0GB", "-1GB", "20gb"):
        with pytest.raises(UsageError, match="not an amount of memory"):
            parse_memory(text)


def test_what_did_not_fit_is_freed_before_the_next_attempt() -> None:
    freed = []

    class Tensors:
        """Tensors that refer to themselves, as a traceback and its frames do."""

        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            freed.append(True)

    def work() -> None:
        held = Tensors()
        assert held.own
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert unless_out_of_memory(CPU, work) is None
    assert freed


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 669 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("sizes do not match"), False),
    ],
)
def test_errors_of_memory_are_recognised(error: Exception, is_memory: bool) -> None:
    assert network_cost.is_out_of_memory(error) == is_memory


def test_a_run_on_a_gpu_uses_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = []
    for device in (torch.device("cuda"), CPU):
        with reproducible(device):
            found.append(torch.are_deterministic_algorithms_enabled())
    assert found == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()


def test_usable_memory_exceeds_used_memory():
    assert 0 < used_bytes(CPU) < usable_bytes(CPU)
    assert total_bytes(CPU) > 10**8


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_between_blocks_in_use_is_returned() -> None:
    kept = [np.ones(20_000, np.uint8) for _ in range(3000)][::50]
    before = used_memory()
    trim_heap()
    assert used_memory() < before - 30e6
    assert len(kept) == 60


def test_a_checkpoint_fits_the_limit_of_a_container(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("page4d.io.machine._CONTAINER", tmp_path)
    (tmp_path / "memory.max").write_text("10000000000\n")
    assert total_bytes(CPU) <= 8 * 10**9
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert fitting_checkpoint(CPU, commercial=False) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert total_bytes(CPU) > 10**9


@pytest.mark.parametrize(("preview", "peak"), [(False, 915e6), (True, 1119e6)])
def test_the_memory_of_64_views_with_measured_depth_is_predicted(preview: bool, peak: float) -> None:
    """Peaks of processes that had 645 MB in use at first, for 3 instants of image folders in one chunk."""
    size, used = (120, 160), 645_000_000
    forecast = Forecast(views=64, size=size, device=CPU, used_bytes=used, cost=None, preview=preview, num_times=3)
    assert forecast.peak_bytes(3) == pytest.approx(peak, rel=0.15)


@pytest.mark.parametrize(
    ("views", "size", "length", "times", "source_pixels", "fine_size", "has_people", "peak"),
    [
        (2, (96, 128), 6, 6, 2 * 384 * 512, (384, 512), False, 1.49e9),  # with the compilation of the kernels
        (4, (96, 128), 6, 6, 4 * 384 * 512, (384, 512), False, 1.39e9),
        (8, (96, 128), 6, 6, 8 * 384 * 512, (384, 512), False, 1.92e9),
        (4, (96, 128), 6, 6, 4 * 768 * 1024, (768, 1024), False, 2.54e9),
        (4, (128, 80), 7, 16, 4_180_000, (512, 290), True, 1.97e9),  # samples/gym, with previews
        (4, (72, 128), 8, 24, 7_350_000, (288, 512), True, 1.97e9),  # samples/office, with previews
    ],
)
def test_the_memory_of_calibrated_runs_is_predicted(
    views: int,
    size: tuple[int, int],
    length: int,
    times: int,
    source_pixels: int,
    fine_size: tuple[int, int],
    has_people: bool,
    peak: float,
) -> None:
    """Peaks of processes that had 580 MB in use at first; the network took 417 bytes per pixel."""
    found = Forecast(
        views=views,
        size=size,
        device=CPU,
        used_bytes=580_000_000,
        cost=PerPixel(config=TINY, device=CPU, per_pixel=417),
        source_pixels=source_pixels,
        preview=has_people,
        num_times=times,
        fine_size=fine_size,
        people=has_people,
        descriptors=True,
    )
    assert peak <= found.peak_bytes(length) <= 1.3 * peak


@pytest.mark.parametrize(("fine_size", "per_pixel"), [((384, 512), 188), ((768, 1024), 0)])
def test_a_second_instant_that_is_raised_at_once_counts_where_the_network_took_less(
    fine_size: tuple[int, int], per_pixel: int
) -> None:
    cost = PerPixel(config=TINY, device=CPU, per_pixel=1)
    found = Forecast(views=8, size=(96, 128), device=CPU, used_bytes=0, cost=cost, num_times=6, fine_size=fine_size)
    one, one_of_more = found.peak_bytes(6), found.peak_bytes(3)
    with on_threads(2):
        assert (found.peak_bytes(6) - one) / found.fine_pixels == pytest.approx(1.28 * per_pixel, abs=25)
        assert found.peak_bytes(3) == one_of_more


def test_the_memory_of_a_long_run_is_predicted() -> None:
    """The peak of 18,000 instants of 4 views with measured depth; the opened scene takes 700 MB."""
    found = Forecast(views=4, size=(96, 128), device=CPU, used_bytes=700_000_000, cost=None, num_times=18_000)
    assert 1.097e9 <= found.peak_bytes(8) <= 1.3 * 1.097e9


def test_a_resumed_run_keeps_its_plan_under_another_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("page4d.run.plan.used_bytes", lambda _: 0)
    scene, out = CAPTURE.scene(), tmp_path / "out"
    planned = replace(SETTINGS, chunk=None)
    with pytest.raises(InterruptedRunError):
        reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=planned, observer=StopAt(1))
    found = Forecast(
        views=2, size=(24, 32), device=CPU, used_bytes=0, cost=None, num_times=9, source_pixels=2 * 24 * 32
    )
    again = replace(planned, memory_bytes=found.peak_bytes(4))
    record = reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=again, existing=ExistingOutput.RESUME)
    assert [(chunk.start, chunk.stop) for chunk in record.chunks] == [(0, 5), (3, 9)]
    fresh = reconstruct(scene, TruthPredictor(CAPTURE), out=tmp_path / "fresh", settings=again)
    assert max(chunk.stop - chunk.start for chunk in fresh.chunks) == 4


def test_the_peak_is_that_of_the_process_and_not_of_its_parent() -> None:
    ballast = np.ones(1 << 29, dtype=np.uint8)
    code = "from page4d.run.memory import peak_bytes; import torch; print(peak_bytes(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1 << 26 < int(done.stdout) < len(ballast)
