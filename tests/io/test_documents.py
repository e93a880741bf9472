"""Text documents: bounded size, UTF-8 only, and one error for all that a parser may raise."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from page4d.io.documents import (
    DocumentError,
    DocumentMissingError,
    parse_json,
    parse_toml,
    parse_xml,
    parse_yaml,
    read_text,
)
from tests.fuzzing import bounded

DEEP = 100_000


def refused(parse: Callable[[], object]) -> str:
    with bounded(seconds=2.0, megabytes=100.0), pytest.raises(DocumentError) as raised:
        parse()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200
    return str(raised.value)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_json, "", "line 1: Expecting value"),
        (parse_json, "[" * DEEP, "it is nested too deeply"),
        (parse_json, '{"a":' * DEEP, "it is nested too deeply"),
        (parse_json, "9" * 10_000, "a number has too many digits"),
        (parse_json, '{"a": 1,\n "a": 2}', "key 'a' appears twice"),
        (parse_json, '{"' + "a" * 10_000 + '": 1, "' + "a" * 10_000 + '": 1}', "key 'aaa"),
        (parse_json, "[1,\n NaN]", "line 2: NaN is not a JSON number"),
        (parse_json, '{"a": "\0"}', "line 1: Invalid control character"),
        (parse_json, "[] []", "line 1: Extra data"),
        (parse_toml, ".".join("a" * 50_000) + " = 1", "line 1: a key has more than 32 parts"),
        (parse_toml, "b = 1\n[" + " . ".join(['"a"'] * 50_000) + "]", "line 2: a key has more than 32 parts"),
        (parse_toml, "c = {" + ".".join(["'a.b'"] * 50_000) + " = 1}", "line 1: a key has more than 32 parts"),
        (parse_toml, "a = " + "[" * DEEP, "it is nested too deeply"),
        (parse_toml, "a = " + "{a=" * DEEP, "it is nested too deeply"),
        (parse_toml, "a = " + "9" * 10_000, "a number has too many digits"),
        (parse_toml, "a = 1\na = 2", "line 2: Cannot overwrite a value"),
        (parse_toml, "[a]\n[a]", "line 2: Cannot declare"),
        (parse_toml, "a = 2020-13-41", "line 1: "),
        (parse_yaml, "[" * 20_000, "it is nested too deeply"),
        (parse_yaml, "- " * 20_000, "it is nested too deeply"),
        (parse_yaml, "a: 1\nb: 2\na: 3", "key 'a' appears twice"),
        (parse_yaml, "a: {b: 1, b: 2}", "key 'b' appears twice"),
        (parse_yaml, "a: *b", "line 1: found undefined alias 'b'"),
        (parse_yaml, "%YAML:1.0\n---\na: [1\nb: 2", "line 4: "),
        (parse_yaml, "a: \0", "it contains characters that YAML forbids"),
        (parse_yaml, "? [a]\n: 1", "line 1: found unhashable key"),
        (parse_yaml, "a: 1\n---\nb: 2", "it has 2 documents, expected 1"),
    ],
)
def test_hostile_text_is_refused(parse: Callable[[str], object], text: str, message: str) -> None:
    assert refused(lambda: parse(text)).startswith(message)


def test_json_of_too_many_lists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("page4d.io.documents._MAX_CONTAINERS", 1000)
    assert refused(lambda: parse_json("[" + "[]," * 1000 + "1]")) == "it has more than 1,000 lists and objects"
    assert len(parse_json("[" + "[]," * 998 + "1]")) == 999


def test_the_bound_on_dotted_keys_takes_linear_time() -> None:
    for text in ("a" * 400_000 + " = 1", "a = [" + "1.0, " * 80_000 + "]", "# " + "a.b.c.d " * 50_000):
        with bounded(seconds=2.0):
            parse_toml(text)


def test_numbers_and_short_dotted_keys_of_toml_are_read() -> None:
    values = ", ".join(["600.0"] * 100)
    assert len(parse_toml(f"a.b.c.d = [{values}]")["a"]["b"]["c"]["d"]) == 100


def test_yaml_scalars_are_strings() -> None:
    assert parse_yaml("%YAML:1.0\n---\na: [010, 1e-05, true, !!python/name:os.system ]\nb: &x 1\nc: *x") == {
        "a": ["010", "1e-05", "true", ""],
        "b": "1",
        "c": "1",
    }
    assert parse_yaml("---\na: 1\n---\n") == {"a": "1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'<!DOCTYPE a [<!ENTITY b "x">]><a>&b;</a>', "it declares a DTD"),
        (b"<a>&b;</a>", "line 1: not well-formed XML"),
        (b"<a>" * DEEP, "line 1: not well-formed XML"),
        (b"<?xml version='1.0' encoding='nonsense'?><a/>", "its text encoding is unknown|not well-formed"),
        (b"\0\0", "line 1: not well-formed XML"),
    ],
)
def test_hostile_xml_is_refused(content: bytes, message: str) -> None:
    found = refused(lambda: parse_xml(content))
    assert any(found.startswith(part) or part in found for part in message.split("|"))


def test_deep_xml_is_read_without_recursion() -> None:
    assert parse_xml(b"<a>" * DEEP + b"</a>" * DEEP).tag == "a"


def test_files_are_read_as_utf8_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n")
    assert parse_json(read_text(path)) == {}
    path.write_bytes("{}\r\n".encode("utf-16"))
    assert parse_json(read_text(path)) == {}
    for content in ("{}".encode("utf-16-le"), "{}".encode("utf-32")):
        path.write_bytes(content)
        assert refused(lambda: read_text(path)).startswith("it is not UTF-8 text (perhaps UTF-16)")
    for content, encoding in ((b"{}  \xe9", 8), (b"\xff\xfe{\0\0", 16)):
        path.write_bytes(content)
        assert refused(lambda: read_text(path)) == f"byte 4 is not UTF-{encoding} text"
    with path.open("wb") as file:
        file.truncate(3 * 1024**2)
    assert refused(lambda: read_text(path)) == "it has 3 MB, the limit is 2 MB"


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refused(lambda: read_text(tmp_path / "pipe")) == "it is not a regular file"
    assert refused(lambda: read_text(tmp_path)) == "it is not a regular file"
    assert refused(lambda: read_text(tmp_path / "loop")) == "too many levels of symbolic links"
    assert refused(lambda: read_text(tmp_path / ("x" * 5000))) == "file name too long"
    with pytest.raises(DocumentMissingError, match="it does not exist"):
        read_text(tmp_path / "nothing")
