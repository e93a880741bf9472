"""Exact memory of tensors: the bytes of all live storages, independent of the allocator."""

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class StorageTracker:
    """Bytes of the storages that operations allocate: live now, and at the peak."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def record(self, inputs: Any, results: Any) -> bool:
        """Count the storages that an operation allocated until they are freed; return whether the peak rose."""
        known = {_key(tensor) for tensor in _tensors_in(inputs)}
        for tensor in _tensors_in(results):
            key = _key(tensor)
            if key not in known and key not in self._sizes:
                storage = tensor.untyped_storage()
                self._sizes[key] = storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self._freed, key)
        rose = self.live > self.peak
        self.peak = max(self.peak, self.live)
        return rose

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


class LiveBytes(TorchDispatchMode):
    """Count what operations allocate and free while the body runs.

    Tensors that existed before and temporary buffers inside kernels are not counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = StorageTracker()

    @property
    def live(self) -> int:
        """Bytes that are allocated now."""
        return self._storages.live

    @property
    def peak(self) -> int:
        """Largest number of bytes allocated at the same time."""
        return self._storages.peak

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        self._storages.record((args, kwargs), results)
        return results


def _tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        yield from _tensors_in(list(values.values()))


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
