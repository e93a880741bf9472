"""Help, messages, docstrings, comments and documentation use the terms of the field."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from page4d_cli.command_line import app

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sorted(path for folder in ("page4d", "page4d_cli", "tools") for path in (ROOT / folder).rglob("*.py"))
PROSE = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "samples/*.md", "Makefile", ".ci/run", "tools/*.sh")
    for path in ROOT.glob(pattern)
)
assert PYTHON and PROSE, f"nothing to check below {ROOT}"  # noqa: PT018

BANNED = re.compile(
    r"(?<![\w`-])(?:tell(?:s|ing)?|told|says?|said|saying|believ(?:e|es|ed|ing)|knows|looks|(?:un)?sure(?:r|st|ly)?"
    r"|beside|alike|lets|foretell(?:s|ing)?|foretold|so many|so much|own words?|a look"
    r"|stands? for (?:it|them)sel(?:f|ves))(?![\w`-])",
    re.IGNORECASE,
)
"""Personified networks and files, and old-fashioned turns."""


class Text(NamedTuple):
    """A piece of prose, and the line where it begins."""

    line: int
    text: str


def banned_words(text: str) -> list[tuple[str, str]]:
    """Return banned words and phrases in lower case, with their context; line breaks do not hide a phrase."""
    words = " ".join(text.split())
    return [
        (found.group().lower(), words[max(0, found.start() - 60) : found.end() + 60])
        for found in BANNED.finditer(words)
    ]


@cache
def strings_of(code: str) -> list[Text]:
    """Return string literals, docstrings included; adjacent literals and the parts of f-strings are joined."""
    parts: set[ast.AST] = set()
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.append(Text(node.lineno, "".join(texts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            found.append(Text(node.lineno, node.value))
    return found


def comments_of(code: str) -> Iterator[Text]:
    """Yield comments; those on consecutive lines are joined."""
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = token.string.lstrip("# ")
    first = 0
    for line in lines:
        if line - 1 not in lines:
            first = line
        if line + 1 not in lines:
            yield Text(first, " ".join(lines[number] for number in range(first, line + 1)))


OTHER_PROGRAMS = "colmap.py nerfstudio.py trainers/ installation.py page.py synthetic/ wheels.py".split()
"""Files with command lines of other programs, CSS, or the command that writes a capture again."""


def test_texts_of_the_library_name_options_by_their_fields() -> None:
    programs = "|".join([*(f"page4d {name}" for name, _ in commands()), "ray", "torchrun", r"\w+\.py", r"\{\} train"])
    command = re.compile(rf"(?<!\w)(?:{programs})(?: [\w'{{}}./-]+)* --[a-z][^;:)]*")
    found = []
    for path in (ROOT / "page4d").rglob("*.py"):
        if not any(f"/{part}" in str(path) for part in OTHER_PROGRAMS):
            texts = (command.sub("", text.text) for text in strings_of(path.read_text()))
            found += [f"{path}: write ⟨field⟩ in: {text}" for text in texts if re.search(r"(?<!\w)--[a-z]", text)]
    assert not found, "\n".join(found)


def commands() -> list[tuple[str, Any]]:
    """Return all commands with their names, the program itself included."""
    program: Any = typer.main.get_command(app)
    return [("page4d", program), *program.commands.items()]


def found_in(where: str, texts: Iterable[Text]) -> list[str]:
    return [
        f"{where}:{text.line}: '{word}' in: {context}" for text in texts for word, context in banned_words(text.text)
    ]


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in PYTHON}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_strings_docstrings_and_comments(folder: Path) -> None:
    found = []
    for path in PYTHON:
        if path.parent == folder:
            code = path.read_text()
            found += found_in(str(path.relative_to(ROOT)), (*strings_of(code), *comments_of(code)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_documentation(path: Path) -> None:
    text = path.read_text()
    spans = [(found.start(), found.group()) for found in re.finditer(r"(?:.+\n?)+", text)]
    paragraphs = (Text(text.count("\n", 0, start) + 1, paragraph) for start, paragraph in spans)
    found = found_in(str(path.relative_to(ROOT)), paragraphs)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_help(name: str, command: Any) -> None:
    texts = [command.help, command.epilog, *(getattr(parameter, "help", None) for parameter in command.params)]
    assert command.help
    found = found_in(name, (Text(0, text) for text in texts if text))
    assert not found, "\n".join(found)


def test_the_check_reads_strings_docstrings_and_comments() -> None:
    code = '''
def call(x):
    """Do what x says; besides, `tell` --tell-cameras assure letters."""
    # A comment on lines, so
    # many of them.
    raise ValueError(f"{x} is {f'told {x}'} " "to be" " alike")
'''
    found = found_in("code", (*strings_of(code), *comments_of(code)))
    assert sorted(line.split("'")[1] for line in found) == ["alike", "says", "so many", "told"]
