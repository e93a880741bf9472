"""Memory of a network's forward pass, from a run on the meta device, and its time: a linear model, measured once."""

import hashlib
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch

from page4d.choices import FullAttention
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import fit_views
from page4d.inference.measurements import KeptMeasurement, occasion, read_measurement, write_measurement
from page4d.inference.predictor import PRECISION_NAMES, NetworkPredictor
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel
from page4d.networks.config import NetworkConfig, Step
from page4d.networks.layers.block import patch_grid
from page4d.networks.limits import default_limits
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.network import computed_bytes
from page4d.scene.records import FrameBatch, Level, Notice

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
