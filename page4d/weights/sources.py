"""Lazy reading of third-party weights: safetensors files, folders of shards, PyTorch checkpoints."""

import argparse
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from page4d.errors import WeightsError, shortened
from page4d.io.atomic import file_sha256
from page4d.io.documents import DocumentError, parse_json, read_text
from page4d.weights.file_type import FETCH_AGAIN, ZIP_START, first_bytes, is_pickle
from page4d.weights.names import INDEX_SUFFIX
from page4d.weights.store import DTYPES_BY_CODE, MAX_CHARS, TensorSpec, damaged, specs_of

_WRAPPERS = ("model", "state_dict")
"""Keys of training checkpoints that hold the tensors, next to the optimizer state and the like."""

_WRAPPED = "module."

_MAX_INDEX_BYTES = 64 * 2**20
_NO_CODE = "page4d does not run code from files: get the weights as .safetensors, or saved as tensors only"

# Errors of the restricted unpickler on damaged or malicious bytes, besides UnpicklingError.
_DAMAGED = (
    *(RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError, struct.error),
    *(ArithmeticError, MemoryError, ImportError),
)

_MAX_INFLATION = 4
"""Largest ratio of what a checkpoint holds to its size on disk: torch stores tensors uncompressed, once each."""

_SLACK_BYTES = 64 * 2**20
"""What a small file may hold in any case."""

_MAX_PICKLE_BYTES = 16 * 2**20
"""Largest description of the objects of a checkpoint, of about 100,000 tensors: built, it has 100 times the size."""

_MAX_NESTING = 4
"""Wrappers inside each other."""


@dataclass(frozen=True, kw_only=True)
class TensorSource:
    """Named tensors of a file or folder; `read` reads one of them."""

    path: Path
    files: tuple[Path, ...]
    specs: Mapping[str, TensorSpec]
    read: Callable[[str], Tensor]
    metadata: Mapping[str, str]

    def sha256(self) -> dict[str, str]:
        """Return the hash of each file by name."""
        return {path.name: file_sha256(path) for path in self.files}


def open_source(path: Path) -> TensorSource:
    """Open a .safetensors file, a folder of shards with an index, or a checkpoint that holds tensors only.

    Raises:
        WeightsError: if it is missing, damaged, of another kind, or contains code.
    """
    if path.is_dir():
        return _open_folder(path)
    if is_pickle(path, first_bytes(path)):
        if path.suffix == ".safetensors":
            raise WeightsError(
                f"'{path}' is damaged, or a PyTorch checkpoint with a wrong suffix", "if so, rename it to .pt"
            )
        return _open_checkpoint(path)
    return _open_safetensors(path)


def _open_safetensors(path: Path) -> TensorSource:
    try:
        file: Any = safe_open(path, framework="pt")
        metadata = file.metadata() or {}
        specs = {}
        for name in file.keys():  # noqa: SIM118  not a mapping
            part = file.get_slice(name)
            code = str(part.get_dtype())
            if code not in DTYPES_BY_CODE:
                raise WeightsError(
                    f"'{path}': tensor '{shortened(name)}' has type {code}", "convert it to floating point first"
                )
            specs[name] = TensorSpec(shape=tuple(part.get_shape()), dtype=DTYPES_BY_CODE[code])
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error
    return TensorSource(path=path, files=(path,), specs=specs, read=file.get_tensor, metadata=metadata)


def _open_folder(path: Path) -> TensorSource:
    indices = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if not indices:
        single = sorted(path.glob("*.safetensors"))
        if len(single) == 1:
            return open_source(single[0])
        raise WeightsError(
            f"folder '{path}' has no {INDEX_SUFFIX[1:]} and {len(single)} .safetensors files",
            "give the weights file itself, or a folder with the index of its shards",
        )
    if len(indices) > 1:
        raise WeightsError(f"folder '{path}' has {len(indices)} indices", "give the weights file itself")
    places = read_index(indices[0])
    shards = {}
    for name in sorted(set(places.values())):
        first_bytes(path / name)
        shards[name] = _open_safetensors(path / name)
    for tensor, shard in places.items():
        if tensor not in shards[shard].specs:
            raise WeightsError(f"'{path / shard}' lacks tensor '{tensor}' of the index", FETCH_AGAIN)
    for shard, source in shards.items():
        surplus = [tensor for tensor in source.specs if places.get(tensor) != shard]
        if surplus:
            raise WeightsError(f"'{path / shard}' holds '{surplus[0]}', which the index does not list", FETCH_AGAIN)
    return TensorSource(
        path=path,
        files=tuple(path / name for name in shards),
        specs={tensor: shards[shard].specs[tensor] for tensor, shard in places.items()},
        read=lambda tensor: shards[places[tensor]].read(tensor),
        metadata={},
    )


def read_index(path: Path) -> dict[str, str]:
    """Return the shard of every tensor that an index lists.

    Raises:
        WeightsError: if it cannot be read, or names a file outside of its folder.
    """
    try:
        content = parse_json(read_text(path, _MAX_INDEX_BYTES))
    except DocumentError as error:
        raise WeightsError(f"'{path}' is not an index of shards: {error}", FETCH_AGAIN) from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise WeightsError(f"'{path}' has no 'weight_map' with the file of every tensor", FETCH_AGAIN)
    checked: dict[str, str] = places
    for shard in checked.values():
        if Path(shard).name != shard or "\0" in shard or not shard.endswith(".safetensors"):
            raise WeightsError(
                f"'{path}' names a shard '{shortened(shard)}', which is no .safetensors file of its folder",
                "do not use this file",
            )
    if not checked:
        raise WeightsError(f"'{path}' names no tensors", FETCH_AGAIN)
    return checked


def _open_checkpoint(path: Path) -> TensorSource:
    """Read a checkpoint with the restricted unpickler; tensors of a zip file are memory-mapped."""
    zipped = first_bytes(path).startswith(ZIP_START)
    if zipped:
        _check_archive(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error))
        if found is None:
            raise WeightsError(f"'{path}' is not a checkpoint of tensors, or damaged", FETCH_AGAIN) from error
        raise WeightsError(
            f"'{path}' contains Python objects ({found[1].rstrip('.')}) and was not loaded", _NO_CODE
        ) from error
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error}", "check the file and its disk") from error
    except _DAMAGED as error:
        raise damaged(path, error) from error
    tensors = _unwrap(path, loaded)
    _check_tensors(path, tensors)
    return TensorSource(path=path, files=(path,), specs=specs_of(tensors), read=tensors.__getitem__, metadata={})


def _check_archive(path: Path) -> None:
    """Refuse an archive whose entries are far larger than the file, or whose objects would fill the memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            _check_size(path, sum(entry.file_size for entry in entries))
            objects = sum(entry.file_size for entry in entries if entry.filename.endswith("data.pkl"))
            if objects > _MAX_PICKLE_BYTES:
                raise WeightsError(f"'{path}' holds more than tensors: {objects / 1e6:,.0f} MB of objects", _NO_CODE)
    except (*_DAMAGED, zipfile.BadZipFile, zlib.error, OSError) as error:
        raise damaged(path, error) from error


def _check_size(path: Path, num_bytes: int) -> None:
    on_disk = path.stat().st_size
    if num_bytes > _MAX_INFLATION * on_disk + _SLACK_BYTES:
        raise WeightsError(
            f"'{path}' has {on_disk / 1e6:,.1f} MB and would become {num_bytes / 1e6:,.0f} MB in memory",
            "do not use this file: torch.save stores tensors uncompressed and once each",
        )


def _check_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not plain arrays of numbers in memory, or that repeat a few numbers without end."""
    for name, value in tensors.items():
        if value.is_quantized or value.device.type != "cpu" or value.dtype not in DTYPES_BY_CODE.values():
            kind = f"{value.dtype}".removeprefix("torch.")
            where = "" if value.device.type == "cpu" else f" on the device {value.device.type}"
            raise WeightsError(
                f"'{path}': tensor '{shortened(name)}' has type {kind}{where}", "convert it to floating point first"
            )
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in tensors.values()}
    _check_size(path, max(sum(storages.values()), *(value.numel() * value.itemsize for value in tensors.values())))


def _unwrap(path: Path, loaded: Any) -> dict[str, Tensor]:
    """Return the named tensors of a checkpoint."""
    for _ in range(_MAX_NESTING):
        inside = [loaded[key] for key in _WRAPPERS if isinstance(loaded, Mapping) and key in loaded]
        inside = [value for value in inside if isinstance(value, Mapping)]
        if not inside:
            break
        loaded = inside[0]
    if not isinstance(loaded, Mapping) or not any(isinstance(value, Tensor) for value in loaded.values()):
        held = f"{type(loaded).__name__}" if not isinstance(loaded, Mapping) else _names(loaded) or "{}"
        raise WeightsError(f"'{path}' holds no named tensors, but {held}", "give the weights of a network")
    for name, value in loaded.items():
        if not isinstance(name, str):
            raise WeightsError(
                f"'{path}' holds a tensor under {_names([name])}, not under a name", "give the weights of a network"
            )
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            raise WeightsError(
                f"'{path}': entry '{_names([name])}' is {type(value).__name__}, not a plain tensor",
                "remove it from the file",
            )
    # The wrapper of PyTorch for several devices prefixes all names.
    shared = _WRAPPED if all(name.startswith(_WRAPPED) for name in loaded) else ""
    return {name.removeprefix(shared): value for name, value in loaded.items()}


def _names(keys: Iterable[Any]) -> str:
    """Return the names among the first keys of a mapping, for a message; keys may be of any type and size."""
    shown = [str(key)[:40] if isinstance(key, str | int) else type(key).__name__ for key in islice(keys, 20)]
    return shortened(", ".join(shown), MAX_CHARS)
