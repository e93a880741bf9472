"""JSON files: exact floats, one matrix per line, no NaN."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from page4d.errors import InputError
from page4d.io.documents import DocumentError, DocumentMissingError, first_violation, parse_json, read_text

MAX_RECORD_BYTES = 1024**3
"""Largest record that is read."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A digest in hexadecimal digits."""

Model = TypeVar("Model", bound="FileModel")


class FileModel(BaseModel):
    """Base class of records in JSON files: unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def readable(name: str) -> str:
    """Replace what UTF-8 cannot hold, such as the bytes of a file name in another encoding, by escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def format_json(value: Any, indent: int = 0) -> str:
    """Format with one line per number, vector or matrix; floats are the shortest text that reads back exactly.

    An iterator becomes a list with at least one line per item, so that only the text is held in memory.

    Raises:
        ValueError: if a number is NaN or infinite.
    """
    if not isinstance(value, dict | list | Iterator) or (not isinstance(value, Iterator) and _fits_one_line(value)):
        return json.dumps(value, allow_nan=False)
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(str(key))}: {format_json(item, indent + 1)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        lines = [inner + format_json(item, indent + 1) for item in value]
        opening, closing = "[", "]"
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


def _fits_one_line(value: dict[str, Any] | list[Any]) -> bool:
    """Return whether a container is empty, a vector of scalars or a matrix of numbers."""
    if isinstance(value, dict) or not value:
        return not value
    rows = [row if isinstance(row, list) else [row] for row in value]
    return all(isinstance(entry, float | int | str | bool | None) for row in rows for entry in row)


def read_model(path: Path, model: type[Model]) -> Model:
    """Read and check a JSON file.

    Raises:
        InputError: if the file is missing, is not JSON, or lacks a required field.
    """
    try:
        text = read_text(path, MAX_RECORD_BYTES)
        parse_json(text)  # refuses repeated keys
        return model.model_validate_json(text)
    except DocumentMissingError as error:
        raise InputError(f"'{path}' is missing", "give the output folder of a page4d run") from error
    except DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", "check that it is a file that page4d wrote") from error
    except ValidationError as error:
        raise InputError(
            f"'{path}' is not as page4d writes it: {first_violation(error, 'the file')}",
            "restore the file, or run page4d again",
        ) from error
