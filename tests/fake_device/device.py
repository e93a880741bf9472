"""A fake device that computes on the CPU and refuses operations that mix devices, to test device placement.

It does not reproduce the rounding, memory and speed of a GPU.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

_NAME = "fakegpu"
_ATEN = torch.ops.aten
_BETWEEN_DEVICES = {_ATEN._to_copy.default, _ATEN.copy_.default}
_INDEXED = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index}
"""Operations whose indices may be on the CPU."""

_WAITING = {_ATEN.nonzero.default, _ATEN.masked_select.default}
"""Operations whose result has a size that depends on values."""

_waits: defaultdict[int, Counter[str]] = defaultdict(Counter)
"""How often each thread waited for results of the device, since its last `counted_waits`: by copies of tensors (and
their bytes), by values that became Python numbers, by sizes that depend on values."""


class _Module(backend_registration._DummyBackendModule):
    """The device module that torch requires."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing: random numbers come from the CPU generator."""


backend_registration._setup_privateuseone_for_python_backend(_NAME, _Module())

FAKE_DEVICE = torch.device(_NAME, 0)


class FakeDeviceTensor(Tensor):
    """A tensor on the fake device; `host` is the CPU tensor with its values."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, requires_grad: bool = False) -> "FakeDeviceTensor":
        fake = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=FAKE_DEVICE,
            requires_grad=requires_grad,
        )
        fake.host = host
        return fake

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:
        return f"FakeDeviceTensor({self.host!r})"


@contextmanager
def fake_device() -> Iterator[torch.device]:
    """Enable the fake device; inference mode becomes no_grad, as wrapper subclasses cannot make its views."""
    with mock.patch.object(torch, "inference_mode", torch.no_grad), _Creation(), _Dispatch():
        yield FAKE_DEVICE


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """Count, in the body, how often this thread waits for results of the fake device."""
    waits = _waits[get_ident()]
    waits.clear()
    yield waits


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {})


class _Creation(TorchFunctionMode):
    """Convert between tensors and Python numbers, which torch does without dispatch."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == FAKE_DEVICE:
            if isinstance(args[0], FakeDeviceTensor):
                return args[0].to(kwargs.get("dtype") or args[0].dtype)
            return func(*args, **{**kwargs, "device": "cpu"}).to(FAKE_DEVICE)
        if not args or not isinstance(args[0], FakeDeviceTensor):
            return func(*args, **kwargs)
        if func is Tensor.tolist:
            _waits[get_ident()]["numbers"] += 1
            return args[0].host.tolist()
        if func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(FAKE_DEVICE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(torch.tensor(key) if isinstance(key, list) else key for key in keys), *args[2:])
        return func(*args, **kwargs)


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_fake = any(isinstance(one, FakeDeviceTensor) for one in tensors)
    if is_fake and func not in _BETWEEN_DEVICES:
        checked = tensors[:1] if func.overloadpacket in _INDEXED else tensors
        mixed = [tuple(one.shape) for one in checked if not isinstance(one, FakeDeviceTensor) and one.ndim]
        if mixed:
            raise RuntimeError(f"{func}: tensors {mixed} are on the CPU, others on the fake device")
    if is_fake:
        _count_wait(func, args, kwargs)
    stays = is_fake and func is not _ATEN.copy_.default  # into a tensor that may be on the CPU
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == _NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    hosts = tree_map_only(FakeDeviceTensor, lambda fake: fake.host, (args, kwargs))
    out = func(*hosts[0], **hosts[1])
    if stays:
        out = tree_map(lambda one: FakeDeviceTensor(one) if type(one) is Tensor else one, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if is_fake else out


def _count_wait(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count an operation that needs results of the fake device on the CPU."""
    if func is _ATEN._local_scalar_dense.default:
        _waits[get_ident()]["numbers"] += 1
    elif func in _WAITING or (
        func.overloadpacket in _INDEXED
        and any(isinstance(one, Tensor) and one.dtype is torch.bool for one in args[1] or ())
    ):
        _waits[get_ident()]["sizes"] += 1
    elif func is _ATEN.copy_.default:
        if isinstance(args[1], FakeDeviceTensor) and not isinstance(args[0], FakeDeviceTensor):
            _count_copy(args[1])
    elif (
        func is _ATEN._to_copy.default
        and kwargs.get("device") is not None
        and isinstance(args[0], FakeDeviceTensor)
        and torch.device(kwargs["device"]).type != _NAME
    ):
        _count_copy(args[0])


def _count_copy(values: Tensor) -> None:
    _waits[get_ident()]["copies"] += 1
    _waits[get_ident()]["bytes"] += values.nbytes
