"""Slicing and concatenation of records along their time axis, and changes of all their tensors.

A record is a frozen dataclass: its `times` are [T], its other tensors [B, T, ...], its cameras [B, T, V], and
the counts of its agreement [B, T, V, H, W].
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")


def spread_places(length: int, most: int) -> list[int]:
    """Return at most `most` of a number of places, spread evenly, with the first and the last one."""
    return sorted({int(place) for place in np.linspace(0, length - 1, min(length, most)).round()})


def is_flag(value: object) -> bool:
    """Return whether a value is an entry of a mask, and no instant, on any device."""
    return str(getattr(value, "dtype", type(value).__name__)).endswith("bool")


def slice_times(record: Record, start: int, stop: int) -> Record:
    """Return the instants from `start` to before `stop` as views of the record's tensors."""
    return _map_tensors([record], lambda tensors, axis: tensors[0][(slice(None),) * axis + (slice(start, stop),)])


def at_instants(record: Record, instants: Sequence[int]) -> Record:
    """Return some instants, in their order, as a copy."""
    chosen = torch.as_tensor(instants)
    return _map_tensors([record], lambda tensors, axis: tensors[0].index_select(axis, chosen.to(tensors[0].device)))


def join_times(parts: Sequence[Record]) -> Record:
    """Concatenate consecutive parts of one capture; other fields are those of the first part."""
    return _map_tensors(parts, torch.cat) if len(parts) > 1 else parts[0]


def clone_tensors(record: Record) -> Record:
    """Copy the tensors, so that a slice no longer keeps the whole record in memory."""
    return map_tensors(record, torch.clone)


def to_device(record: Record, device: torch.device | str) -> Record:
    """Return the record with its tensors on a device, itself if they are there."""
    return map_tensors(record, lambda tensor: tensor.to(device))


def map_tensors(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """Return the record with every tensor changed, also those of the records in it."""
    return _map_tensors([record], lambda tensors, _: change(tensors[0]))


def _map_tensors(parts: Sequence[Record], function: Callable[[list[Tensor], int], Tensor]) -> Record:
    """Combine each tensor of all parts by `function`, which also takes the index of the time axis."""
    changes: dict[str, Any] = {}
    for field in fields(parts[0]):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], Tensor):
            changes[field.name] = function(values, 0 if field.name == "times" else 1)
        elif is_dataclass(values[0]):
            changes[field.name] = _map_tensors(values, function)
    return replace(parts[0], **changes)
