"""Streamed writing of safetensors files, with one tensor in memory at a time."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

_CODES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES_BY_CODE: dict[str, torch.dtype] = {code: dtype for dtype, code in _CODES.items()}
"""Element types by their code in the format."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_tensors(
    file: BinaryIO,
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write the header, then each tensor that `read` returns; `on_written` receives the number of bytes of each.

    The bytes equal those of the safetensors package: widest elements first, then by name.
    """
    ordered = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in ordered:
        spec = specs[name]
        end = offset + spec.num_bytes
        header[name] = {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in ordered:
        spec, tensor = specs[name], read(name)
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype), name
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if on_written is not None:
            on_written(spec.num_bytes)
