"""JSON files and records: exact floats, one matrix per line, no NaN, validated when read.

A record may end with the SHA-256 of the text before it, so that a changed or torn file is noticed. Configuration
records are validated by pydantic on construction and from JSON, with errors in two lines.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, core_schema

from page4d.errors import InputError, UsageError, did_you_mean, shortened, unknown_name
from page4d.io import documents
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.documents import DocumentError, DocumentMissingError

MAX_RECORD_BYTES = 1024**3
"""Largest record that is read."""

RESTORE_RECORD = "restore the file, or run page4d again"
"""Hint for a file of a run that was changed."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A digest in hexadecimal digits."""

Model = TypeVar("Model", bound="FileModel")


class FileModel(BaseModel):
    """Base class of records in JSON files: unknown keys and non-finite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __str__(self) -> str:
        """Print as in a notebook: the large records in one line."""
        return repr(self)


def _doubles(kind: Any, _: object) -> CoreSchema:
    def read(values: Any) -> Any:
        import numpy as np  # as torch, loaded only for records with tensors
        import torch

        try:
            numbers = values.cpu() if isinstance(values, torch.Tensor) else values
            tensor = torch.from_numpy(np.asarray(numbers, dtype=np.float64))
        except (TypeError, ValueError, OverflowError):
            raise ValueError("the entries are not numbers, or rows differ in length") from None
        if not isinstance(tensor, kind) or not bool(tensor.isfinite().all()):
            raise ValueError(f"{list(tensor.shape)} numbers, expected finite ones [{kind.dim_str}]")
        return tensor

    write = core_schema.plain_serializer_function_ser_schema(lambda tensor: tensor.tolist())
    return core_schema.no_info_plain_validator_function(read, serialization=write)


DOUBLES = GetPydanticSchema(_doubles)
"""Annotates a field of tensors of a shape: in double precision in memory, nested lists in JSON."""


def readable(name: str) -> str:
    """Replace what UTF-8 cannot hold, such as the bytes of a file name in another encoding, by escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


_SCALARS = (str, float, int, type(None))
_encode = json.JSONEncoder(allow_nan=False).encode  # `json.dumps` makes an encoder for each value


def format_json(value: Any, indent: int = 0) -> str:
    """Format with one line per number, vector or matrix; floats are the shortest text that reads back exactly.

    An iterator becomes a list with at least one line per item, so that only the text is held in memory.

    Raises:
        ValueError: if a number is NaN or infinite.
    """
    if _fits_one_line(value):
        return _encode(value)
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{inner}{_encode(str(key))}: {format_json(item, indent + 1)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        lines = [inner + format_json(item, indent + 1) for item in value]
        opening, closing = "[", "]"
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


def _fits_one_line(value: Any) -> bool:
    """Return whether a value is no container, an empty one, a vector of scalars or a matrix of numbers."""
    if isinstance(value, dict):
        return not value
    if not isinstance(value, list):
        return not isinstance(value, Iterator)
    rows = [row if isinstance(row, list) else [row] for row in value]
    return all(isinstance(entry, _SCALARS) for row in rows for entry in row)


def read_model(path: Path, model: type[Model]) -> Model:
    """Read and check a JSON file.

    Raises:
        InputError: if the file is missing, is not JSON, or lacks a required field.
    """
    try:
        text = documents.read_text(path, MAX_RECORD_BYTES)
        documents.parse_json(text)  # refuses repeated keys
    except DocumentMissingError as error:
        raise InputError(f"'{path}' is missing", "give the output folder of a page4d run") from error
    except DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", "check that it is a file that page4d wrote") from error
    return _validated(path, model, text)


def _validated(path: Path, model: type[Model], text: str | bytes) -> Model:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise _changed(path, documents.first_violation(error, "the file")) from error


def _changed(path: Path, found: str) -> InputError:
    return InputError(f"'{path}' is not as page4d writes it: {found}", RESTORE_RECORD)


def read_cached(path: Path, model: type[Model]) -> Model | None:
    """Return a record of a cache; None if it is missing or damaged."""
    try:
        return read_model(path, model)
    except (InputError, OSError):
        return None


def write_model(path: Path, record: FileModel) -> WrittenFile:
    """Write a record atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    return write_bytes_atomic(path, encode_model(record))


def encode_model(record: FileModel) -> bytes:
    """Return the bytes of the file of a record."""
    return (format_json(record.model_dump(mode="json")) + "\n").encode()


_SEAL = b',\n "sha256": "'
_END = b'"\n}\n'


def write_sealed(path: Path, record: FileModel) -> WrittenFile:
    """Write a record atomically; its last entry is the checksum of all others.

    Raises:
        OutputError: if the file cannot be written.
    """
    body = format_json(record.model_dump(mode="json")).encode().removesuffix(b"\n}")
    return write_bytes_atomic(path, body + _SEAL + hashlib.sha256(body).hexdigest().encode() + _END)


def read_sealed(path: Path, model: type[Model]) -> Model:
    """Read and check a record that `write_sealed` wrote.

    Raises:
        InputError: if the file is missing, or any byte of it was changed.
    """
    try:
        data = documents.read_bytes(path, MAX_RECORD_BYTES)
    except DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", RESTORE_RECORD) from error
    body, seal, rest = data.rpartition(_SEAL)
    if not seal or re.fullmatch(rb"[0-9a-f]{64}" + _END, rest) is None:
        raise _changed(path, "it has no checksum at its end")
    if hashlib.sha256(body).hexdigest().encode() + _END != rest:
        raise _changed(path, "it was changed, or is damaged")
    return _validated(path, model, body + b"\n}")


Record = TypeVar("Record")

_RULES = ConfigDict(extra="forbid", allow_inf_nan=False)
_TOO_LARGE = "a number is beyond all limits"


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, field))
def config_record(name: str) -> Callable[[type[Record]], type[Record]]:
    """Make a class a frozen, keyword-only dataclass whose fields pydantic validates.

    Types and `Field` constraints are checked and coerced (a list to a tuple, a string to its enum) on construction;
    rules across fields go into `__post_init__`. Unknown fields and numbers that are not finite are refused. A
    violation raises `UsageError`; `name` is what its message calls the record.
    """

    def decorate(cls: type[Record]) -> type[Record]:
        record: Any = dataclass(frozen=True, kw_only=True, config=_RULES)(cls)
        validate = record.__init__

        @wraps(validate)
        def initialize(self: Record, **values: Any) -> None:
            try:
                validate(self, **values)
            except ValidationError as error:
                raise _usage_error(error, name, values, record.__dataclass_fields__) from error
            except ArithmeticError as error:  # in a rule across fields
                raise UsageError(f"{name}: {_TOO_LARGE}", "give smaller numbers") from error
            for place, value in values.items():
                if isinstance(value, bool) and not isinstance(getattr(self, place), bool):  # pydantic makes it 0 or 1
                    raise UsageError(f"{name}: {place} is {value}", "it must be a number", place)

        record.__init__ = initialize
        checked: type[Record] = record
        return checked

    return decorate


def config_to_json(record: Any, indent: int | None = None) -> str:
    """Write a record as JSON with sorted keys, on one line unless `indent` is given."""
    return json.dumps(asdict(record), sort_keys=True, indent=indent)


def config_from_json(
    adapter: TypeAdapter[Record], text: str, name: str, hint: str, *, strict: bool = False
) -> Record:
    """Read what `config_to_json` wrote; fields that are left out take their defaults.

    `strict` forbids conversions between types, such as a string where a number belongs. Repeated keys, and numbers
    that are not finite, are errors.

    Raises:
        UsageError: if the text is not such a record, names an unknown field or holds a wrong type.
    """
    try:
        content = documents.parse_json(text)
        return adapter.validate_json(text, strict=strict)
    except DocumentError as error:
        raise UsageError(f"{name} configuration: text: {error}", hint) from error
    except ArithmeticError as error:
        raise UsageError(f"{name} configuration: {_TOO_LARGE}", hint) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = _place(first, content) or "text"
        raise UsageError(f"{name} configuration: {place}: {shortened(first['msg'], 240)}", hint) from error


def _usage_error(error: ValidationError, name: str, values: dict[str, Any], known: Collection[str]) -> UsageError:
    """Translate the first violation: the field with its value, and the rules of its type; `known` are all fields."""
    errors = error.errors(include_url=False)
    first, place = errors[0], _place(errors[0], values)
    if first["type"] == "unexpected_keyword_argument":
        return unknown_name("field", place, known, f"{name}: ")
    found = "is missing" if first["type"] == "missing" else f"is {_shown(first['input'])}"
    rules = [_rule(other["msg"]) for other in errors if _place(other, values) == place]
    hint = " or ".join(dict.fromkeys(rules)).replace(" or it must be", " or")
    if first["type"] in ("enum", "literal_error"):
        hint = did_you_mean(str(first["input"]), re.findall(r"'([^']+)'", first["ctx"]["expected"]), hint)
    return UsageError(f"{name}: {place} {found}", hint, place.split(".")[0])


def _shown(value: object) -> str:
    try:
        return shortened(repr(value))
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "too large"


def _rule(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "it must be")
    return message[:1].lower() + message[1:]


def _place(error: Any, values: Any) -> str:
    """Return the field names and indices that lead to a violation, without pydantic's names of union branches."""
    place = []
    for number, part in enumerate(error["loc"], start=1):
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):  # not part of the values, unless it is a missing field
            if not (error["type"] == "missing" and number == len(error["loc"])):
                continue
        place.append(shortened(str(part)))
    return ".".join(place)
