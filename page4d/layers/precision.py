"""Where automatic casting to lower precision is switched off."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.amp import is_autocast_available


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Switch automatic casting off on devices that have it; tensors without numbers are on one that has not."""
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()
