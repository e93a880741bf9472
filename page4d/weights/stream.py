"""Write a safetensors file tensor by tensor, so that memory holds one of them at a time."""

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
DTYPES: dict[str, torch.dtype] = {code: dtype for dtype, code in _CODES.items()}
"""Element types by the name that the format gives them."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """What a file says about a tensor without its values."""

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
    """Write the header and then every tensor that `read` returns; `on_written` hears the bytes of each.

    The bytes are those that the safetensors package itself writes: widest elements first, then by name.
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
