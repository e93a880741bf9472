"""Memory: out-of-memory errors, used and available bytes, and the forecast of a run's peak."""

import os
import re
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from page4d.inference.network_cost import DECODER_BYTES, Extent, NetworkCost, process_bytes
from page4d.io.limits import is_memory_error
from page4d.weights.catalogue import CatalogueEntry, choose_checkpoint

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
