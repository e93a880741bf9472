"""Device and precision of a network, by name."""

import torch

from page4d.choices import Precision
from page4d.errors import CapabilityError, UsageError

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def choose_device(name: str | torch.device = "auto") -> torch.device:
    """Return a device by name; `auto` is a GPU if there is one.

    Raises:
        UsageError: if the name is not that of a device.
        CapabilityError: if this machine has no such device, or its type is not supported.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"no device is called '{name}'", "give auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CapabilityError(f"no CUDA device is available (torch {torch.__version__})", "use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CapabilityError(f"there is no {name}: {torch.cuda.device_count()} CUDA devices", "use another index")
    if device.type not in ("cpu", "cuda"):
        raise CapabilityError(f"device '{name}' is not supported", "use cpu or cuda")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """Return the precision of a name on a device.

    Raises:
        UsageError: if the name is not that of a precision.
    """
    if name not in list(Precision):
        raise UsageError(f"no precision is called '{name}'", f"choose from {', '.join(Precision)}")
    if name == Precision.AUTO:
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    return DTYPES[Precision(name)]
