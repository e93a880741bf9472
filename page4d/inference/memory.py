"""Memory: recognising that it ran out, how much is used and how much there is."""

import os
import re
import resource
import sys
from pathlib import Path

import torch

from page4d.errors import UsageError

_MESSAGES = (
    "DefaultCPUAllocator: can't allocate",
    "not enough memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


_SHARE = {"cuda": 0.9, "cpu": 0.8}
"""How much of the free memory is used unasked: allocators cannot fill all of it."""

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch or Python means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that was in use so far: the device's for a GPU, the process's otherwise.

    Source: proc(5), VmHWM; what getrusage says may on Linux be the peak of the process that started this one.
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
    """Return how much memory is in use now: tensors on a GPU, the process otherwise."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes(device)


def usable_bytes(device: torch.device) -> int:
    """Return how much memory this process may come to use, with what it uses already and some room left."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = min(_free_in_machine(), _free_in_group())
    return used_bytes(device) + int(free * _SHARE[device.type])


def parse_memory(text: str) -> int | None:
    """Read `20GB` into bytes, and `auto` as None.

    Raises:
        UsageError: if it is neither.
    """
    if text == "auto":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(" + "|".join(_UNITS) + ")", text)
    if match is None or float(match[1]) == 0:
        raise UsageError(
            f"--memory {text} is no amount of memory", f"give auto or such as 20GB ({', '.join(_UNITS)})"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _free_in_machine() -> int:
    table = Path("/proc/meminfo")
    if table.is_file():
        found = re.search(r"MemAvailable:\s+(\d+) kB", table.read_text())
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_group() -> int:
    """Return what the control group of a container leaves."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no such group, or its limit is the word max
        return sys.maxsize
    return max(limit - used + int(cached[1] if cached else 0), 0)
