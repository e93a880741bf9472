"""Memory and FLOPs of a run: the forecast of its peak, used and available bytes, and out-of-memory errors.

A forward pass is counted by a run on the meta device, and corrected by what a real one takes.
"""

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch

from page4d.geometry.pixels import fit_views
from page4d.io.exhaustion import is_memory_error
from page4d.io.machine import free_memory, peak_memory, total_memory, used_memory
from page4d.networks.config import NetworkConfig
from page4d.networks.limits import default_limits
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.profile.network import forward_cost
from page4d.scene.batches import FrameBatch
from page4d.weights.catalogue import CatalogueEntry, choose_checkpoint

_PIPELINE_BYTES = 210
"""Bytes per pixel of a chunk besides the network: its frames and those decoded ahead, its predictions, and the
previous chunk, which is stitched and written meanwhile."""

_DEPTH_BYTES, _ONLY_CHUNK_BYTES = 106, 64
"""The same of chunks of measured depth, which no network refines, and of the only chunk of a run: measured with 64
views of 120x160."""

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


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """The cost of one network on one device, by the size of a forward pass."""

    config: NetworkConfig
    device: torch.device

    def num_bytes(self, extent: Extent) -> int:
        """Return the memory of a forward pass in float32, under its default limits, besides the weights.

        In half precision the layers at the peak, those of the heads, compute in float32, too.
        """
        found, _ = _forward_cost(self.config, self.device, extent.times, extent.view_sizes)
        return int(found * (_CUDA_WORKSPACE if self.device.type == "cuda" else 1))

    def tflop(self, extent: Extent) -> float:
        """Return the operations of a forward pass in 1e12; a multiply-add counts as two."""
        return _forward_cost(self.config, self.device, extent.times, extent.view_sizes)[1] / 1e12


@lru_cache(maxsize=64)
def _forward_cost(
    config: NetworkConfig, device: torch.device, times: int, sizes: tuple[tuple[int, int], ...]
) -> tuple[int, int]:
    limits = default_limits(config, sizes, device)
    return forward_cost(config, times=times, sizes=sizes, limits=limits)


class Cost(NamedTuple):
    """Measured memory and time of a call."""

    num_bytes: int
    seconds: float


def noise_batch(extent: Extent) -> FrameBatch:
    """Return frames of noise."""
    leading = (1, extent.times, extent.views)
    return FrameBatch(
        times=torch.arange(extent.times, dtype=torch.float64) / 30,
        view_names=tuple(f"view{number}" for number in range(extent.views)),
        pixel_transforms=fit_views([extent.size] * extent.views, max(extent.size), 1),
        images=torch.rand(*leading, 3, *extent.size),
        valid=torch.ones(*leading, *extent.size, dtype=torch.bool),
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


T = TypeVar("T")

_AVAILABLE_SHARE = {"cuda": 0.9, "cpu": 0.8}
"""Share of the free memory that a run may use by default: allocators cannot fill all of it."""

_FINE_BACKGROUND_S, _FINE_INSTANT_S = 2e-6, 1.5e-6
"""Seconds per pixel of all views at the fine size: for the background, and for an instant of which a tenth moves."""

_FINE_VIEW_S = 0.09
"""Seconds per view and instant, of any size: most operations on small regions take as long as their start."""

_DETAIL_BYTES, _COMPILING_BYTES = 180_000_000, 80_000_000
"""Memory for raising the resolution whose size does not depend on the capture, and for the compilation of its kernels
on a CPU, which the first run takes."""

_PEOPLE_BYTES = 90_000_000
"""Memory of the pose model, which stays loaded."""

_DESCRIPTOR_BYTES, _DESCRIPTOR_IMAGE_BYTES = 180_000_000, 4_000_000
"""Memory of the descriptors of a chunk, of any size, and per image: measured with 4 to 128 images."""

_KERNEL_BYTES = 120_000_000
"""Memory of Numba and of the machine code of the kernels, which are loaded when they are first needed."""

_INSTANT_BYTES = 14_000
"""Records of an instant, from which the files of the whole capture are written at the end of a run."""

_FLOW_BYTES = 420
"""Bytes per pixel whose flow is measured: pictures and flow of two instants, and displacements."""

_FINE_BYTES = 330.0
"""Bytes per such pixel: background, pictures and maps of an instant, and the scores of a view's hypotheses."""

_LATER_BYTES = 200
"""The same of a second instant at once: 20 to 240 measured with 2 and 6 instants of 8 views of 384x512."""

SMALL_SIDE = 512
"""Long side of pictures that are raised on one core each: several would wait for each other."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch or Python means that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, RuntimeError | MemoryError) and is_memory_error(error)


def unless_out_of_memory(device: torch.device, work: Callable[[], T]) -> T | None:
    """Return the result of work on a device; None if it does not fit in memory."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler: its traceback would keep the tensors alive that did not fit, as would cycles of objects.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def peak_bytes(device: torch.device) -> int:
    """Return the peak of memory in use so far: the device's for a GPU, the process's otherwise."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else peak_memory()


def used_bytes(device: torch.device) -> int:
    """Return the memory in use: by tensors on a GPU, by the process otherwise."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else used_memory()


def usable_bytes(device: torch.device) -> int:
    """Return the memory that this process may use in total, with a reserve."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = free_memory()
    return used_bytes(device) + int(free * _AVAILABLE_SHARE[device.type])


def total_bytes(device: torch.device) -> int:
    """Return the memory of a machine or GPU whose other programs are idle, with a reserve."""
    is_gpu = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if is_gpu else total_memory()
    return int(total * _AVAILABLE_SHARE[device.type])


def fitting_checkpoint(device: torch.device, *, commercial: bool) -> CatalogueEntry | None:
    """Return the preferred public checkpoint that fits a device, or None; see `choose_checkpoint`."""
    return choose_checkpoint(total_bytes(device), commercial=commercial, half=device.type == "cuda")


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted memory and work of chunks, in addition to `used_bytes` in use before.

    `size` is (height, width) in network pixels, `own_sizes` are those of views that differ; `source_pixels` is the
    sum over one frame of every video, twice that of undistorted views. Without `cost` no network runs. A `mesh` is
    fused for every instant; `preview` pictures are drawn at the end. The scene has `num_times` instants. `fine_size`
    is (height, width) of depth and clouds, None for that of the network, `flow_size` that of pictures whose flow is
    measured, None without motion. `people` is whether the pose model runs, `descriptors` whether refinement compares
    those of XFeat. Chunks pass through network and refinement `pass_length` instants at a time; None for all at once.
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
    descriptors: bool = False
    pass_length: int | None = None

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
        """Return the peak memory with chunks of `length` instants: of a GPU, or of the process.

        Besides the network, a process has the decoders of videos, the frames and predictions of a chunk, and the
        chunk that is written meanwhile, with its mesh. The only chunk of a run is written after the network. Previews
        are drawn at the end, from frames that are decoded again. Finer depth has arrays, compiled kernels, and a
        second set of decoders.
        """
        extent, at_once = self._extent(length), -(-length // self._num_passes(length))
        network = 0 if self.cost is None else self.cost.num_bytes(self._extent(at_once))
        if self.descriptors:
            refined = _DESCRIPTOR_BYTES + at_once * self.views * _DESCRIPTOR_IMAGE_BYTES
            network = max(network, refined)  # one after the other
        raising = int(self.fine_pixels * _FINE_BYTES) + _DETAIL_BYTES if self.fine_pixels else 0
        if self.device.type == "cuda":
            return self.used_bytes + network + raising
        decoders, pixels = self.source_pixels * DECODER_BYTES, extent.times * extent.views * math.prod(extent.size)
        used = network + pixels * (_PIPELINE_BYTES if network else _DEPTH_BYTES)
        if self.num_times is not None and length >= self.num_times:
            later = self.fine_pixels * _LATER_BYTES * (self.raised_at_once(length) - 1)
            used = max(network + pixels * _FRAME_BYTES, pixels * _ONLY_CHUNK_BYTES + later)
        chunks = used + _FRAGMENTATION * min(used, _MAX_FRAGMENTED_BYTES) + decoders
        if self.mesh:
            chunks += pixels // length * _FUSION_BYTES
        drawing = _RETAINED_SHARE * chunks + _PREVIEW_BYTES + decoders if self.preview else 0.0
        return (
            self.used_bytes
            + _LIBRARY_BYTES
            + int(max(chunks, drawing))
            + (raising + _COMPILING_BYTES + decoders if self.fine_pixels else 0)
            + self.flow_pixels * _FLOW_BYTES
            + _PEOPLE_BYTES * self.people
            + _KERNEL_BYTES * (self.cost is not None)
            + _INSTANT_BYTES * (self.num_times or 0)
        )

    def raised_at_once(self, length: int) -> int:
        """Return how many instants are raised at once: two small ones after the only chunk, when cores are idle."""
        has_cores = self.device.type == "cpu" and torch.get_num_threads() > 1
        is_small = self.fine_size is not None and max(self.fine_size) <= SMALL_SIDE
        return 2 if has_cores and is_small and length >= (self.num_times or length + 1) else 1

    def network_tflop(self, lengths: Sequence[int]) -> float:
        """Return the operations of the network for chunks of these lengths, in 1e12."""
        if self.cost is None:
            return 0.0
        passes = [(self._num_passes(length), length) for length in lengths]
        return sum(number * self.cost.tflop(self._extent(-(-length // number))) for number, length in passes)

    def _num_passes(self, length: int) -> int:
        """Return the number of passes of equal length over a chunk."""
        return 1 if self.pass_length is None else -(-length // self.pass_length)

    def _extent(self, length: int) -> Extent:
        return Extent(times=length, views=self.views, size=self.size, own_sizes=self.own_sizes)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Maximum memory of a run; `is_strict` if the user set it, otherwise it is the available memory."""

    num_bytes: int
    is_strict: bool
