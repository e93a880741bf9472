"""Strict parsing of JSON and TOML, and the text of schema violations."""

import json
import re
import tomllib

from pydantic import ValidationError


class ParseError(ValueError):
    """Text that is not valid JSON or TOML; the message begins with the line where it is known."""


def parse_json(text: str) -> object:
    """Parse JSON; NaN, Infinity and repeated keys are errors.

    Raises:
        ParseError: if the text is invalid.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeated_keys)
    except json.JSONDecodeError as error:
        raise ParseError(f"line {error.lineno}: {error.msg}") from None
    except _NotANumberError as error:
        raise ParseError(f"{_line_of_constant(text)}{error} is not a JSON number") from None
    except ParseError:
        raise
    except RecursionError:
        raise ParseError("it is nested too deeply") from None
    except ValueError:
        raise ParseError("a number has too many digits") from None


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML.

    Raises:
        ParseError: if the text is invalid.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        raise ParseError(f"line {line[1] if line else text.count(chr(10)) + 1}: {message}") from None
    except RecursionError:
        raise ParseError("it is nested too deeply") from None
    except ValueError:
        raise ParseError("a number has too many digits") from None


def first_violation(error: ValidationError, whole: str) -> str:
    """Format the first violation of a schema as "key: rule"; `whole` stands for the key of the top level."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or whole}: {first['msg']}"


class _NotANumberError(ValueError):
    """NaN or Infinity in JSON."""


def _refuse_constant(name: str) -> float:
    raise _NotANumberError(name)


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ParseError(f"key '{repeated}' appears twice")
    return result


def _line_of_constant(text: str) -> str:
    """Return "line N: " of the first bare NaN or Infinity."""
    found = re.search(r"(?<=[\s:,\[])(NaN|-?Infinity)(?=[\s,\]}])", text)
    return "" if found is None else f"line {text.count(chr(10), 0, found.start()) + 1}: "
