"""Memory: out-of-memory errors, used and available bytes, and the forecast of a run's peak.

Memory of a network's forward pass, from a run on the meta device, and its time: a linear model, measured once.
Measurements of this machine that forecasts use: kept in the cache, with the occasion on which they were made.
"""

import hashlib
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import NonNegativeFloat

from page4d.choices import FullAttention
from page4d.errors import InputError, OutputError
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import fit_views
from page4d.io.atomic import write_bytes_atomic
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel, format_json, read_model
from page4d.io.limits import is_memory_error
from page4d.networks.config import NetworkConfig, Step
from page4d.networks.layers.block import patch_grid
from page4d.networks.limits import default_limits
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.network import computed_bytes
from page4d.run.predictor import PRECISION_NAMES, NetworkPredictor
from page4d.scene.records import FrameBatch, Level, Notice
from page4d.weights.catalogue import CatalogueEntry, choose_checkpoint

_PREFIX = "measured_"


class Occasion(FileModel):
    """When something was measured, and the load of the machine then: processes that ran in the last minute."""

    date: str
    load: NonNegativeFloat


class KeptMeasurement(FileModel):
    """A file of the cache; `subject` identifies what was measured, `at` when."""

    subject: dict[str, str]
    at: Occasion


KeptT = TypeVar("KeptT", bound=KeptMeasurement)


def occasion() -> Occasion:
    """Return the date and the load of now."""
    return Occasion(date=datetime.now().astimezone().isoformat(timespec="seconds"), load=round(os.getloadavg()[0], 2))


def read_measurement(kind: type[KeptT], subject: Mapping[str, str]) -> KeptT | None:
    """Return what is kept of a subject; None if nothing is, or nothing that can be read."""
    try:
        found = read_model(_path(kind, subject), kind)
    except (InputError, OSError):
        return None
    return found if found.subject == subject else None


def write_measurement(found: KeptMeasurement) -> None:
    """Keep a measurement; without write access it is made again."""
    try:
        text = format_json(found.model_dump(mode="json")) + "\n"
        write_bytes_atomic(_path(type(found), found.subject), text.encode())
    except OutputError:
        return


def forget_measurements() -> None:
    """Delete all measurements, so that the next forecast measures again."""
    for path in cache_folder().glob(f"{_PREFIX}*.json"):
        path.unlink(missing_ok=True)


def _path(kind: type[KeptMeasurement], subject: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(repr(dict(subject)).encode()).hexdigest()[:16]
    return cache_folder() / f"{_PREFIX}{kind.__name__.removeprefix('Measured').lower()}_{digest}.json"


_PIPELINE_BYTES = 210
"""Bytes per pixel of a chunk besides the network: its frames and those decoded ahead, its predictions, and the
previous chunk, which is stitched and written meanwhile."""

_LIBRARY_BYTES = 100_000_000
"""Memory that libraries allocate when they first decode, compute and write."""

DECODER_BYTES = 17
"""Bytes per pixel of a video while it is decoded, twice with undistortion: measured at 1080x1920."""

_PREVIEW_BYTES = 210_000_000
"""Memory for drawing the previews, whose size does not depend on the capture."""

_FUSION_BYTES = 560
"""Bytes per pixel of an instant while its mesh is fused with voxels of the default size: measured at 240x320."""

_FRAME_BYTES = 20
"""Of these, bytes per pixel of the frames of a chunk, which are in memory while the network runs."""

_FRAGMENTATION = 0.28
"""Growth of the process in addition to the memory in use, relative to it: heap fragmentation."""

_MAX_FRAGMENTED_BYTES = 1_000_000_000
"""Memory in use that fragments at most: blocks of more than 32 MB, of which larger chunks consist, are mapped and
returned one by one (mallopt(3), M_MMAP_THRESHOLD). Measured with DA3-SMALL and DA3-BASE on 4 to 16 images."""

_RETAINED_SHARE = 0.57
"""Share of the memory of chunks that the process retains while previews are drawn."""

_CUDA_WORKSPACE = 1.1
"""Memory on a GPU relative to that of all tensors, for workspaces of kernels: assumed, not measured."""

_PROBES = ((1, 2, 4), (2, 2, 4), (1, 3, 8), (1, 2, 16), (1, 2, 28), (1, 16, 16))
"""Instants, views and patches per side of the measured forward passes, in increasing size; the last for attention
across many views."""

MIN_PROBES = 3
MAX_PROBE_S = 6.0
"""Probes beyond the minimum number are skipped if they would take longer."""

_COUNTING_OVERHEAD_S = 0.2
"""Passes faster than this are timed separately, as counting bytes slows them down."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Number of images in a forward pass; `size` is (height, width) of an image in pixels.

    `own_sizes` are those of views that differ; `size` is then that of the common canvas.
    """

    times: int
    views: int
    size: tuple[int, int]
    own_sizes: tuple[tuple[int, int], ...] = ()

    @property
    def view_sizes(self) -> tuple[tuple[int, int], ...]:
        """The (height, width) of every view."""
        return self.own_sizes or (self.size,) * self.views

    @property
    def num_pixels(self) -> int:
        """Pixels of all images."""
        return self.times * sum(height * width for height, width in self.view_sizes)

    @property
    def num_canvas_pixels(self) -> int:
        """Pixels of all canvases."""
        return self.times * self.views * self.size[0] * self.size[1]


@dataclass(frozen=True, kw_only=True)
class ProbeInputs:
    """Inputs besides images that a run has; they may activate parts of a network."""

    masks: bool = False
    cameras: bool = False
    depth: bool = False


IMAGES_ALONE = ProbeInputs()


class Coefficients(FileModel):
    """Seconds of a forward pass per unit of each of its `features`."""

    seconds: tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """The cost model of one network on one device."""

    config: NetworkConfig
    coefficients: Coefficients
    device: torch.device

    def num_bytes(self, extent: Extent) -> int:
        """Return the memory of a forward pass in float32, under its default limits, besides the weights.

        In half precision the layers at the peak, those of the heads, compute in float32, too.
        """
        found = _computed_bytes(self.config, self.device, extent.times, extent.view_sizes)
        return int(found * (_CUDA_WORKSPACE if self.device.type == "cuda" else 1))

    def seconds(self, extent: Extent) -> float:
        """Return the approximate time of a forward pass."""
        return float(np.dot(self.coefficients.seconds, features(self.config, extent)))


@lru_cache(maxsize=64)
def _computed_bytes(
    config: NetworkConfig, device: torch.device, times: int, sizes: tuple[tuple[int, int], ...]
) -> int:
    limits = default_limits(config, sizes, device)
    return computed_bytes(config, times=times, sizes=sizes, limits=limits)


def features(config: NetworkConfig, extent: Extent) -> tuple[float, float, float, float]:
    """Return the features of the model of time: 1, pixels, token pairs within images, and in the largest attention.

    Tokens in the trunk, kept layers and the maps of the heads are proportional to the pixels. A network without a
    trunk has pairs within images only, register layers have pairs of special tokens. A metric network adds its pairs.
    """
    grids = [patch_grid(height, width, config.patch_size) for height, width in extent.view_sizes]
    special = config.num_registers + config.camera_token
    tokens = [rows * columns + special for rows, columns in grids]
    times, full = extent.times, config.full_attention
    if full is FullAttention.ALWAYS or (full is FullAttention.ONE_VIEW and extent.views == 1):
        times, tokens = 1, times * tokens
    within = times * sum(count**2 for count in tokens)
    across = [special] * len(tokens) if len(config.register_layers) == config.depth else tokens
    pairs = {
        Step.FRAME: within,
        Step.TIME: times**2 * sum(count**2 for count in tokens),
        Step.VIEW: times * sum(across) ** 2,
    }
    steps = config.schedule if config.depth else ()
    largest = max([pairs.get(step, (times * sum(across)) ** 2) for step in steps], default=within)
    if config.metric_network is not None:
        within += int(features(config.metric_network, extent)[2])
    return 1.0, float(extent.num_pixels), float(within), float(largest)


def fit(rows: Sequence[tuple[float, ...]], measured: Sequence[float]) -> tuple[float, float, float, float]:
    """Fit non-negative coefficients to measurements by least squares of relative errors."""
    from scipy.optimize import nnls

    design, values = np.array(rows), np.array(measured)
    scales = design.max(axis=0)
    found = nnls(design / scales / values[:, None], np.ones(len(values)))[0] / scales
    first, second, third, fourth = (float(value) for value in found)
    return first, second, third, fourth


def process_bytes(
    extent: Extent, network: int, source_pixels: int, *, preview: bool, mesh: bool = False, is_only: bool = False
) -> int:
    """Return the growth of a process whose network takes `network` bytes for chunks of this extent.

    Besides the network these are the decoders of videos with `source_pixels` in all (twice those of undistorted
    views), the frames and predictions of a chunk, and the chunk that is written meanwhile, with its mesh. The only
    chunk of a run is written after the network. Previews are drawn at the end, from frames that are decoded again.
    """
    decoders = source_pixels * DECODER_BYTES
    pipeline = extent.num_canvas_pixels * _PIPELINE_BYTES
    used = max(network + extent.num_canvas_pixels * _FRAME_BYTES, pipeline) if is_only else network + pipeline
    chunks = used + _FRAGMENTATION * min(used, _MAX_FRAGMENTED_BYTES) + decoders
    if mesh:
        chunks += extent.num_canvas_pixels // extent.times * _FUSION_BYTES
    drawing = _RETAINED_SHARE * chunks + _PREVIEW_BYTES + decoders if preview else 0.0
    return _LIBRARY_BYTES + int(max(chunks, drawing))


class Cost(NamedTuple):
    """Measured memory and time of a call."""

    num_bytes: int
    seconds: float


class MeasuredCost(KeptMeasurement):
    """The coefficients of a network on a device."""

    coefficients: Coefficients


def network_cost(
    predictor: NetworkPredictor,
    sha256: str | None,
    *,
    inputs: ProbeInputs = IMAGES_ALONE,
    notify: Callable[[Notice], None] = lambda _: None,
) -> NetworkCost:
    """Return the cost model of a network on its device, from the cache or measured now, with a notice.

    `sha256` is that of its weights; a network without a file is identified by its configuration.
    """
    config = predictor.network.config
    subject = {
        "device": device_name(predictor.device),
        "network": sha256 or hashlib.sha256(config.to_json().encode()).hexdigest(),
        "precision": PRECISION_NAMES[predictor.precision],
        "inputs": ", ".join(["images", *(name for name, is_given in vars(inputs).items() if is_given)]),
        "torch": torch.__version__,
    }
    found = read_measurement(MeasuredCost, subject)
    if found is None:
        text = f"measuring the time of the network on this device, once (cached in '{cache_folder()}')"
        notify(Notice(text, Level.STEP))
        at = occasion()
        found = MeasuredCost(subject=subject, at=at, coefficients=measure(predictor, inputs))
        write_measurement(found)
    return NetworkCost(config=config, coefficients=found.coefficients, device=predictor.device)


def measure(predictor: NetworkPredictor, inputs: ProbeInputs = IMAGES_ALONE) -> Coefficients:
    """Run a few short forward passes of increasing size and fit the cost model."""
    rows: list[tuple[float, ...]] = []
    seconds: list[float] = []
    for number, (times, views, patches) in enumerate(_PROBES):
        side = patches * predictor.multiple
        extent = Extent(times=times, views=views, size=(side, side))
        row = features(predictor.network.config, extent)
        if number >= MIN_PROBES and seconds[-1] * row[1] / rows[-1][1] > MAX_PROBE_S:
            break
        run = partial(predictor.run, probe_batch(extent, inputs))
        if number == 0:
            run()  # warm-up, such as the choice of kernels
        rows.append(row)
        seconds.append(_quiet_seconds_of(predictor.device, run))
    return Coefficients(seconds=fit(rows, seconds))


def probe_batch(extent: Extent, inputs: ProbeInputs = IMAGES_ALONE) -> FrameBatch:
    """Return frames of noise from parallel cameras in a row."""
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
        dynamic=torch.rand(*leading, *extent.size) if inputs.masks else None,
        depth=1 + torch.rand(*leading, *extent.size) if inputs.depth else None,
        cameras=rig if inputs.cameras else None,
    )


def cost_of(device: torch.device, work: Callable[[], object]) -> Cost:
    """Measure the peak memory of a call, in addition to that before, and its seconds.

    On a GPU the allocator counts the memory; elsewhere the bytes of all tensors that are created are counted.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        seconds = _seconds_of(device, work)
        return Cost(max(int(torch.cuda.max_memory_allocated(device)) - before, 1), seconds)
    with LiveBytes() as counted:
        seconds = _seconds_of(device, work)
    if seconds < _COUNTING_OVERHEAD_S:
        seconds = _seconds_of(device, work)
    return Cost(max(counted.peak, 1), seconds)


def _seconds_of(device: torch.device, work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _quiet_seconds_of(device: torch.device, work: Callable[[], object]) -> float:
    """Return about the seconds that a call takes on a machine without other load.

    On the CPU they are at most the CPU seconds of the process: where other programs run, it takes longer.
    """
    begin = time.process_time()
    seconds = _seconds_of(device, work)
    return min(seconds, time.process_time() - begin) if device.type == "cpu" else seconds


def device_name(device: torch.device) -> str:
    """Return what the time of a computation on a device depends on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.node()} {platform.machine()}, {torch.get_num_threads()} threads"


_AVAILABLE_SHARE = {"cuda": 0.9, "cpu": 0.8}
"""Share of the free memory that a run may use by default: allocators cannot fill all of it."""

_FINE_BACKGROUND_S, _FINE_INSTANT_S = 2e-6, 1.5e-6
"""Seconds per pixel of all views at the fine size: for the background, and for an instant of which a tenth moves."""

_FINE_VIEW_S = 0.09
"""Seconds per view and instant, of any size: most operations on small regions take as long as their start."""

_DETAIL_BYTES = 180_000_000
"""Memory for raising the resolution whose size does not depend on the capture."""

_PEOPLE_BYTES = 90_000_000
"""Memory of the pose model, which stays loaded."""

_FLOW_BYTES = 420
"""Bytes per pixel whose flow is measured: pictures and flow of two instants, and displacements."""

_FINE_BYTES = 280.0
"""Bytes per such pixel: background, pictures and maps of an instant, and the scores of a view's hypotheses."""

_CONTAINER = Path("/sys/fs/cgroup")
"""Control group of a container."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python means that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, RuntimeError | MemoryError) and is_memory_error(error)


def peak_bytes(device: torch.device) -> int:
    """Return the peak of memory in use so far: the device's for a GPU, the process's otherwise.

    Source: proc(5), VmHWM; on Linux, ru_maxrss of getrusage may be the peak of the parent process.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    high_water = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    if high_water:
        return int(high_water[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def used_bytes(device: torch.device) -> int:
    """Return the memory in use: by tensors on a GPU, by the process otherwise."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes(device)


def usable_bytes(device: torch.device) -> int:
    """Return the memory that this process may use in total, with a reserve."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = min(_free_in_machine(), _free_in_container())
    return used_bytes(device) + int(free * _AVAILABLE_SHARE[device.type])


def total_bytes(device: torch.device) -> int:
    """Return the memory of a machine or GPU whose other programs are idle, with a reserve."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with suppress(OSError, ValueError):  # no container, or its limit is the word max
            total = min(total, int((_CONTAINER / "memory.max").read_text()))
    return int(total * _AVAILABLE_SHARE[device.type])


def fitting_checkpoint(device: torch.device, *, commercial: bool) -> CatalogueEntry | None:
    """Return the preferred public checkpoint that fits a device, or None; see `choose_checkpoint`."""
    return choose_checkpoint(total_bytes(device), commercial=commercial, half=device.type == "cuda")


def _free_in_machine() -> int:
    table = Path("/proc/meminfo")
    if table.is_file():
        found = re.search(r"MemAvailable:\s+(\d+) kB", table.read_text())
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_container() -> int:
    """Return the free memory of a container's control group."""
    try:
        limit, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no such group, or its limit is the word max
        return sys.maxsize
    return max(limit - used + int(cached[1] if cached else 0), 0)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted memory and time of chunks, in addition to `used_bytes` in use before.

    `size` is (height, width) in network pixels, `own_sizes` are those of views that differ; `source_pixels` is the
    sum over one frame of every video. Without `cost` no network runs. A `mesh` is fused for every instant; `preview`
    pictures are drawn at the end. The scene has `num_times` instants. `fine_size` is (height, width) of depth and
    clouds, None for that of the network, `flow_size` that of pictures whose flow is measured, None without motion.
    `people` is whether the pose model runs.
    """

    views: int
    size: tuple[int, int]
    device: torch.device
    used_bytes: int
    cost: NetworkCost | None
    own_sizes: tuple[tuple[int, int], ...] = ()
    source_pixels: int = 0
    mesh: bool = False
    preview: bool = False
    num_times: int | None = None
    fine_size: tuple[int, int] | None = None
    flow_size: tuple[int, int] | None = None
    people: bool = False

    @property
    def flow_pixels(self) -> int:
        """Pixels of all views whose flow is measured."""
        return 0 if self.flow_size is None else self.views * self.flow_size[0] * self.flow_size[1]

    @property
    def fine_pixels(self) -> int:
        """Pixels of all views at the size of depth and clouds, 0 for that of the network."""
        return 0 if self.fine_size is None else self.views * self.fine_size[0] * self.fine_size[1]

    def detail_seconds(self) -> float:
        """Return the approximate time of raising the resolution: of a background once, and of every instant."""
        if not self.fine_pixels:
            return 0.0
        instants = self.num_times or 1
        pixels = self.fine_pixels * (_FINE_BACKGROUND_S + instants * _FINE_INSTANT_S)
        return pixels + instants * self.views * _FINE_VIEW_S

    def peak_bytes(self, length: int) -> int:
        """Return the peak memory with chunks of `length` instants: of a GPU, or of the process."""
        extent = self._extent(length)
        network = 0 if self.cost is None else self.cost.num_bytes(extent)
        if self.device.type == "cuda":
            return self.used_bytes + network
        is_only = self.num_times is not None and length >= self.num_times
        return (
            self.used_bytes
            + process_bytes(
                extent, network, self.source_pixels, preview=self.preview, mesh=self.mesh, is_only=is_only
            )
            + self._detail_bytes()
            + self.flow_pixels * _FLOW_BYTES
            + _PEOPLE_BYTES * self.people
        )

    def _detail_bytes(self) -> int:
        """Return the memory of raising the resolution: arrays, and a second set of decoders."""
        if not self.fine_pixels:
            return 0
        return int(self.fine_pixels * _FINE_BYTES) + _DETAIL_BYTES + self.source_pixels * DECODER_BYTES

    def network_seconds(self, lengths: Sequence[int]) -> float:
        """Return the approximate run time of the network for chunks of these lengths."""
        return 0.0 if self.cost is None else sum(self.cost.seconds(self._extent(length)) for length in lengths)

    def _extent(self, length: int) -> Extent:
        return Extent(times=length, views=self.views, size=self.size, own_sizes=self.own_sizes)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Maximum memory of a run; `is_strict` if the user set it, otherwise it is the available memory."""

    num_bytes: int
    is_strict: bool
