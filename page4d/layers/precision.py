"""Full-precision regions under automatic mixed precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.amp import is_autocast_available


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast on devices that support it; the meta device does not."""
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()
