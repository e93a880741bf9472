"""Memory: recognising that it ran out, and how much was used."""

import resource
import sys

import torch

_MESSAGES = (
    "DefaultCPUAllocator: can't allocate",
    "not enough memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error of torch or Python means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that was in use so far: the device's for a GPU, the process's otherwise."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
