"""Errors of the parser of command lines in the two lines of all errors."""

import re
from collections.abc import Collection, Sequence

import typer

from page4d.errors import UsageError, shortened

ParserError: type[Exception] = typer.BadParameter.__mro__[2]
"""ClickException, the base class of the parser's errors: of click, or of the copy in newer versions of typer."""

_LIMIT = 160


def described(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> UsageError:
    """Return an error of the parser with the values at fault, and with the most similar names in the hint."""
    message = _with_value(" ".join(error.format_message().split()), error.__cause__)  # type: ignore[attr-defined]
    message, similar = _split(message)
    command = next((argument for argument in arguments if argument in commands), "")
    listed_by = f"'page4d {command} --help' lists the options" if command else "'page4d --help' lists the commands"
    suggestion = f"did you mean {similar}? " if similar else ""
    return UsageError(shortened(message.rstrip("."), _LIMIT), suggestion + listed_by)


def _split(message: str) -> tuple[str, str]:
    """Split off the names that resemble a misspelt one."""
    found = re.fullmatch(r"(.*?)\.? (?:\(Possible options: (.*)\)|Did you mean (.*)\?)", message)
    return (found[1], (found[2] or found[3]).replace("'", "")) if found else (message, "")


def _with_value(message: str, cause: BaseException | None) -> str:
    """Put the refused value into a message of pydantic, by which typer checks values."""
    details = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    value = shortened(str(details[0].get("input"))) if details else ""
    message = re.sub(r", unable to parse .*", "", message.replace("Value error, ", ""))
    return message.replace("Input should", f"'{value}' should") if value else message
