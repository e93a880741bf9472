"""A stand-in for a GPU where there is none: a device of its own that computes on the CPU and refuses what is mixed.

What it cannot show is how a GPU rounds, how much it holds and how fast it is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

_NAME = "elsewhere"
_ATEN = torch.ops.aten
_BETWEEN_DEVICES = {_ATEN._to_copy.default, _ATEN.copy_.default}
_INDEXED = {_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_, _ATEN._unsafe_index}
"""Those whose indices may lie on the CPU."""


class _Module(backend_registration._DummyBackendModule):
    """What torch asks of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the CPU's."""


backend_registration._setup_privateuseone_for_python_backend(_NAME, _Module())

ELSEWHERE = torch.device(_NAME, 0)


class Far(Tensor):
    """A tensor elsewhere; `near` holds its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor, requires_grad: bool = False) -> "Far":
        far = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=ELSEWHERE,
            requires_grad=requires_grad,
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {})

    def __repr__(self, **_: object) -> str:
        return f"Far({self.near!r})"


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """Let there be such a device; tensors of inference mode have no views that a stand-in could make."""
    with mock.patch.object(torch, "inference_mode", torch.no_grad), _Made(), _Dispatched():
        yield ELSEWHERE


class _Dispatched(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return _computed(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Makes tensors of Python's numbers, and numbers of tensors, which torch does below what can be dispatched."""

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
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device) == ELSEWHERE:
            return func(*args, **{**kwargs, "device": "cpu"}).to(ELSEWHERE)
        if not args or not isinstance(args[0], Far):
            return func(*args, **kwargs)
        if func is Tensor.tolist:
            return args[0].near.tolist()
        if func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=kwargs.get("dtype") or args[0].dtype).to(ELSEWHERE)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            args = (args[0], tuple(torch.tensor(key) if isinstance(key, list) else key for key in keys), *args[2:])
        return func(*args, **kwargs)


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_far = any(isinstance(one, Far) for one in tensors)
    if is_far and func not in _BETWEEN_DEVICES:
        asked = tensors[:1] if func.overloadpacket in _INDEXED else tensors
        mixed = [tuple(one.shape) for one in asked if not isinstance(one, Far) and one.ndim]
        if mixed:
            raise RuntimeError(f"{func}: tensors {mixed} are on the CPU, others elsewhere")
    stays = is_far and func is not _ATEN.copy_.default  # into a tensor that may be on the CPU
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == _NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    nears = tree_map_only(Far, lambda far: far.near, (args, kwargs))
    out = func(*nears[0], **nears[1])
    if stays:
        out = tree_map(lambda one: Far(one) if type(one) is Tensor else one, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if is_far else out  # type: ignore[no-untyped-call]
