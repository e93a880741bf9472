"""Memory of the machine, of the container and of this process."""

import ctypes
import os
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

_CONTAINER = Path("/sys/fs/cgroup")
"""Control group of a container."""


def total_memory() -> int:
    """Return the bytes of memory of the machine, or of the container of this process."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or its limit is the word max
        total = min(total, int((_CONTAINER / "memory.max").read_text()))
    return total


def free_memory() -> int:
    """Return the free bytes of memory of the machine, or of the container of this process."""
    return min(_free_in_machine(), _free_in_container())


def used_memory() -> int:
    """Return the bytes of memory in use by this process."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else peak_memory()


def peak_memory() -> int:
    """Return the peak of the memory in use by this process so far.

    Source: proc(5), VmHWM; on Linux, ru_maxrss of getrusage may be the peak of the parent process.
    """
    status = Path("/proc/self/status")
    high_water = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    if high_water:
        return int(high_water[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim_heap() -> None:
    """Return freed memory between blocks in use to the system, which glibc does only on request.

    Source: malloc_trim(3).
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _free_in_machine() -> int:
    table = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", table.read_text()) if table.is_file() else None
    if found:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_container() -> int:
    try:
        limit, used = (int((_CONTAINER / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (_CONTAINER / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no such group, or its limit is the word max
        return sys.maxsize
    return max(limit - used + int(cached[1] if cached else 0), 0)
