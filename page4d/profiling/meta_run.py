"""Run networks on tensors that have shapes but no numbers; note their work and memory."""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.hooks import RemovableHandle

from page4d.profiling.meta_kernels import result_of, work_of


class _MetaDispatch:
    """Answer every operation, and keep the books.

    Apart from `MetaRun`, because torch loads its compiler to wrap this method of a class derived from its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: dict[str, int] = defaultdict(int)
        self.peak_bytes = 0
        self.peak_in = ""
        self._running = [""]
        self._live = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(value) for value in tree_iter(args) if isinstance(value, Tensor)}
        result = result_of(function, args, kwargs or {})
        self.flops[self._running[-1]] += work_of(function, args, result)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and _key(tensor) not in given | self._sizes.keys():
                self._allocated(tensor)
        return result

    def _allocated(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        self._sizes[key] = storage.nbytes()
        self._live += storage.nbytes()
        weakref.finalize(storage, self._freed, key)
        if self._live > self.peak_bytes:
            self.peak_bytes, self.peak_in = self._live, self._running[-1]

    def _freed(self, key: int) -> None:
        self._live -= self._sizes.pop(key)


class MetaRun(_MetaDispatch, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What was seen of a run: the work of every module by its name, and the memory of all tensors made meanwhile.

    `peak_bytes` is the most that they held at once, `peak_in` the module that ran then.
    """

    def work(self, *prefixes: str) -> int:
        """Return the work of all modules below some names; a multiplication and an addition count as two."""
        return sum(
            work
            for name, work in self.flops.items()
            if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
        )

    def watch(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Give a module the work that is done and the memory that is taken while it runs, but no module inside it."""
        yield module.register_forward_pre_hook(lambda *_: self._running.append(name))
        yield module.register_forward_hook(lambda *_: self._left())

    def _left(self) -> None:
        self._running.pop()


class _FusedAttention(TorchFunctionMode):
    """Call the fused kernel: on the meta device torch would build all logits."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args[:3])[0]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules on the meta device while the body runs, without filling their parameters."""
    with torch.device("meta"), MetaRun():
        yield


@contextmanager
def meta_run(network: nn.Module) -> Iterator[MetaRun]:
    """Run nothing but shapes while the body runs, and note every module of a network on the meta device."""
    run = MetaRun()
    handles = [handle for name, module in network.named_modules() if name for handle in run.watch(name, module)]
    try:
        with torch.device("meta"), _FusedAttention(), run, torch.no_grad():
            yield run
    finally:
        for handle in handles:
            handle.remove()


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
