"""Runs of networks on the meta device that record shapes, FLOPs and memory of torch operations.

Memory is exact: the bytes of all live storages, independent of the allocator.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from page4d.errors import UsageError
from page4d.networks.layers.execution import repetitions


class _StorageTracker:
    """Bytes of the storages that operations allocate: `live` now, and at most at the same time (`peak`)."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def record(self, inputs: Any, results: Any) -> bool:
        """Count the storages that an operation allocated until they are freed; return whether the peak rose."""
        new = {key: tensor for tensor in _tensors_in(results) if (key := _key(tensor)) not in self._sizes}
        for key in new.keys() - map(_key, _tensors_in(inputs) if new else ()):
            storage = new[key].untyped_storage()
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            weakref.finalize(storage, self._freed, key)
        rose = self.live > self.peak
        self.peak = max(self.peak, self.live)
        return rose

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


class LiveBytes(_StorageTracker, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count what operations allocate and free while the body runs.

    Tensors that existed before and temporary buffers inside kernels are not counted.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        self.record((args, kwargs), results)
        return results


def _tensors_in(values: Any) -> Sequence[Tensor]:
    """Return the tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, Tensor):
        return (values,)
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return ()
    return [tensor for value in values for tensor in _tensors_in(value)] if values else ()


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _MetaDispatch(_StorageTracker):
    """Dispatch to `result_of`, with FLOPs per module and memory unless only modules are built.

    A class of its own, because torch loads its compiler to wrap this method of a subclass of `TorchDispatchMode`.
    """

    def __init__(self, builds: bool = False) -> None:
        super().__init__()
        self._builds = builds
        self.flops: dict[str, int] = defaultdict(int)
        self.peak_in = ""
        self._running = [""]
        self._ended = ""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = result_of(function, args, kwargs or {})
        if self._builds:
            return result
        if formula := _FLOPS.get(function.overloadpacket):
            self.flops[self._running[-1]] += repetitions.get() * formula(result, *args)
        if self.record((args, kwargs), result):
            self.peak_in = self._running[-1] or self._ended
        return result


class MetaRun(_MetaDispatch, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """FLOPs per module and memory of a run; `peak_in` is the module that runs at the peak or ended before it."""

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
        self._ended = self._running.pop()


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
    with torch.device("meta"), MetaRun(builds=True):
        yield


@contextmanager
def meta_run(network: nn.Module) -> Iterator[MetaRun]:
    """Run a network on the meta device, and record every module by name.

    Raises:
        UsageError: if a tensor of the run has more bytes than a 64-bit number counts.
    """
    run = MetaRun()
    handles = [handle for name, module in network.named_modules() if name for handle in run.watch(name, module)]
    try:
        with torch.device("meta"), _FusedAttention(), run, torch.no_grad():
            yield run
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UsageError("images too many or too large for any memory", "profile fewer or smaller images") from error
    finally:
        for handle in handles:
            handle.remove()


_aten = torch.ops.aten


def result_of(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation on the meta device; a scalar read from a tensor is 1.

    Torch implements this too, but loads its compiler for it, which takes longer than all networks together. Frequent
    operations are implemented here; views and rare operations are left to torch.
    """
    rule = _RULES.get(function.overloadpacket)
    if rule is not None:
        return rule(*args, **kwargs)
    if function._schema.is_mutable:
        return args[0]
    if torch.Tag.pointwise in function.tags:
        return _pointwise(function.overloadpacket, args)
    return function(*args, **kwargs)


def _pointwise(packet: Any, args: Sequence[Any]) -> Tensor:
    tensors = [value for value in args if isinstance(value, Tensor)]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    if packet in _COMPARISONS:
        dtype = torch.bool
    elif not dtype.is_floating_point and any(isinstance(value, float) for value in args):
        dtype = torch.get_default_dtype()
    whole = next((tensor for tensor in tensors if tensor.shape == shape), None)
    return torch.empty(shape, dtype=dtype, device="meta") if whole is None else _empty_like(whole, dtype)


def _empty_like(values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty tensor with the same memory order of axes, so that later reshapes copy as in a real run."""
    strides = values.stride()
    order = sorted(range(values.ndim), key=lambda axis: -strides[axis]) if all(strides) else range(values.ndim)
    return torch.empty_permuted(values.shape, tuple(order), dtype=dtype or values.dtype, device="meta")


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")  # `new_empty` of the meta device is written in Python


def _attention(query: Tensor, _key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    batch, heads, length = query.shape[:3]
    return _empty(query, batch, length, heads, value.shape[3]).transpose(1, 2), _empty(query, batch, length, heads)


def _layer_norm(tokens: Tensor, normalized: Sequence[int], *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    kept = (*tokens.shape[: -len(normalized)], *(1 for _ in normalized))
    return _empty(tokens, *tokens.shape), _empty(tokens, *kept), _empty(tokens, *kept)


def _group_norm(
    maps: Tensor, _weight: Any, _bias: Any, frames: int, _channels: int, _positions: int, groups: int, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_like(maps), _empty(maps, frames, groups), _empty(maps, frames, groups)


def _convolution(
    maps: Tensor, weight: Tensor, _: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *__: Any
) -> Tensor:
    kernels = [(kernel - 1) * spacing + 1 for kernel, spacing in zip(weight.shape[2:], dilation, strict=True)]
    sides = zip(maps.shape[2:], kernels, stride, padding, strict=True)
    if transposed:
        enlarged = [(side - 1) * step - 2 * margin + kernel for side, kernel, step, margin in sides]
        return _empty(maps, maps.shape[0], weight.shape[1], *enlarged)
    reduced = [(side + 2 * margin - kernel) // step + 1 for side, kernel, step, margin in sides]
    return _empty(maps, maps.shape[0], weight.shape[0], *reduced)


def _convolution_flops(found: Tensor, maps: Tensor, weight: Tensor, *options: Any) -> int:
    is_transposed = options[4]
    return 2 * len(maps) * (maps if is_transposed else found).shape[2:].numel() * weight.numel()


def _resample(maps: Tensor, size: Sequence[int], *_: Any, **__: Any) -> Tensor:
    return _empty(maps, *maps.shape[:2], *size)


def _pool(maps: Tensor, kernel: Sequence[int], *_: Any) -> Tensor:
    """Pool over windows that do not overlap."""
    return _empty(maps, *maps.shape[:2], *(side // width for side, width in zip(maps.shape[2:], kernel, strict=True)))


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return torch.empty(shape, dtype=dtype, device="meta")


def _reduce(values: Tensor, dims: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    chosen = range(values.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    reduced = {axis % values.ndim for axis in chosen}
    kept = [
        1 if axis in reduced else side for axis, side in enumerate(values.shape) if keepdim or axis not in reduced
    ]
    return _empty(values, *kept)


def _place(values: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _empty_like(_reduce(values, dim, keepdim), torch.long)


def _index(values: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Index along consecutive axes."""
    before = next(axis for axis, index in enumerate(indices) if index is not None)
    found = np.broadcast_shapes(*(index.shape for index in indices if index is not None))
    return _empty(values, *values.shape[:before], *found, *values.shape[len(indices) :])


def _same(values: Tensor, *_: Any, **__: Any) -> Tensor:
    return _empty_like(values)


def _clone(values: Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
    return _empty_like(values) if memory_format is torch.preserve_format else _empty(values, *values.shape)


def _small_table(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a rule that computes a small table on the CPU for its shape and type."""
    return lambda *args, **kwargs: function(*args, **kwargs | {"device": "cpu"}).to("meta")


_COMPARISONS = frozenset((_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge, _aten.isfinite))
_RULES: dict[Any, Callable[..., Any]] = {
    _aten._local_scalar_dense: lambda _: 1.0,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten.argmax: _place,
    _aten.argmin: _place,
    _aten.addmm: lambda _, one, other, **__: _empty(one, one.shape[0], other.shape[1]),
    _aten.mm: lambda one, other: _empty(one, one.shape[0], other.shape[1]),
    _aten.bmm: lambda one, other: _empty(one, *one.shape[:2], other.shape[2]),
    _aten.convolution: _convolution,
    _aten.native_layer_norm: _layer_norm,
    _aten.native_group_norm: _group_norm,
    _aten.upsample_bilinear2d: _resample,
    **dict.fromkeys((_aten.upsample_bicubic2d, _aten._upsample_bicubic2d_aa), _resample),
    _aten.avg_pool2d: _pool,
    _aten.pixel_shuffle: lambda maps, factor: _empty(
        maps, maps.shape[0], maps.shape[1] // factor**2, *(factor * side for side in maps.shape[2:])
    ),
    _aten.cat: _cat,
    _aten.stack: lambda tensors, dim=0: _cat([tensor.unsqueeze(dim) for tensor in tensors], dim),
    _aten.repeat: lambda values, counts: _empty(
        values, *(side * count for side, count in zip(values.shape, counts, strict=True))
    ),
    _aten.index: _index,
    _aten.arange: _small_table(torch.arange),
    _aten.linspace: _small_table(torch.linspace),
    **dict.fromkeys((_aten.mean, _aten.sum, _aten.amax, _aten.amin, _aten.any, _aten.logsumexp), _reduce),
    _aten.var_mean: lambda *args, **kwargs: (_reduce(*args, **kwargs), _reduce(*args, **kwargs)),
    _aten.linalg_vector_norm: lambda values, _, *dims, **kept: _reduce(values, *dims, **kept),
    _aten.sort: lambda values, *_, **__: (_empty_like(values), _empty_like(values, torch.long)),
    _aten.gather: lambda values, _, indices, **__: _empty(values, *indices.shape),
    **dict.fromkeys((_aten._log_softmax, _aten._softmax, _aten.roll, _aten.flip, _aten.linalg_cross), _same),
    **dict.fromkeys((_aten.zeros_like, _aten.ones_like), _same),
    _aten.clone: _clone,
    _aten.floor_divide: lambda *args: _pointwise(_aten.floor_divide, args),  # not tagged as pointwise
}
_FLOPS: dict[Any, Callable[..., int]] = {  # of operations by their result and arguments; of all others 0
    **dict.fromkeys((_aten.addmm, _aten.mm, _aten.bmm), lambda _, *args: 2 * args[-2].numel() * args[-1].shape[-1]),
    _aten.convolution: _convolution_flops,
    _aten._scaled_dot_product_flash_attention_for_cpu: lambda _, query, key, value: (
        2 * query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    ),
}
