"""Least memory of a training, checked before anything is allocated."""

import torch

from page4d.errors import MemoryBudgetError
from page4d.inference.memory_budget import usable_bytes

FLOAT_BYTES = 4


def check_memory(weight_bytes: int, activation_bytes: int, device: torch.device, hint: str) -> None:
    """Refuse a training that cannot fit: both numbers are lower bounds.

    Raises:
        MemoryBudgetError: if the device, or the machine, has less usable memory; `hint` is the advice.
    """
    usable = usable_bytes(device)
    needed = weight_bytes + activation_bytes
    if needed > usable:
        part = "a batch" if activation_bytes > weight_bytes else "weights and optimizer"
        raise MemoryBudgetError(
            f"this training needs {needed / 1e9:,.1f} GB or more, mostly for {part}, and {usable / 1e9:,.1f} GB are "
            f"usable on {device}",
            hint,
        )
