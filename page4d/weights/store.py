"""Self-describing weights files: streamed writing, with configuration, licence and provenance next to the tensors."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from page4d.errors import UsageError, WeightsError, shortened
from page4d.io.atomic import describe_mismatch, file_sha256, open_atomic, output_errors
from page4d.io.documents import parse_json
from page4d.io.json_records import config_to_json
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig, encoder_from_json
from page4d.networks.network import ViewTimeNetwork
from page4d.weights.file_type import FETCH_AGAIN, WHAT_WEIGHTS_ARE, first_bytes, is_pickle, is_safetensors
from page4d.weights.names import BUNDLED_FILE, weights_cache

_CODES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES_BY_CODE: dict[str, torch.dtype] = {code: dtype for dtype, code in _CODES.items()}
"""Element types by their code in the format."""

FORMAT_VERSION = 1
_ENTRY = "page4d"
"""The only key of the safetensors metadata: with several, their order and so the bytes of the file would vary."""

ENCODER_ENTRY = "page4d-encoder"
"""The only key in the file of a single encoder."""

_REQUIRED = ("licence", "description")
COMMERCIAL = "commercial"
"""Entry of the metadata: whether the licence permits commercial use, yes or no; absent if unknown."""

MAX_CHARS = 200
"""Length to which reasons of libraries are shortened in messages."""

_Config = TypeVar("_Config")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    """Return shapes and types of tensors by name."""
    return {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}


def write_tensors(
    file: BinaryIO,
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str],
    on_written: Callable[[int, int], None] | None = None,
) -> None:
    """Write the header, then each tensor that `read` returns; `on_written` receives the bytes so far and in all.

    The bytes equal those of the safetensors package: widest elements first, then by name.
    """
    ordered = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in ordered:
        spec = specs[name]
        end = offset + spec.num_bytes
        header[name] = {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    done = 0
    for name in ordered:
        spec, tensor = specs[name], read(name)
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype), name
        if not is_finite(tensor):
            raise WeightsError(f"tensor '{name}' holds values that are not finite", "nothing was written")
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        done += spec.num_bytes
        if on_written is not None:
            on_written(done, offset)


@dataclass(frozen=True, kw_only=True)
class WeightsInfo:
    """Provenance of a weights file; `metadata` holds all entries that were saved with it."""

    path: Path
    licence: str
    description: str
    metadata: Mapping[str, str]
    checked_sha256: str | None = field(default=None, compare=False, repr=False)
    """The hash, if it was compared with an expected one."""

    @property
    def commercial(self) -> bool | None:
        """Whether the licence permits commercial use; None if the file does not record it."""
        if self.path == BUNDLED_FILE:
            return True
        return {"yes": True, "no": False}.get(self.metadata.get(COMMERCIAL, ""))

    @cached_property
    def sha256(self) -> str:
        """Hash of the file, computed on first access: seconds for gigabytes."""
        return self.checked_sha256 or file_sha256(self.path)


def save_network(network: ViewTimeNetwork, path: Path, metadata: Mapping[str, str]) -> None:
    """Write weights and configuration atomically, replacing an older file.

    `metadata` must hold "licence" and "description"; further keys record provenance.

    Raises:
        UsageError: if a required entry is missing or empty.
        WeightsError: if a value is not finite.
        OutputError: if the file cannot be written.
    """
    tensors = network.state_dict()
    save_tensors(path, network.config, metadata, specs_of(tensors), tensors.__getitem__)


def save_tensors(
    path: Path,
    config: NetworkConfig | EncoderConfig,
    metadata: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    on_written: Callable[[int, int], None] | None = None,
) -> None:
    """Write the file of a network or encoder whose tensors `read` returns by name, one at a time.

    Raises:
        UsageError: if a required entry of the metadata is missing or empty.
        WeightsError: if a value is not finite; an older file remains.
        OutputError: if the file cannot be written.
    """
    missing = [key for key in _REQUIRED if not metadata.get(key)]
    if missing:
        raise UsageError(
            f"weights metadata lacks {', '.join(missing)}", "describe the weights and state their licence"
        )
    entry = _ENTRY if isinstance(config, NetworkConfig) else ENCODER_ENTRY
    about = {"version": FORMAT_VERSION, "config": config_to_json(config), "metadata": dict(metadata)}
    entries = {entry: json.dumps(about, sort_keys=True)}
    with output_errors(path), open_atomic(path) as file:
        write_tensors(file, specs, read, entries, on_written)


def describe_weights(
    path: Path, sha256: str | None = None, on_mismatch: str = FETCH_AGAIN
) -> tuple[NetworkConfig, WeightsInfo]:
    """Read the configuration and provenance of a network's file, without its tensors.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind, or its hash is not `sha256`, with the hint
            `on_mismatch` unless page4d's cache makes the file again.
    """
    if sha256 is not None:
        _check_sha256(path, sha256, on_mismatch)
    entries = _entries(path)
    if _ENTRY not in entries:
        if ENCODER_ENTRY in entries:
            raise WeightsError(f"'{path}' holds an encoder, not a whole network", "give the weights of a network")
        raise WeightsError(
            f"'{path}' holds tensors but no page4d network", "convert it first with page4d convert-weights"
        )
    return _about(path, entries[_ENTRY], NetworkConfig.from_json, sha256)


def _check_sha256(path: Path, expected: str, hint: str) -> None:
    """Refuse a file whose hash is not the expected one.

    Raises:
        WeightsError: if they differ, or the file cannot be read.
    """
    first_bytes(path)
    try:
        found = file_sha256(path)
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error.strerror}", FETCH_AGAIN) from error
    if found != expected:
        if weights_cache() in path.parents:
            hint = f"it is damaged: remove '{path}', and it is made again"
        raise WeightsError(f"{path.name} {describe_mismatch(found, expected)}", hint)


def is_page4d(path: Path) -> bool:
    """Return whether a readable file is one that page4d wrote, of a network or an encoder."""
    try:
        return not {_ENTRY, ENCODER_ENTRY}.isdisjoint(_entries(path))
    except WeightsError:
        return False


def holds_encoder(path: Path) -> bool:
    """Return whether a file that page4d wrote holds a single encoder.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind.
    """
    return ENCODER_ENTRY in _entries(path)


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite, without a copy of the tensor."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    # Infinities and NaN reach the sum, which takes half as long as the extremes, but may overflow.
    return bool(tensor.sum().isfinite()) or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def describe_encoder(path: Path) -> tuple[EncoderConfig, WeightsInfo]:
    """Read the configuration and provenance of an encoder's file, without its tensors.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind.
    """
    entries = _entries(path)
    if ENCODER_ENTRY not in entries:
        raise WeightsError(f"'{path}' holds no page4d encoder", "convert one with page4d convert-weights")
    return _about(path, entries[ENCODER_ENTRY], encoder_from_json)


def _entries(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file."""
    start = first_bytes(path)
    if is_pickle(path, start):
        raise WeightsError(
            f"'{path}' is a PyTorch checkpoint, which may contain code, and was not loaded",
            "convert it first with page4d convert-weights",
        )
    if not is_safetensors(start):
        raise WeightsError(f"'{path}' is damaged (incomplete), or of an unknown format", WHAT_WEIGHTS_ARE)
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> WeightsError:
    """Return the error on a file that cannot be parsed, with the first line of the reason."""
    reason = shortened((str(error).strip().splitlines() or [type(error).__name__])[0], MAX_CHARS)
    return WeightsError(f"'{path}' is damaged (incomplete): {reason}", FETCH_AGAIN)


def _about(
    path: Path, text: str, read_config: Callable[[str], _Config], sha256: str | None = None
) -> tuple[_Config, WeightsInfo]:
    """Parse the description of a file."""
    try:
        about = parse_json(text)
        version, config, metadata = about["version"], str(about["config"]), about["metadata"]
        described = {key: str(metadata[key]) for key in (*_REQUIRED, *metadata)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = shortened(str(error), MAX_CHARS)
        raise WeightsError(f"'{path}' has a damaged description: {reason}", FETCH_AGAIN) from error
    if version != FORMAT_VERSION:
        raise WeightsError(
            f"'{path}' has format version {version!s:.20}, this page4d reads version {FORMAT_VERSION}",
            "update page4d",
        )
    try:
        record = read_config(config)
    except UsageError as error:
        raise WeightsError(f"'{path}': {error.marked_message}", error.marked_hint) from error
    info = WeightsInfo(
        path=path,
        licence=described["licence"],
        description=described["description"],
        metadata=described,
        checked_sha256=sha256,
    )
    return record, info
