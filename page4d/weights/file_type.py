"""File type of weights, from their first bytes."""

from pathlib import Path

from page4d.errors import WeightsError

FETCH_AGAIN = "fetch or copy the file again"
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
ZIP_START = b"PK\x03\x04"
PICKLE_STARTS = (ZIP_START, b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PAGE_STARTS = (b"<!doctype", b"<html")
_POINTER_START = b"version https://git-lfs"


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises:
        WeightsError: if it is missing, not a file, unreadable, empty, a git-lfs pointer or a web page.
    """
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
        raise WeightsError(f"'{path}' is empty", FETCH_AGAIN)
    if start.startswith(_POINTER_START):
        raise WeightsError(f"'{path}' is a git-lfs pointer, not the weights", "run git lfs pull in its repository")
    if start.lstrip().lower().startswith(_PAGE_STARTS):
        raise WeightsError(f"'{path}' is a web page, not weights", "download the file itself, not its web page")
    return start


def is_pickle(path: Path, start: bytes) -> bool:
    """Return whether a file is a PyTorch checkpoint by content or suffix."""
    return start.startswith(PICKLE_STARTS) or path.suffix in PICKLE_SUFFIXES
