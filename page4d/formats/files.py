"""Bounded reading of calibration files and of NumPy's files, and errors that name file and camera."""

import csv
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from tokenize import TokenError
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

import numpy as np
import scipy.io
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from scipy.io.matlab import MatlabObject, MatlabOpaque

from page4d.errors import InputError, listed, shortened
from page4d.formats.camera_model import CORRECTION_HINT
from page4d.formats.table import SUPPORTED_FORMATS
from page4d.io import documents
from page4d.io.documents import MAX_JSON_BYTES, MAX_TEXT_BYTES, DocumentError, DocumentMissingError, first_violation
from page4d.io.input_files import missing_path_hint

MAX_CAMERAS = 5_000
"""Largest number of cameras; each takes one or two milliseconds."""

MAX_IMAGES = 500_000
"""Largest number of images of moving cameras."""

_MAX_KEYS, _HEAD, _MAX_ARRAY_BYTES = 1000, 4096, 65536

_SUFFIXES = (".yml", ".yaml", ".json", ".xml")
"""Suffixes of the files of a pair."""

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
        raise InputError(f"'{shortened(str(path), 200)}' does not exist", missing_path_hint(path, "check the path"))


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Raise InputError for the calibration `path` if it does not exist, or the body raises DocumentError."""
    check_exists(path)
    try:
        yield
    except DocumentError as error:
        raise unreadable(path, str(error)) from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        InputError: if the file is missing, not a regular file, larger than `MAX_JSON_BYTES` or not readable.
    """
    with parsing(path):
        return documents.read_bytes(path, MAX_JSON_BYTES)


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file without its byte order mark."""
    with parsing(path):
        return documents.read_text(path, MAX_JSON_BYTES)


def read_document(path: Path) -> Any:
    """Return the parsed content of a JSON, YAML, TOML, XML, CSV, NPY, NPZ or MAT file, recognized by name or content.

    XML is an Element, except that of OpenCV, which becomes a mapping as its YAML does; NPY is an array, CSV a list of
    rows.

    Raises:
        InputError: if the file is missing, damaged, too large or of another kind.
    """
    with parsing(path):
        kind = _kind(path)
        if kind == "xml":
            root = documents.parse_xml(documents.read_bytes(path, MAX_TEXT_BYTES))
            return _opencv_mapping(root) if root.tag == "opencv_storage" else root
        if kind == "npy":
            return _array(path)
        if kind == "npz":
            return _small_arrays(path)
        if kind == "mat":
            return _variables(path)
        if not kind and b"\0" in documents.read_bytes(path, MAX_JSON_BYTES)[:_HEAD]:
            raise DocumentError("it is a binary file of a format that is not read")
        text = documents.read_text(path, MAX_JSON_BYTES if kind == "json" else MAX_TEXT_BYTES)
        if not text.strip():
            raise DocumentError("it is empty")
        if kind:
            return _PARSERS[kind](text)
        for parse in (_PARSERS[name] for name in ("json", "toml", "yaml", "labels")):
            with suppress(DocumentError):
                if (content := parse(text)) and not isinstance(content, str):
                    return content
    raise unreadable(path, "neither its name nor its content matches a supported format")


def _rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a table by the names of its columns; numbers between semicolons may have decimal commas."""
    lines = text.splitlines()
    delimiter = max(",;\t", key=lines[0].count)
    try:
        rows = islice(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), MAX_CAMERAS + 2)
        header, *cells = [row if delimiter == "," else [_with_points(cell) for cell in row] for row in rows]
        return [dict(zip(header, row, strict=True)) for row in cells if any(row)]
    except (csv.Error, ValueError):
        raise DocumentError("its rows have different numbers of columns") from None


def _with_points(cell: str) -> str:
    return cell.replace(",", ".") if re.fullmatch(r"[-+\d,eE\s]+", cell) else cell


def _labelled(text: str) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the numbers below the first line with each label, or those of cameras in blocks of lines.

    Later numbers with a label are of other transforms, those after an empty line a range of depth. Captury has
    millimetres.

    Source: files of TemugeB/handpose3d and bodypose3d (`c0.dat`, `rot_trans_c0.dat`), python_stereo_camera_calibrate;
    MVSNet, README, "Camera files"; Multiface, README, `KRT`; MPI-INF-3DHP, `camera.calibration`.
    """
    parts = re.split(r"\n\s*\n", text.strip())
    blocks = [[line.split() for line in part.splitlines()] for part in parts]
    if all(len(rows) == 8 and [*map(len, rows)] == [1, 3, 3, 3, len(rows[4]), 4, 4, 4] for rows in blocks):
        return [{"name": rows[0][0], "K": rows[1:4], "D": rows[4], "RT": rows[5:]} for rows in blocks]
    if text.startswith("Skeletool Camera Calibration"):
        cameras = [dict(re.findall(r"(\w+)[ \t]+(.+)", f"name {part}")) for part in re.split(r"(?m)^name", text)[1:]]
        lenses = ("none" if part.get("radial", "0") == "0" else "of Captury" for part in cameras)
        tables = [part | {"distortion_model": lens} for part, lens in zip(cameras, lenses, strict=True)]
        return {"cameras": [part | {"size": part.get("size", "").split()} for part in tables], "unit": "mm"}
    label = re.compile(r"^\s*([A-Za-z]+)(?::|[ \t]*$)([^:A-Za-df-z#]*)", re.MULTILINE)
    labels = dict(reversed([pair for part in parts for pair in label.findall(part)]))
    has_lens = any(label.lower().startswith("distortion") for label in labels)
    return {
        key: [line.split() for line in numbers.splitlines() if line.strip()] for key, numbers in labels.items()
    } | (
        {"distortion_model": "none"} if has_lens else {}  # 4 or 5 numbers of `calibrateCamera`
    )


_PARSERS: dict[str, Callable[[str], Any]] = {
    "json": documents.parse_json,
    "toml": documents.parse_toml,
    "yaml": documents.parse_yaml,
    "csv": _rows,
    "labels": _labelled,
}

_KINDS = {f".{kind}": kind for kind in "json toml yaml xml npy npz mat csv".split()} | {".yml": "yaml", ".xcp": "xml"}
_STARTS = {b"{": "json", b"<": "xml", b"\x93": "npy", b"PK\3\4": "npz", b"MATLAB 5.0": "mat"}


def _kind(path: Path) -> str:
    """Return the kind of a document by its name, or by its first characters; "" if unknown."""
    name = path.name.lower()
    if name.endswith((".qca.txt", ".qca")):
        return "xml"
    if kind := _KINDS.get(path.suffix.lower()):
        return kind
    start = documents.read_bytes(path, MAX_JSON_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((kind for first, kind in _STARTS.items() if start.startswith(first)), "")


def _array(path: Path) -> NDArray[Any]:
    """Read a NumPy array; the map of the file is never larger than the file."""
    try:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError):
        raise DocumentError(
            "it is not a NumPy array of numbers (save K, R and T of Python objects with numpy.savez), or incomplete"
        ) from None


def _small_arrays(path: Path) -> dict[str, Any]:
    """Read an NPZ file as lists by name; large arrays and those of Python objects, such as points, are left out."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist()[:_MAX_KEYS] if one.file_size <= _MAX_ARRAY_BYTES]
    except (zipfile.BadZipFile, OSError):
        raise DocumentError("it is not an archive of NumPy arrays, or incomplete") from None
    arrays: dict[str, Any] = {}
    for member in members:
        with suppress(DocumentError):
            arrays |= read_arrays(path, [member.filename.removesuffix(".npy")])
    return {name: array.tolist() for name, array in arrays.items()}


def _variables(path: Path) -> dict[str, Any]:
    """Return the variables of a MAT file of MATLAB as a document; larger ones than `_MAX_ARRAY_BYTES` become None.

    A struct becomes a mapping, a cell array a list, a matrix a list of rows, a vector a list of numbers.
    """
    if b"\x89HDF" in documents.read_bytes(path, MAX_JSON_BYTES)[:_HEAD]:
        raise DocumentError("it is a MAT file of version 7.3: save it in MATLAB with '-v7'")
    try:
        found = scipy.io.loadmat(path, appendmat=False, simplify_cells=True)
    # SciPy raises errors of many kinds for damaged files.
    except Exception:
        raise DocumentError("it is not a MAT file of version 5 to 7.2, or damaged") from None
    return {name: _plain(value) for name, value in found.items() if not name.startswith("__")}


_MATLAB_OBJECT = "<object>"
"""The key of an object, which only MATLAB can read, in `page4d.formats.table`."""


def _plain(value: Any) -> Any:
    """Return a value of a MAT file as one of JSON: large arrays, such as pictures, become None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, MatlabOpaque | MatlabObject):
        return {_MATLAB_OBJECT: None}
    array = np.asarray(value, object if isinstance(value, list) else None)
    if array.nbytes > _MAX_ARRAY_BYTES or array.dtype.kind not in ("biufOU" if array.ndim else "biuf"):
        return None
    return array.astype(np.float64).tolist() if array.dtype.kind in "biuf" else [_plain(item) for item in array.flat]


_READING_ARRAYS = Lock()
"""Views are read by several threads, and numpy parses headers as Python, which is not safe in threads on Python 3.11.

Source: github.com/python/cpython, issue 106905.
"""


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays of an NPZ file, or all; none of Python objects, which may be programs.

    Raises:
        DocumentMissingError: if there is no such file.
        DocumentError: if it cannot be read, is damaged, or lacks an array.
    """
    try:
        with _READING_ARRAYS, np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in (file.files if names is None else names)}
    except FileNotFoundError as error:
        raise DocumentMissingError(str(error)) from error
    # TypeError: an NPY file. RuntimeError: a method that zipfile does not know, or a password.
    except (
        *(OSError, ValueError, KeyError, EOFError, TypeError, RuntimeError),
        *(zipfile.BadZipFile, zlib.error, TokenError),
    ) as error:
        raise DocumentError(shortened(str(error), 200)) from error


def _opencv_mapping(root: Element) -> dict[str, object]:
    """Convert the nodes of an XML file of OpenCV to those of its YAML, whose scalars are strings."""

    def value(node: Element) -> object:
        if len(node):
            return {child.tag: value(child) for child in node}
        words = re.findall(r'"[^"]*"|[^\s"]+', node.text or "")
        is_list = node.tag == "data" or len(words) > 1
        return [word.strip('"') for word in words] if is_list else "".join(words).strip('"')

    return {child.tag: value(child) for child in root}


def key_paths(document: object, depth: int = 3) -> Iterator[str]:
    """Yield the keys of a document with those above them (`cameras/cam1/K`); the first item of a list is `#`.

    An XML document has the path of its root, `<root>`, an array `[]`. At most 1,000 keys per level are looked at.
    """
    if isinstance(document, Element):
        yield f"<{document.tag}>"
    if isinstance(document, np.ndarray):
        yield "[]"
    items: Iterable[tuple[object, object]] = ()
    if isinstance(document, dict):
        items = islice(document.items(), _MAX_KEYS)
    elif isinstance(document, list):
        items = (("#", item) for item in document[:1])
    for name, value in items:
        key = str(name).replace("/", "|")
        yield key
        if depth > 1:
            yield from (f"{key}/{below}" for below in key_paths(value, depth - 1))


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
def error_context(label: str, camera: str | None = None) -> Iterator[None]:
    """Prefix the file, and the camera if given, to the messages of InputErrors raised in the body."""
    try:
        yield
    except InputError as error:
        if error.marked_message.startswith(f"{label}: "):
            raise
        name = "" if camera is None else f"camera {shortened(camera)}: "
        prefix = "" if error.marked_message.startswith(name) else name
        raise InputError(f"{label}: {prefix}{error.marked_message}", error.marked_hint) from None


def lens_file(path: Path) -> Path:
    """Return the file of lenses that belongs to one of poses (`extri.yml`, `rot_trans_c0.dat`), else `path`."""
    if match := re.fullmatch(r"rot_trans_(.+)\.dat|(.+)_rot_trans\.dat", path.name):
        files = [path.with_name(f"{match[1] or match[2]}{end}.dat") for end in ("", "_intrinsics")]
        return next((file for file in files if file.is_file()), files[0])
    return _renamed(path, "extr", "intr")


def partner_of(path: Path) -> Path:
    """Return the other file of a pair `intri`, `extri`, which may not exist, or `path`."""
    lenses = lens_file(path)
    return lenses if lenses != path else _renamed(path, "intr", "extr")


def _renamed(path: Path, word: str, other: str) -> Path:
    """Replace a word in the name of a file by one of the same length; each letter keeps its case.

    If there is no such file, but one with another suffix, or in the only sibling folder whose name begins with the
    other word (`intrinsic/intr_1.xml`, `extrinsic/extr_1.xml`), that is returned.
    """

    def replaced(found: re.Match[str]) -> str:
        return "".join(new.upper() if old.isupper() else new for old, new in zip(found[0], other, strict=True))

    name = re.sub(rf"{word}(?=i|[^a-z])", replaced, path.name, flags=re.IGNORECASE)
    if name == path.name:
        return path
    files = [path.with_name(name), *(path.with_name(name).with_suffix(suffix) for suffix in _SUFFIXES)]
    if path.parent.name.lower().startswith(word):
        beside = [folder / name for folder in path.parent.parent.glob(f"{other}*") if (folder / name).is_file()]
        files += beside if len(beside) == 1 else []
    return next((file for file in files if file.is_file()), files[0])


def undistorted(label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the notice for cameras of a file without distortion coefficients, which may lack for a reason."""
    return (f"{label} has no distortion of {listed(names)}: undistorted images are assumed",) if names else ()
