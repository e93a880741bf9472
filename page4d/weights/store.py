"""Write a network into one file that says all about itself, and read it back or say exactly what is wrong."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from page4d.errors import OutputError, UsageError, WeightsError
from page4d.models.config import NetworkConfig
from page4d.models.network import ViewTimeNetwork, build_network

FORMAT_VERSION = 1
_ENTRY = "page4d"
"""The one key of the file's metadata: the order of several is random, and equal networks must give equal bytes."""

_REQUIRED = ("licence", "description")
_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")
_PAGE_STARTS = (b"<!doctype", b"<html")
_POINTER_START = b"version https://git-lfs"
_FETCH_AGAIN = "fetch or copy the file again"


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
    missing = [key for key in _REQUIRED if not metadata.get(key)]
    if missing:
        raise UsageError(f"weights metadata lacks {', '.join(missing)}", "say what the weights are and their licence")
    about = {"version": FORMAT_VERSION, "config": network.config.to_json(), "metadata": dict(metadata)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    try:
        _write_atomically(path, tensors, {_ENTRY: json.dumps(about, sort_keys=True)})
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write '{path}': {error}", "check the folder and the space on its disk") from error


def describe_weights(path: Path) -> tuple[NetworkConfig, WeightsInfo]:
    """Read what a file says about itself, without its tensors.

    Raises:
        WeightsError: if the file is missing, damaged or of another kind.
    """
    _sniff(path)
    try:
        with safe_open(path, framework="pt") as file:
            config, metadata = _about(path, file.metadata() or {})
    except SafetensorError as error:
        raise WeightsError(f"'{path}' is damaged (incomplete): {error}", _FETCH_AGAIN) from error
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


def _sniff(path: Path) -> None:
    """Refuse what the first bytes show not to be a safetensors file."""
    if not path.exists():
        raise WeightsError(f"weights '{path}' do not exist", "check the path, or fetch the weights first")
    if not path.is_file():
        raise WeightsError(f"weights '{path}' are not a file", "give the .safetensors file itself")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error.strerror}", "check the permissions of the file") from error
    if not start:
        raise WeightsError(f"'{path}' is empty", _FETCH_AGAIN)
    if start.startswith(_POINTER_START):
        raise WeightsError(f"'{path}' is a git-lfs pointer, not the weights", "run git lfs pull in its repository")
    if start.lstrip().lower().startswith(_PAGE_STARTS):
        raise WeightsError(
            f"'{path}' is a web page, not weights", "download the file itself, not the page that shows it"
        )
    if start.startswith(_PICKLE_STARTS) or path.suffix in _PICKLE_SUFFIXES:
        raise WeightsError(
            f"'{path}' is a PyTorch checkpoint, which may contain code, and was not loaded",
            "convert it first with page4d weights convert",
        )


def _about(path: Path, entries: Mapping[str, str]) -> tuple[NetworkConfig, dict[str, str]]:
    """Read what a file says about itself."""
    if _ENTRY not in entries:
        raise WeightsError(
            f"'{path}' holds tensors but no page4d network", "convert it first with page4d weights convert"
        )
    try:
        about = json.loads(entries[_ENTRY])
        version, config, metadata = about["version"], str(about["config"]), about["metadata"]
        described = {key: str(metadata[key]) for key in (*_REQUIRED, *metadata)}
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"'{path}' has a damaged description: {error}", _FETCH_AGAIN) from error
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
    hint = "the file does not fit its own configuration; " + _FETCH_AGAIN
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


def _write_atomically(path: Path, tensors: dict[str, Tensor], entries: dict[str, str]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        save_file(tensors, part, metadata=entries)
        with part.open("rb+") as file:
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
