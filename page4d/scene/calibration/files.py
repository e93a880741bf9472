"""Reading of calibration files: bounded sizes, strict JSON, and errors with file and camera."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from page4d.errors import InputError
from page4d.scene.calibration.record import CORRECTION_HINT
from page4d.scene.files import ParseError, first_violation, parse_json

SUPPORTED_FORMATS = (
    "supported: COLMAP, OpenCV YAML (intri.yml and extri.yml), nerfstudio (transforms.json), cameras.json, "
    "Qualisys (.qca.txt), Pose2Sim/Anipose TOML"
)
MAX_FILE_BYTES = 256 * 1024**2

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
        raise InputError(f"calibration '{path}' does not exist", "check the path, or omit --calibration")


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a regular file of bounded size.

    Raises:
        InputError: if the file is missing, not a regular file, larger than `max_bytes` or not readable.
    """
    check_exists(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise unreadable(path, "it is not a regular file")
        if status.st_size > max_bytes:
            size, limit = status.st_size / 1024**2, max_bytes // 1024**2
            raise unreadable(path, f"it has {size:.0f} MB, the limit is {limit} MB")
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, (error.strerror or "it cannot be opened").lower()) from None


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the content of a UTF-8 file without its byte order mark."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(path, f"byte {error.start} is not UTF-8 text") from None


def read_json(path: Path) -> dict[str, object]:
    """Return a JSON object; NaN, Infinity and repeated keys are errors."""
    try:
        content = parse_json(read_text(path))
    except ParseError as error:
        raise unreadable(path, str(error)) from None
    if not isinstance(content, dict):
        raise unreadable(path, "it is not a JSON object")
    return content


def validated(schema: type[Schema], content: object, label: str, camera: str | None = None) -> Schema:
    """Validate a file's content against a pydantic schema.

    Raises:
        InputError: with the file, the camera and the key of the first violation.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        prefix = "" if camera is None else f"camera {camera}: "
        raise InputError(f"{label}: {prefix}{first_violation(error, 'content')}", CORRECTION_HINT) from None


@contextmanager
def error_context(label: str, camera: str) -> Iterator[None]:
    """Prefix file and camera to the messages of InputErrors raised in the body."""
    try:
        yield
    except InputError as error:
        if error.message.startswith(f"{label}: "):
            raise
        prefix = "" if error.message.startswith(f"camera {camera}: ") else f"camera {camera}: "
        raise InputError(f"{label}: {prefix}{error.message}", error.hint) from None
