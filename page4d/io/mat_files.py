"""MAT files of MATLAB (versions 5 to 7.2) as documents: structs, cells, texts and small arrays of numbers.

Source: MathWorks, "MAT-File Format" (level 5).
"""

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from page4d.io.documents import DocumentError

OBJECT = "<object>"
"""The key of an object, which only MATLAB can read."""

_MAX_VARIABLE_BYTES, _MAX_NUMBERS, _MAX_DEPTH = 4 * 1024**2, 4096, 16
"""Larger variables and arrays, which may be pictures or labels, are left out."""

_MATRIX, _COMPRESSED = 14, 15
_CODES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
    17: "u2",
    18: "u4",
}
"""Types of elements as those of NumPy; the last two are texts in UTF-16 and UTF-32."""

_UTF8, _UTF32 = 16, 18
_CELL, _STRUCT, _CLASS, _TEXT, _OPAQUE = 1, 2, 3, 4, 17
_NUMBERS = range(6, 16)


def parse_mat(content: bytes) -> dict[str, Any]:
    """Parse variables: a struct becomes a mapping, a cell array a list, a matrix a list of rows, a vector a list.

    Raises:
        DocumentError: if the file has another version, or is damaged.
    """
    if content[512:516] == b"\x89HDF":
        raise DocumentError("it is a MAT file of version 7.3: save it in MATLAB with '-v7'")
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise DocumentError("it is not a MAT file of version 5 to 7.2")
    variables = {}
    try:
        for kind, data in _elements(memoryview(content)[128:], order):
            if kind == _COMPRESSED:
                data = memoryview(zlib.decompressobj().decompress(data, _MAX_VARIABLE_BYTES))
                data = data if len(data) == _MAX_VARIABLE_BYTES else next(_elements(data, order))[1]
            if len(data) < _MAX_VARIABLE_BYTES:
                name, variables[name] = _matrix(data, order)
    except (struct.error, zlib.error, ValueError, StopIteration, KeyError) as error:
        raise DocumentError("it is incomplete or damaged") from error
    return variables


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield types and contents; up to 4 bytes are in the tag itself."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        start, following = place + 8, place + 8 + size + (0 if kind == _COMPRESSED else -size % 8)
        if kind >> 16:
            kind, size, start, following = kind & 0xFFFF, min(kind >> 16, 4), place + 4, place + 8
        if following > len(data):
            raise ValueError
        place = following
        yield kind, data[start : start + size]


def _matrix(data: memoryview, order: str, depth: int = 0) -> tuple[str, Any]:
    """Return the name and value of an array of any class; None for what is left out."""
    if not data or depth > _MAX_DEPTH:
        return "", [] if not data else None
    parts = _elements(data, order)
    (flags,) = struct.unpack_from(f"{order}I", next(parts)[1])
    kind, is_complex = flags & 0xFF, bool(flags & 0x800)
    if kind == _OPAQUE:
        return bytes(next(parts)[1]).decode("ascii"), {OBJECT: None}
    sides = np.frombuffer(next(parts)[1], f"{order}i4").tolist()
    name = bytes(next(parts)[1]).decode("ascii")
    if kind == _CLASS:
        return name, {OBJECT: None}
    if kind in (_CELL, _STRUCT):
        return name, _nested(parts, order, depth, sides, is_struct=kind == _STRUCT)
    if not (kind == _TEXT or kind in _NUMBERS) or is_complex or len(sides) != 2 or math.prod(sides) > _MAX_NUMBERS:
        return name, None
    code, raw = next(parts)
    if kind == _TEXT and code == _UTF8:
        raw, code = memoryview(bytes(raw).decode().encode(f"utf-32-{'l' if order == '<' else 'b'}e")), _UTF32
    array = np.frombuffer(raw, f"{order}{_CODES[code]}").reshape(sides, order="F")
    if kind == _TEXT:
        rows = ["".join(map(chr, row)) for row in array.tolist()]
        return name, rows[0] if len(rows) == 1 else rows
    numbers = array.astype(np.float64)
    return name, float(numbers[0, 0]) if numbers.size == 1 else (numbers.ravel() if 1 in sides else numbers).tolist()


def _nested(
    parts: Iterator[tuple[int, memoryview]], order: str, depth: int, sides: list[int], *, is_struct: bool
) -> list[Any] | dict[str, Any]:
    """Return the items of a cell array, or the structs of an array, one of which is returned itself."""
    keys: list[str] = []
    if is_struct:
        (width,) = struct.unpack(f"{order}i", next(parts)[1])
        names = bytes(next(parts)[1]).decode("ascii")
        keys = [names[start : start + width].rstrip("\0") for start in range(0, len(names), width)]
    items = [_matrix(item, order, depth + 1)[1] for _, item in parts]
    if len(items) != math.prod(sides) * (len(keys) if is_struct else 1):
        raise ValueError
    if not is_struct:
        return items
    structs = [dict(zip(keys, items[start:], strict=False)) for start in range(0, len(items), len(keys) or 1)]
    return structs[0] if len(structs) == 1 else structs
