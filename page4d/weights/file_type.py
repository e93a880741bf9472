"""File type of weights, from their first bytes."""

import re
import stat
from pathlib import Path

from page4d.errors import WeightsError

FETCH_AGAIN = "fetch or copy the file again"
WHAT_WEIGHTS_ARE = (
    "weights are a .safetensors file that page4d convert-weights or page4d train wrote; convert-weights reads "
    "checkpoints of PyTorch too"
)
WHERE_WEIGHTS_ARE = (
    "check the path; 'page4d weights list' shows the public checkpoints that are fetched by name, such as "
    "⟨weights=da3-base⟩"
)
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_OF_WEIGHTS = (".safetensors", *PICKLE_SUFFIXES)
ZIP_START = b"PK\x03\x04"
PICKLE_STARTS = (ZIP_START, b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
SETTINGS_FILE = "config.json"
"""Name of the file next to published weights in which some authors state the settings of the network."""

RUN_WEIGHTS = "weights.safetensors"
"""Name of the weights in the folder of a training run."""

_NUM_BYTES = 512
_SAFETENSORS_HEADER = 8
"""Bytes of the length of a safetensors header, which precede its opening brace."""

_PAGE_STARTS = (b"<!doctype", b"<html")
_POINTER_START = b"version https://git-lfs"


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file that may hold weights.

    Raises:
        WeightsError: if it is missing, not a file, unreadable, empty, or no weights by content and suffix.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise WeightsError(f"weights '{path}' do not exist", _hint_on_missing(path)) from error
    except OSError as error:
        raise WeightsError(f"cannot read '{path!s:.200}': {error.strerror}", WHERE_WEIGHTS_ARE) from error
    if stat.S_ISDIR(mode):
        inside = path / RUN_WEIGHTS
        hint = f"give '{inside}'" if inside.is_file() else "give the .safetensors file itself"
        raise WeightsError(f"weights '{path}' are a folder, not a file", hint)
    if not stat.S_ISREG(mode):
        raise WeightsError(f"weights '{path}' are not a regular file", "give the .safetensors file itself")
    try:
        with path.open("rb") as file:
            start = file.read(_NUM_BYTES)
    except OSError as error:
        raise WeightsError(f"cannot read '{path}': {error.strerror}", "check the permissions of the file") from error
    if not start:
        raise WeightsError(f"'{path}' is empty", FETCH_AGAIN)
    if start.startswith(_POINTER_START):
        raise WeightsError(f"'{path}' is a git-lfs pointer, not the weights", "run git lfs pull in its repository")
    if start.lstrip().lower().startswith(_PAGE_STARTS):
        raise WeightsError(f"'{path}' is a web page, not weights", "download the file itself, not its web page")
    if not (is_safetensors(start) or start.startswith(PICKLE_STARTS) or path.suffix in _OF_WEIGHTS):
        raise WeightsError(f"'{path}' is not a weights file", WHAT_WEIGHTS_ARE)
    return start


def _hint_on_missing(path: Path) -> str:
    """Return a hint for a path that does not exist, and may be the name of a repository of the hub."""
    is_repository = re.fullmatch(r"\w[\w-]*/\w[\w.-]*", str(path), re.ASCII) and path.suffix not in _OF_WEIGHTS
    return f"for a repository of the hub give hf:{path}; else check the path" if is_repository else WHERE_WEIGHTS_ARE


def is_pickle(path: Path, start: bytes) -> bool:
    """Return whether a file is a PyTorch checkpoint by content or suffix."""
    return start.startswith(PICKLE_STARTS) or (path.suffix in PICKLE_SUFFIXES and not is_safetensors(start))


def is_safetensors(start: bytes) -> bool:
    """Return whether the first bytes are those of a safetensors file."""
    return start[_SAFETENSORS_HEADER : _SAFETENSORS_HEADER + 1] == b"{"
