"""Measuring once what a network costs on a device, and remembering it."""

import hashlib
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from page4d.errors import InputError, OutputError
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import fit_views
from page4d.inference.cost import Coefficients, Extent, NetworkCost, fit, quantities
from page4d.inference.predictor import PRECISION_NAMES, NetworkPredictor
from page4d.io.atomic import write_bytes_atomic
from page4d.io.json_model import FileModel, format_json, read_model
from page4d.profiling.memory import LiveBytes
from page4d.scene.records import FrameBatch, Level, Notice

_PROBES = ((1, 2, 4), (2, 2, 4), (1, 3, 8), (1, 2, 16), (1, 2, 28))
"""Instants, views and patches along a side of what is measured, from small to large."""

LEAST_PROBES = 3
LONGEST_PROBE_S = 6.0
"""Larger probes than the first ones are left out if they would take longer."""

_COUNTING_SHOWS_S = 0.2
"""What takes less is timed apart: counting bytes slows it down."""


class Cost(NamedTuple):
    """What a piece of work took."""

    num_bytes: int
    seconds: float


class _Remembered(FileModel):
    """A file of the cache; `measured` says what the coefficients hold for."""

    measured: dict[str, str]
    coefficients: Coefficients


def network_cost(
    predictor: NetworkPredictor,
    sha256: str | None,
    *,
    masks: bool = False,
    cameras: bool = False,
    tell: Callable[[Notice], None] = lambda _: None,
) -> NetworkCost:
    """Return what a network costs on its device: as remembered, or measured now and told in one line.

    `sha256` is that of its weights; a network without a file goes by its configuration. What else is in a batch,
    `masks` or `cameras`, may open parts of a network.
    """
    config = predictor.network.config
    measured = {
        "device": _device_name(predictor.device),
        "network": sha256 or hashlib.sha256(config.to_json().encode()).hexdigest(),
        "precision": PRECISION_NAMES[predictor.precision],
        "inputs": ", ".join(["images", *["masks"] * masks, *["cameras"] * cameras]),
        "torch": torch.__version__,
    }
    path = cache_folder() / f"cost_{hashlib.sha256(repr(measured).encode()).hexdigest()[:16]}.json"
    found = _remembered(path, measured)
    if found is None:
        tell(Notice(f"measuring, once, what the network costs on this device (kept in '{path.parent}')", Level.STEP))
        found = measure(predictor, masks=masks, cameras=cameras)
        _remember(path, _Remembered(measured=measured, coefficients=found))
    return NetworkCost(config=config, coefficients=found)


def cache_folder() -> Path:
    """Return where page4d keeps what it can measure again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "page4d"


def measure(predictor: NetworkPredictor, *, masks: bool = False, cameras: bool = False) -> Coefficients:
    """Run a few short forward passes of growing size and fit what they cost."""
    rows: list[tuple[float, ...]] = []
    num_bytes: list[float] = []
    seconds: list[float] = []
    for number, (times, views, patches) in enumerate(_PROBES):
        side = patches * predictor.multiple
        extent = Extent(times=times, views=views, size=(side, side))
        row = quantities(predictor.network.config, extent)
        if number >= LEAST_PROBES and seconds[-1] * row[1] / rows[-1][1] > LONGEST_PROBE_S:
            break
        run = partial(predictor.run, probe_batch(extent, masks=masks, cameras=cameras))
        if number == 0:
            run()  # what is done once, such as choosing kernels, is no cost of a chunk
        cost = cost_of(predictor.device, run)
        rows.append(row)
        num_bytes.append(cost.num_bytes)
        seconds.append(cost.seconds)
    return Coefficients(bytes=fit(rows, num_bytes, from_above=True), seconds=fit(rows, seconds, from_above=False))


def probe_batch(extent: Extent, *, masks: bool = False, cameras: bool = False) -> FrameBatch:
    """Return frames of noise, of cameras that stand side by side."""
    height, width = extent.size
    leading = (1, extent.times, extent.views)
    poses = torch.eye(4, dtype=torch.float64).repeat(*leading, 1, 1)
    poses[..., 0, 3] = torch.arange(extent.views)
    focal = float(max(extent.size))
    intrinsics = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    rig = Cameras(world_to_camera=poses, intrinsics=intrinsics.expand(*leading, 3, 3), image_size=extent.size)
    return FrameBatch(
        times=torch.arange(extent.times, dtype=torch.float64) / 30,
        view_names=tuple(f"view{number}" for number in range(extent.views)),
        pixel_transforms=fit_views([extent.size] * extent.views, max(extent.size), 1),
        images=torch.rand(*leading, 3, *extent.size),
        valid=torch.ones(*leading, *extent.size, dtype=torch.bool),
        dynamic=torch.rand(*leading, *extent.size) if masks else None,
        cameras=rig if cameras else None,
    )


def cost_of(device: torch.device, work: Callable[[], object]) -> Cost:
    """Return the bytes that a piece of work has at its worst moment beside those before, and its seconds.

    On a GPU its allocator counts them; elsewhere the bytes of all tensors that are made are counted.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        seconds = _seconds_of(device, work)
        return Cost(max(int(torch.cuda.max_memory_allocated(device)) - before, 1), seconds)
    with LiveBytes() as counted:
        seconds = _seconds_of(device, work)
    if seconds < _COUNTING_SHOWS_S:
        seconds = _seconds_of(device, work)
    return Cost(max(counted.peak, 1), seconds)


def _seconds_of(device: torch.device, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.node()} {platform.machine()}, {torch.get_num_threads()} threads"


def _remembered(path: Path, measured: dict[str, str]) -> Coefficients | None:
    try:
        found = read_model(path, _Remembered)
    except (InputError, OSError):
        return None
    return found.coefficients if found.measured == measured else None


def _remember(path: Path, found: _Remembered) -> None:
    try:
        write_bytes_atomic(path, (format_json(found.model_dump(mode="json")) + "\n").encode())
    except OutputError:
        return  # a home that cannot be written costs a second each time, no more
