"""Runs of networks on the meta device that record FLOPs and memory."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from page4d.profiling.memory import StorageTracker
from page4d.profiling.meta_kernels import flops_of, result_of


class _MetaDispatch:
    """Dispatch to `result_of`, with FLOPs per module and memory.

    A class of its own, because torch loads its compiler to wrap this method of a subclass of `TorchDispatchMode`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: dict[str, int] = defaultdict(int)
        self.peak_in = ""
        self._running = [""]
        self._storages = StorageTracker()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = result_of(function, args, kwargs or {})
        self.flops[self._running[-1]] += flops_of(function, args, result)
        if self._storages.record((args, kwargs), result):
            self.peak_in = self._running[-1]
        return result


class MetaRun(_MetaDispatch, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """FLOPs per module and memory of a run; `peak_in` is the module that ran at the memory peak."""

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes that tensors of the run hold at the same time."""
        return self._storages.peak

    def flops_below(self, *prefixes: str) -> int:
        """Return the FLOPs of the named modules and their submodules; a multiply-add counts as two."""
        return sum(
            flops
            for name, flops in self.flops.items()
            if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
        )

    def watch(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Attribute FLOPs and memory to a module while it runs, except while a submodule runs."""
        yield module.register_forward_pre_hook(lambda *_: self._running.append(name))
        yield module.register_forward_hook(lambda *_: self._left())

    def _left(self) -> None:
        self._running.pop()


class _FusedAttention(TorchFunctionMode):
    """Call the fused attention kernel: on the meta device torch would allocate all logits."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args[:3])[0]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules on the meta device, without initializing their parameters."""
    with torch.device("meta"), MetaRun():
        yield


@contextmanager
def meta_run(network: nn.Module) -> Iterator[MetaRun]:
    """Run a network on the meta device, and record every module by name."""
    run = MetaRun()
    handles = [handle for name, module in network.named_modules() if name for handle in run.watch(name, module)]
    try:
        with torch.device("meta"), _FusedAttention(), run, torch.no_grad():
            yield run
    finally:
        for handle in handles:
            handle.remove()
