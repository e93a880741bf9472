"""Exactly how much memory tensors hold: the bytes of all storages that are alive, whatever the allocator does."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Count while the body runs what its operations allocate and what is freed again.

    What was there before counts nothing, nor does what a kernel allocates and frees by itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(tensor) for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)}
        results = function(*args, **(kwargs or {}))
        for tensor in tree_iter(results):
            if isinstance(tensor, Tensor) and _key(tensor) not in given | self._sizes.keys():
                self._allocated(tensor)
        return results

    def _allocated(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        self._sizes[key] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
