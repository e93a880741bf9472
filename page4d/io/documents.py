"""Text documents: reading of bounded size, and strict parsing of JSON, TOML, YAML and XML.

Readers of files that page4d did not write use these functions. The only error is `DocumentError`, with the reason;
the caller adds the name of the file.
"""

import json
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

from pydantic import ValidationError

from page4d.errors import listed, shortened

_MB = 1024**2
MAX_JSON_BYTES = 256 * _MB
"""A capture of 8 moving cameras and 100,000 instants has about 250 MB."""

MAX_TEXT_BYTES = 2 * _MB
"""Largest TOML, YAML or XML document: 2,500 cameras, or 20,000 settings. Its parsers need seconds for each MB."""

_MAX_CONTAINERS = 10_000_000
"""Largest number of lists and objects of a JSON document: Python needs about 100 bytes for each."""

_MAX_KEY_PARTS = 32
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MAX_KEY_PARTS}}}""")
"""A dotted key of TOML with more parts: the parser's memory grows with the square of their number."""

_CONSTANT = re.compile(r"(?<=[\s:,\[])(NaN|-?Infinity)(?=[\s,\]}])")


class DocumentError(ValueError):
    """A file that cannot be read, or text that is not valid; the message begins with the line where it is known."""


class DocumentMissingError(DocumentError):
    """There is no such file."""


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        DocumentMissingError: if there is no such file.
        DocumentError: if it is not a regular file, larger than `max_bytes` or not readable.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would block
            raise DocumentError("it is not a regular file")
        _check_size(status.st_size, max_bytes)
        with path.open("rb") as file:
            content = b"".join(_pieces(file, status.st_size, max_bytes))
    except FileNotFoundError:
        raise DocumentMissingError("it does not exist") from None
    except OSError as error:
        raise DocumentError((error.strerror or "it cannot be opened").lower()) from None
    _check_size(len(content), max_bytes)  # files of /proc have size 0
    return content


_PIECE_BYTES = 1 << 16


def _pieces(file: BinaryIO, expected: int, max_bytes: int) -> Iterator[bytes]:
    """Yield a file up to just over a limit; one call for all would reserve memory of the size of the limit."""
    total = 0
    while total <= max_bytes and (piece := file.read(max(expected - total, 0) + _PIECE_BYTES)):
        total += len(piece)
        yield piece


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the content of a UTF-8 file without its byte order mark, or of a UTF-16 file with one, as of PowerShell.

    Raises:
        DocumentError: as `read_bytes`, or if it is neither.
    """
    content = read_bytes(path, max_bytes)
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DocumentError(f"byte {error.start} is not {encoding.removesuffix('-sig').upper()} text") from None
    if "\0" in text[:4]:
        raise DocumentError("it is not UTF-8 text (perhaps UTF-16): save it as UTF-8")
    return text


def parse_json(text: str) -> Any:
    """Parse JSON; NaN, Infinity and repeated keys are errors."""
    if len(text) > _MAX_CONTAINERS and text.count("[") + text.count("{") > _MAX_CONTAINERS:
        raise DocumentError(f"it has more than {_MAX_CONTAINERS:,} lists and objects")

    def refuse(constant: str) -> float:
        found = _CONSTANT.search(text)
        line = "" if found is None else f"line {text.count(chr(10), 0, found.start()) + 1}: "
        raise DocumentError(f"{line}{constant} is not a JSON number")

    with _guard():
        try:
            return json.loads(text, parse_constant=refuse, object_pairs_hook=_unique_keys)
        except json.JSONDecodeError as error:
            raise DocumentError(f"line {error.lineno}: {error.msg}") from None


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML; repeated keys, and keys of more than 32 parts, are errors."""
    found = _LONG_KEY.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise DocumentError(f"line {line}: a key has more than {_MAX_KEY_PARTS} parts")
    with _guard():
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            message, _, place = str(error).partition(" (at ")
            at = re.match(r"line (\d+)", place)
            line = int(at[1]) if at else text.count("\n") + 1
            raise DocumentError(f"line {line}: {shortened(message)}") from None


_MAX_FLOW_LEVEL = 200
"""Brackets in brackets of YAML; PyYAML takes time by the square of their number."""


def parse_yaml(text: str) -> object:
    """Parse YAML; every scalar is a string, tags have no effect, and repeated keys are errors.

    Empty documents, such as that after the last line of `rostopic echo`, are left out.

    Numbers are not reinterpreted (YAML 1.1 parses `010` as 8 and `1e-05` as text). The first line of OpenCV 3 and 4,
    `%YAML:1.0`, is no valid YAML and is skipped.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
            if self.flow_level == _MAX_FLOW_LEVEL:
                raise RecursionError
            super().fetch_flow_collection_start(kind)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _check_unique([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
            return super().construct_mapping(node, deep)

    with _guard():
        try:
            loader = Loader(re.sub(r"\A%YAML:.*", "#", text))
            found = [data for _ in iter(loader.check_data, False) if (data := loader.get_data())]
        except yaml.MarkedYAMLError as error:
            line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
            raise DocumentError(f"{line}{shortened(error.problem or 'not YAML')}") from None
        except yaml.YAMLError:
            raise DocumentError("it contains characters that YAML forbids") from None
    if len(found) > 1:
        raise DocumentError(f"it has {len(found)} documents, expected 1")
    return found[0] if found else None


def parse_xml(content: bytes) -> ElementTree.Element:
    """Parse XML; a DTD, which may contain entities, is an error."""
    parser = ElementTree.XMLParser(target=_PlainTreeBuilder())  # noqa: S314 - any DTD is refused
    with _guard():
        try:
            return ElementTree.fromstring(content, parser=parser)  # noqa: S314 - same
        except ElementTree.ParseError as error:
            raise DocumentError(f"line {error.position[0]}: not well-formed XML") from None
        except DocumentError:
            raise
        except (LookupError, ValueError):
            raise DocumentError("its text encoding is unknown") from None


def first_violation(error: ValidationError, whole: str) -> str:
    """Format the first violation of a schema as "key: rule"; `whole` stands for the key of the top level."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    rule = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
    return f"{'.'.join(shortened(str(part)) for part in first['loc']) or whole}: {rule}"


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise DocumentError(f"it has {size / _MB:.0f} MB, the limit is {max_bytes / _MB:.0f} MB")


@contextmanager
def _guard() -> Iterator[None]:
    """Translate errors that are not of the format: recursion, and limits of Python's numbers."""
    try:
        yield
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except OverflowError:
        raise DocumentError("a number is too large") from None
    except ValueError:  # int() converts at most 4300 digits
        raise DocumentError("a number has too many digits") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        _check_unique([key for key, _ in pairs])
    return result


def _check_unique(keys: list[str]) -> None:
    repeated = [f"'{shortened(key)}'" for key, count in Counter(keys).items() if count > 1]
    if repeated:
        raise DocumentError(f"key {listed(repeated, 3)} appears twice")


class _PlainTreeBuilder(ElementTree.TreeBuilder):
    """Tree builder that stops at a DTD before any entity is expanded."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:  # noqa: ARG002 - signature of TreeBuilder
        raise DocumentError("it declares a DTD, which is not allowed")
