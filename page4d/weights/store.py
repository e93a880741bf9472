"""Write a network into one file that says all about itself, and read it back or say exactly what is wrong."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from page4d.errors import OutputError, UsageError, WeightsError
from page4d.models.config import NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.weights.sniff import FETCH_AGAIN, first_bytes, is_pickle
from page4d.weights.stream import TensorSpec, write_tensors

FORMAT_VERSION = 1
_ENTRY = "page4d"
"""The one key of the file's metadata: the order of several is random, and equal networks must give equal bytes."""

_REQUIRED = ("licence", "description")


@dataclass(frozen=True, kw_only=True)
class WeightsInfo:
    """Where weights came from; `metadata` holds everything that was said when they were saved."""

    path: Path
    sha256: str
    licence: str
    description: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class LoadedNetwork:
    """A network in evaluation mode with what its file says about it."""

    network: ViewTimeNetwork
    config: NetworkConfig
    info: WeightsInfo


def save_network(network: ViewTimeNetwork, path: Path, metadata: Mapping[str, str]) -> None:
    """Write weights and configuration; the file appears whole or not at all and replaces an older one.

    `metadata` must hold "licence" and "description"; provenance is welcome under further keys.

    Raises:
        UsageError: if a required entry is missing or empty.
        OutputError: if the file cannot be written.
    """
    tensors = network.state_dict()
    specs = {name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in tensors.items()}
    save_tensors(path, network.config, metadata, specs, tensors.__getitem__)


def save_tensors(
    path: Path,
    config: NetworkConfig,
    metadata: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    read: Callable[[str], Tensor],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write the file of a network whose tensors are read one after the other, as `save_network` does otherwise.

    Raises:
        UsageError: if a required entry of the metadata is missing or empty.
        OutputError: if the file cannot be written.
    """
    missing = [key for key in _REQUIRED if not metadata.get(key)]
    if missing:
        raise UsageError(f"weights metadata lacks {', '.join(missing)}", "say what the weights are and their licence")
    about = {"version": FORMAT_VERSION, "config": config.to_json(), "metadata": dict(metadata)}
    entries = {_ENTRY: json.dumps(about, sort_keys=True)}
    try:
        _write_atomically(path, lambda file: write_tensors(file, specs, read, entries, on_written))
    except OSError as error:
        raise OutputError(f"cannot write '{path}': {error}", "check the folder and the space on its disk") from error


def describe_weights(path: Path) -> tuple[NetworkConfig, WeightsInfo]:
    """Read what a file says about itself, without its tensors.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind.
    """
    _refuse_foreign(path)
    try:
        with safe_open(path, framework="pt") as file:
            config, metadata = _about(path, file.metadata() or {})
    except SafetensorError as error:
        raise WeightsError(f"'{path}' is damaged (incomplete): {error}", FETCH_AGAIN) from error
    return config, WeightsInfo(
        path=path,
        sha256=_sha256(path),
        licence=metadata["licence"],
        description=metadata["description"],
        metadata=metadata,
    )


def load_network(path: Path, device: torch.device | str = "cpu") -> LoadedNetwork:
    """Read a file that `save_network` wrote; half-precision weights become float32.

    Raises:
        WeightsError: if the file is missing, damaged, of another kind or of another network.
    """
    config, info = describe_weights(path)
    tensors = {name: _full_precision(value) for name, value in load_file(path, device=str(device)).items()}
    with torch.device("meta"):
        network = build_network(config)
    _check_tensors(path, {name: tuple(value.shape) for name, value in network.state_dict().items()}, tensors)
    network.load_state_dict(tensors, assign=True)
    return LoadedNetwork(network=network.eval(), config=config, info=info)


def _refuse_foreign(path: Path) -> None:
    """Refuse what the first bytes show not to be a safetensors file."""
    if is_pickle(path, first_bytes(path)):
        raise WeightsError(
            f"'{path}' is a PyTorch checkpoint, which may contain code, and was not loaded",
            "convert it first with page4d convert-weights",
        )


def _about(path: Path, entries: Mapping[str, str]) -> tuple[NetworkConfig, dict[str, str]]:
    """Read what a file says about itself."""
    if _ENTRY not in entries:
        raise WeightsError(
            f"'{path}' holds tensors but no page4d network", "convert it first with page4d convert-weights"
        )
    try:
        about = json.loads(entries[_ENTRY])
        version, config, metadata = about["version"], str(about["config"]), about["metadata"]
        described = {key: str(metadata[key]) for key in (*_REQUIRED, *metadata)}
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"'{path}' has a damaged description: {error}", FETCH_AGAIN) from error
    if version != FORMAT_VERSION:
        raise WeightsError(
            f"'{path}' has format version {version}, this page4d reads version {FORMAT_VERSION}", "update page4d"
        )
    try:
        return NetworkConfig.from_json(config), described
    except UsageError as error:
        raise WeightsError(f"'{path}': {error.message}", error.hint) from error


def _check_tensors(path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    """Compare names and shapes, naming the first that differs."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    hint = "the file does not fit its own configuration; " + FETCH_AGAIN
    if missing:
        raise WeightsError(f"'{path}': {len(missing)} tensors missing, first: {missing[0]}", hint)
    if unexpected:
        raise WeightsError(f"'{path}': {len(unexpected)} tensors unexpected, first: {unexpected[0]}", hint)
    misshaped = [name for name, shape in expected.items() if tuple(found[name].shape) != shape]
    if misshaped:
        name = misshaped[0]
        raise WeightsError(
            f"'{path}': {len(misshaped)} tensors misshaped, first: {name} is {list(found[name].shape)} "
            f"where the network has {list(expected[name])}",
            hint,
        )


def _full_precision(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
