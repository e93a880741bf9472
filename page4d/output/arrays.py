"""Conversion of tensors to numpy arrays, for files."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor of any device to a contiguous array; half precision and bfloat16 become float32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.numpy())


def to_bytes(unit: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Round values in [0, 1] to 0 .. 255; values outside are clipped, NaN becomes 0."""
    known = np.nan_to_num(unit.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    return np.rint(known.clip(0.0, 1.0) * 255.0).astype(np.uint8)
