"""JSON records that end with the SHA-256 of the text before it, so that a changed or torn file is noticed."""

import hashlib
import re
from pathlib import Path

from pydantic import ValidationError

from page4d.errors import InputError
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.documents import DocumentError, first_violation, read_bytes
from page4d.io.json_model import MAX_RECORD_BYTES, FileModel, Model, format_json

_SEAL = b',\n "sha256": "'
_END = b'"\n}\n'
_HINT = "restore the file, or run page4d again"


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
        data = read_bytes(path, MAX_RECORD_BYTES)
    except DocumentError as error:
        raise InputError(f"'{path}' cannot be read: {error}", _HINT) from error
    body, seal, rest = data.rpartition(_SEAL)
    if not seal or re.fullmatch(rb"[0-9a-f]{64}" + _END, rest) is None:
        raise InputError(f"'{path}' is not as page4d writes it: it has no checksum at its end", _HINT)
    if hashlib.sha256(body).hexdigest().encode() + _END != rest:
        raise InputError(f"'{path}' is not as page4d writes it: it was changed, or is damaged", _HINT)
    try:
        return model.model_validate_json(body + b"\n}")
    except ValidationError as error:
        found = first_violation(error, "the file")
        raise InputError(f"'{path}' is not as page4d writes it: {found}", _HINT) from error
