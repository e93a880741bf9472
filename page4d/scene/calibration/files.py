"""Reading foreign calibration files without harm: bounded sizes, strict JSON, errors in the two-line form."""

import json
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from page4d.errors import InputError
from page4d.scene.calibration.record import CORRECT_THE_FILE

KNOWN_FORMATS = "known: COLMAP, TOML, .qca.txt, transforms.json, intri/extri.yml, cameras.json"
LARGEST_FILE_BYTES = 256 * 1024**2

Schema = TypeVar("Schema", bound=BaseModel)


def unreadable(path: Path, reason: str) -> InputError:
    """Return the error for a file that no reader understands."""
    text = f"cannot read calibration '{path.name or path}': {reason}"
    return InputError(text, KNOWN_FORMATS)


def check_exists(path: Path) -> None:
    """Raise InputError unless there is something at `path`."""
    try:
        there = "\0" not in str(path) and path.exists()
    except OSError:
        there = False
    if not there:
        raise InputError(f"calibration '{path}' does not exist", "check the path, or leave --calibration out")


def read_bytes(path: Path, largest: int = LARGEST_FILE_BYTES) -> bytes:
    """Return the content of a regular file of bounded size.

    Raises:
        InputError: if it is missing, not a regular file, larger than `largest` or not readable.
    """
    check_exists(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise unreadable(path, "it is not a regular file")
        if status.st_size > largest:
            size, limit = status.st_size / 1024**2, largest // 1024**2
            raise unreadable(path, f"it has {size:.0f} MB, the limit is {limit} MB")
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, (error.strerror or "it cannot be opened").lower()) from None


def read_text(path: Path, largest: int = LARGEST_FILE_BYTES) -> str:
    """Return the content of a UTF-8 file; a byte order mark is dropped."""
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(path, f"byte {error.start} is not UTF-8 text") from None


class _JsonRuleError(ValueError):
    """Something that the json module would let pass."""


def _refuse_constant(name: str) -> float:
    raise _JsonRuleError(f"{name} is not a number of JSON")


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _JsonRuleError(f"key '{twice}' appears twice")
    return result


def read_json(path: Path) -> dict[str, object]:
    """Return a JSON object; NaN, Infinity and repeated keys are errors."""
    text = read_text(path)
    try:
        content = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        raise unreadable(path, f"line {error.lineno}: {error.msg}") from None
    except _JsonRuleError as error:
        raise unreadable(path, f"{_line_of_rule(text, str(error))}{error}") from None
    except (ValueError, RecursionError):
        raise unreadable(path, "a number or a nesting in it is too long") from None
    if not isinstance(content, dict):
        raise unreadable(path, "it is not a JSON object")
    return content


def _line_of_rule(text: str, message: str) -> str:
    """Return `line N: ` of the first place that can have broken a rule, for a message of `_JsonRuleError`."""
    if not message.endswith("not a number of JSON"):
        return ""
    found = re.search(r"(?<=[\s:,\[])(NaN|-?Infinity)(?=[\s,\]}])", text)
    return "" if found is None else f"line {text.count(chr(10), 0, found.start()) + 1}: "


def validated(schema: type[Schema], content: object, label: str, camera: str | None = None) -> Schema:
    """Build a pydantic record from a file's content.

    Raises:
        InputError: with the file, the camera and the key of the first thing that does not fit.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        named = "" if camera is None else f"camera {camera}: "
        raise InputError(f"{label}: {named}{where}: {first['msg']}", CORRECT_THE_FILE) from None


@contextmanager
def blame(label: str, camera: str) -> Iterator[None]:
    """Put file and camera in front of the InputErrors that are raised inside."""
    try:
        yield
    except InputError as error:
        if error.message.startswith(f"{label}: "):
            raise
        named = (
            error.message if error.message.startswith(f"camera {camera}: ") else f"camera {camera}: {error.message}"
        )
        raise InputError(f"{label}: {named}", error.hint) from None
