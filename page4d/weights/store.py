"""Self-describing weights files: streamed writing, with configuration, licence and provenance next to the tensors."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from page4d.encoders.build import EncoderConfig, encoder_from_json
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.io.atomic import open_atomic
from page4d.io.config import config_to_json
from page4d.models.config import NetworkConfig
from page4d.models.network import ViewTimeNetwork
from page4d.weights.file_type import FETCH_AGAIN, first_bytes, is_pickle

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


def write_tensors(
    file: BinaryIO,
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write the header, then each tensor that `read` returns; `on_written` receives the number of bytes of each.

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
    for name in ordered:
        spec, tensor = specs[name], read(name)
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype), name
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        if on_written is not None:
            on_written(spec.num_bytes)


@dataclass(frozen=True, kw_only=True)
class WeightsInfo:
    """Provenance of a weights file; `metadata` holds all entries that were saved with it."""

    path: Path
    licence: str
    description: str
    metadata: Mapping[str, str]

    @cached_property
    def sha256(self) -> str:
        """Hash of the file, computed on first access: seconds for gigabytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def save_network(network: ViewTimeNetwork, path: Path, metadata: Mapping[str, str]) -> None:
    """Write weights and configuration atomically, replacing an older file.

    `metadata` must hold "licence" and "description"; further keys record provenance.

    Raises:
        UsageError: if a required entry is missing or empty.
        OutputError: if the file cannot be written.
    """
    tensors = network.state_dict()
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}
    save_tensors(path, network.config, metadata, specs, tensors.__getitem__)


def save_tensors(
    path: Path,
    config: NetworkConfig | EncoderConfig,
    metadata: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write the file of a network or encoder whose tensors `read` returns by name, one at a time.

    Raises:
        UsageError: if a required entry of the metadata is missing or empty.
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
    try:
        with open_atomic(path) as file:
            write_tensors(file, specs, read, entries, on_written)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write '{path}': {reason}", "check the folder and the space on its disk") from error


def describe_weights(path: Path) -> tuple[NetworkConfig, WeightsInfo]:
    """Read the configuration and provenance of a network's file, without its tensors.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind.
    """
    entries = _entries(path)
    if _ENTRY not in entries:
        if ENCODER_ENTRY in entries:
            raise WeightsError(f"'{path}' holds an encoder, not a whole network", "give the weights of a network")
        raise WeightsError(
            f"'{path}' holds tensors but no page4d network", "convert it first with page4d convert-weights"
        )
    return _about(path, entries[_ENTRY], NetworkConfig.from_json)


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
    if is_pickle(path, first_bytes(path)):
        raise WeightsError(
            f"'{path}' is a PyTorch checkpoint, which may contain code, and was not loaded",
            "convert it first with page4d convert-weights",
        )
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(f"'{path}' is damaged (incomplete): {error}", FETCH_AGAIN) from error


def _about(path: Path, text: str, read_config: Callable[[str], _Config]) -> tuple[_Config, WeightsInfo]:
    """Parse the description of a file."""
    try:
        about = json.loads(text)
        version, config, metadata = about["version"], str(about["config"]), about["metadata"]
        described = {key: str(metadata[key]) for key in (*_REQUIRED, *metadata)}
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"'{path}' has a damaged description: {error}", FETCH_AGAIN) from error
    if version != FORMAT_VERSION:
        raise WeightsError(
            f"'{path}' has format version {version}, this page4d reads version {FORMAT_VERSION}", "update page4d"
        )
    try:
        record = read_config(config)
    except UsageError as error:
        raise WeightsError(f"'{path}': {error.message}", error.hint) from error
    info = WeightsInfo(
        path=path, licence=described["licence"], description=described["description"], metadata=described
    )
    return record, info
