"""Bounded reading of calibration files, and errors that name file and camera."""

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
