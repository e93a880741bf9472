"""Input files: checks before they are opened, natural order of names, and bounded reading of calibration files."""

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from page4d.errors import InputError, shortened
from page4d.formats.camera_model import CORRECTION_HINT
from page4d.formats.table import SUPPORTED_FORMATS
from page4d.io import documents
from page4d.io.documents import MAX_JSON_BYTES, DocumentError, first_violation
from page4d.io.limits import is_exhausted

DEFAULT_MAX_MEGAPIXELS = 64.0

RESTORE = "restore it, and continue with ⟨existing=resume⟩"
"""Hint for an input file that changed during a run."""


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `cam2` before `cam10`; case is ignored, ties are broken by the exact text."""
    parts = re.split(r"(\d{1,4000})", name)
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts]
    return [*key, (2, 0, name)]


def composed(name: str) -> str:
    """Return a name with composed characters (NFC): macOS and other systems store "é" differently."""
    return unicodedata.normalize("NFC", name)


def check_regular_file(path: Path, name: str | None = None) -> None:
    """Check that a path is a readable, non-empty regular file; a decoder would block on a pipe or device.

    `name` is its name in messages, by default without a folder.

    Raises:
        InputError: for a dangling link, a folder, pipe or device, an unreadable or an empty file.
    """
    name = name or path.name
    if path.is_symlink() and not path.exists():
        raise InputError(f"{name} is a link to a file that does not exist", "restore the file or remove the link")
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{name} is not a regular file", "give a file on disk, not a pipe, device or folder")
    if not os.access(path, os.R_OK):
        raise InputError(f"{name}: permission denied", f"make it readable: chmod u+r '{path}'")
    if path.stat().st_size == 0:
        raise InputError(f"{name} is empty", "copy or record it again, or remove it")


@contextmanager
def reading_again(name: str) -> Iterator[None]:
    """Report an input file that was removed since the run began; `name` is its name in messages.

    Raises:
        InputError: if it was removed, or can no longer be read.
        OSError: if the machine has no file handles or memory left.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{name} was removed during the run", RESTORE) from error
    except OSError as error:
        if is_exhausted(error):
            raise
        raise InputError(f"{name} can no longer be read: {error.strerror or error}", RESTORE) from error


def check_pixels(name: str, width: int, height: int, max_megapixels: float) -> None:
    """Check the frame size in a file's header before anything is decoded.

    Raises:
        InputError: if the frame has more than `max_megapixels` million pixels.
    """
    megapixels = width * height / 1e6
    if megapixels > max_megapixels:
        raise InputError(
            f"{name} is {width}x{height} ({megapixels:.0f} Mpx); the limit is {max_megapixels:g} Mpx "
            "(⟨max_megapixels⟩)",
            "raise ⟨max_megapixels⟩ if the file is genuine",
        )


MAX_CAMERAS = 5_000
"""Largest number of cameras; each takes one or two milliseconds."""

MAX_IMAGES = 500_000
"""Largest number of images of moving cameras."""

Schema = TypeVar("Schema", bound=BaseModel)


def unreadable(path: Path, reason: str) -> InputError:
    """Return the error for a file that cannot be read as a calibration."""
    return InputError(f"cannot read calibration '{path.name or path}': {reason}", SUPPORTED_FORMATS)


def check_exists(path: Path) -> None:
    """Raise InputError unless `path` exists."""
    try:
        exists = "\0" not in str(path) and path.exists()
    except OSError:
        exists = False
    if not exists:
        raise InputError(
            f"calibration '{shortened(str(path), 200)}' does not exist", "check the path, or omit ⟨calibration⟩"
        )


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Report a DocumentError of the body as an InputError of the calibration `path`."""
    try:
        yield
    except DocumentError as error:
        raise unreadable(path, str(error)) from None


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file of bounded size.

    Raises:
        InputError: if the file is missing, not a regular file, larger than `max_bytes` or not readable.
    """
    check_exists(path)
    with parsing(path):
        return documents.read_bytes(path, max_bytes)


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Return the content of a UTF-8 file without its byte order mark."""
    check_exists(path)
    with parsing(path):
        return documents.read_text(path, max_bytes)


def read_json(path: Path) -> dict[str, object]:
    """Return a JSON object; NaN, Infinity and repeated keys are errors."""
    with parsing(path):
        content = documents.parse_json(read_text(path))
    if not isinstance(content, dict):
        raise unreadable(path, "it is not a JSON object")
    return content


def check_count(path: Path, number: int, noun: str = "cameras", limit: int = MAX_CAMERAS) -> None:
    """Raise InputError for more cameras (or images) than a calibration may have, before they are built."""
    if number > limit:
        raise unreadable(path, f"it has {number:,} {noun}, the limit is {limit:,}")


def validated(schema: type[Schema], content: object, label: str, camera: str | None = None) -> Schema:
    """Validate a file's content against a pydantic schema.

    Raises:
        InputError: with the file, the camera and the key of the first violation.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        prefix = "" if camera is None else f"camera {shortened(camera)}: "
        raise InputError(f"{label}: {prefix}{first_violation(error, 'content')}", CORRECTION_HINT) from None


@contextmanager
def error_context(label: str, camera: str) -> Iterator[None]:
    """Prefix file and camera to the messages of InputErrors raised in the body."""
    try:
        yield
    except InputError as error:
        if error.marked_message.startswith(f"{label}: "):
            raise
        name = f"camera {shortened(camera)}: "
        prefix = "" if error.marked_message.startswith(name) else name
        raise InputError(f"{label}: {prefix}{error.marked_message}", error.marked_hint) from None
