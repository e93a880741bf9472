"""Options of an export as keywords of Python: their usual types, and errors in these words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from page4d.errors import Page4DError, UsageError, listed
from page4d.options import ExportSettings

_RANGE = re.compile(r"--instants (\d+):(\d+)")
_CHOICE = re.compile(r"--(pinhole|only) (keep|common|all|static|moving)")
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")
_COMMAND = "page4d export --list"


def settings_from(options: dict[str, Any]) -> ExportSettings:
    """Return settings from keywords; a name is a list of one view, and `instants` may be a range.

    Raises:
        UsageError: if there is no such option, or a value is not valid.
    """
    known = {field.name for field in fields(ExportSettings)}
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"no option of an export is called '{unknown[0]}'", f"give {listed(sorted(known), 40)}")
    given = dict(options)
    for name in ("views", "hold_out"):
        if isinstance(given.get(name), str):
            given[name] = (given[name],)
    instants = given.get("instants")
    if isinstance(instants, range):
        given["instants"] = (instants.start, instants.stop, instants.step)
    elif isinstance(instants, list):  # of indices, in other functions
        raise UsageError("instants is a list", "give a range, or (start, stop, step)")
    return ExportSettings(**given)


@contextmanager
def named_as_keywords() -> Iterator[None]:
    """Replace the command line's names of options in errors of the body by those of Python."""
    try:
        yield
    except Page4DError as error:
        error.message, error.hint = _in_python(error.message), _in_python(error.hint)
        error.args = (error.message,)
        raise


def _in_python(text: str) -> str:
    if _COMMAND in text:
        return text
    text = _CHOICE.sub(r"\1='\2'", _RANGE.sub(r"instants=range(\1, \2)", text))
    return _OPTION.sub(_keyword, text)


def _keyword(match: re.Match[str]) -> str:
    name = match[1].replace("-", "_")
    return {"no_images": "images=False", "overwrite": "overwrite=True"}.get(name, name)
