"""Memory bounds of a forward pass, evaluation in chunks, regions of full precision, and ranges of network sizes.

The ranges contain every published network. They are checked before anything is built: the shapes of a network within
them are found in seconds, without memory for its parameters.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.amp import is_autocast_available

from page4d.io.json_records import config_record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@config_record("limits")
class ForwardLimits:
    """Maximum numbers processed at once; None is unlimited.

    `max_images` applies to encoder and dense heads, `max_tokens` to the blocks of the trunk (tokens that attend to
    each other are not split), `max_queries` to the queries of attention and the tokens of feed-forward networks.
    """

    max_images: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    max_queries: PositiveInt | None = None


Record = TypeVar("Record", bound="DataclassInstance")

NO_LIMITS = ForwardLimits()
"""No bounds."""

repetitions: ContextVar[int] = ContextVar("repetitions", default=1)
"""How many times what runs now stands for, on the meta device: there equal parts are evaluated once."""


def in_chunks(function: Callable[[slice], Tensor], length: int, at_once: int | None, dim: int) -> Tensor:
    """Evaluate a function on slices of at most `at_once` of `length` entries and join the results along `dim`.

    None evaluates all entries at once. Slices are as equal as possible. Without gradient, each result is copied into
    the output as it is computed, so that the slices and their concatenation are never held at the same time. On the
    meta device, where results depend on shapes alone, all slices after the first that are as long as it are evaluated
    once: their operations count, by `repetitions`, as in a real run.
    """
    if at_once is None or at_once >= length:
        return function(slice(0, length))
    size = -(-length // -(-length // at_once))
    chunks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    if torch.is_grad_enabled():
        return torch.cat([function(chunk) for chunk in chunks], dim=dim)
    whole: Tensor | None = None
    for place, chunk in enumerate(chunks):
        is_repeated = whole is not None and whole.is_meta and chunk.stop - chunk.start == size
        if is_repeated and place > 1:
            continue
        with _repeated(length // size - 1) if is_repeated else nullcontext():
            part = function(chunk)
        if whole is None:
            shape = list(part.shape)
            shape[dim] = length
            whole = part.new_empty(shape)
        whole.narrow(dim, chunk.start, part.shape[dim]).copy_(part)
        del part
    assert whole is not None
    return whole


_ON_GPU = 8
"""Numbers that a GPU computes at once for one on a CPU: operations on fewer take the time of their start."""


def numbers_at_once(number: int, device: torch.device) -> int:
    """Return how many numbers, of which a CPU computes `number` at once, a device does."""
    return number if device.type == "cpu" else _ON_GPU * number


def each_part(function: Callable[[slice], Record], length: int, at_once: int | None) -> list[Record]:
    """Evaluate a function on slices of at most `at_once` of `length` entries; return its records of tensors.

    On the meta device equal slices are evaluated once, as by `in_chunks`; all results are counted.
    """
    size = at_once or length
    chunks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    first = function(chunks[0])
    if len(chunks) > 3 and any(isinstance(value, Tensor) and value.is_meta for value in vars(first).values()):
        with _repeated(len(chunks) - 2):
            middle = function(chunks[1])
        return [first, middle, *(_copied(middle) for _ in chunks[2:-1]), function(chunks[-1])]
    return [first, *(function(chunk) for chunk in chunks[1:])]


def _copied(record: Record) -> Record:
    """Return a record of empty tensors of the same shapes."""

    def copied(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(copied, value))
        return value.new_empty(value.shape) if isinstance(value, Tensor) else value

    return replace(record, **{name: copied(value) for name, value in vars(record).items()})


@contextmanager
def _repeated(times: int) -> Iterator[None]:
    """Count what runs in the body `times` times."""
    token = repetitions.set(repetitions.get() * times)
    try:
        yield
    finally:
        repetitions.reset(token)


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast on devices that support it; the meta device does not."""
    return torch.autocast(device.type, enabled=False) if is_autocast_available(device.type) else nullcontext()


def exact_convolutions() -> AbstractContextManager[None]:
    """Compute convolutions in float32 as such: on a GPU, PyTorch rounds their inputs to TF32's 10 bits by default."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False)


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Let torch choose algorithms on a GPU whose result does not depend on the order of parallel sums.

    Source: PyTorch documentation, "Reproducibility"; cuBLAS reads the variable when it is first used.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic  # its type stub lacks the attribute
    filled = deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        # Of a median only the index among equal values is undetermined.
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # nothing reads it
        try:
            yield
        finally:
            deterministic.fill_uninitialized_memory = filled
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Compute on a number of cores in this thread, and in those that it starts.

    One suits many small operations, in which threads would wait for each other: on a busy machine two take several
    times the CPU time of one, at the barrier after every operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Width = Annotated[int, Field(ge=1, le=2**16)]
"""Channels of a token or feature map."""

OptionalWidth = Annotated[int, Field(ge=0, le=2**16)]
"""Channels of a part that 0 leaves out."""

Depth = Annotated[int, Field(ge=1, le=256)]
"""Number of layers, blocks or iterations."""

OptionalDepth = Annotated[int, Field(ge=0, le=256)]
"""Number of layers, which may be 0."""

Layer = Annotated[int, Field(ge=0, lt=256)]
"""Index of a layer."""

Side = Annotated[int, Field(ge=1, le=2**14)]
"""Side of an image or patch in pixels."""

Window = Annotated[int, Field(ge=1, le=64)]
"""Side of a window, kernel or reduction in tokens."""

Count = Annotated[int, Field(ge=1, le=2**16)]
"""Number of tokens, landmarks or images."""

OptionalCount = Annotated[int, Field(ge=0, le=1024)]
"""Number of tokens per image in addition to the patches."""

Classes = Annotated[int, Field(ge=1, le=2**20)]
"""Number of classes."""

Ratio = Annotated[float, Field(gt=0, le=64)]
"""Hidden over outer width of an MLP."""

Epsilon = Annotated[float, Field(ge=0, le=1)]
"""Number that a norm adds to a variance."""

RotaryBase = Annotated[float, Field(ge=1, le=1e9)]
"""Base of the wavelengths of rotary positions."""

MAX_STAGES = 8
"""Stages of a hierarchical encoder, or entries of a short list."""
