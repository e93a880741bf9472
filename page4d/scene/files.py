"""Checks of input files before they are opened, natural order of file names, and strict parsing of JSON and TOML."""

import json
import os
import re
import stat
import tomllib
from pathlib import Path

from pydantic import ValidationError

from page4d.errors import InputError

DEFAULT_MAX_MEGAPIXELS = 64.0


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `cam2` before `cam10`; case is ignored, ties are broken by the exact text."""
    parts = re.split(r"(\d{1,4000})", name)
    key = [(0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts]
    return [*key, (2, 0, name)]


def check_regular_file(path: Path) -> None:
    """Check that a path is a readable, non-empty regular file; a decoder would block on a pipe or device.

    Raises:
        InputError: for a dangling link, a folder, pipe or device, an unreadable or an empty file.
    """
    if path.is_symlink() and not path.exists():
        raise InputError(
            f"{path.name} is a link to a file that does not exist", "restore the file or remove the link"
        )
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the path")
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path.name} is not a regular file", "give a file on disk, not a pipe, device or folder")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path.name}: permission denied", f"make it readable: chmod u+r '{path}'")
    if path.stat().st_size == 0:
        raise InputError(f"{path.name} is empty", "copy or record it again, or exclude it with --views")


def check_pixels(name: str, width: int, height: int, max_megapixels: float) -> None:
    """Check the frame size in a file's header before anything is decoded.

    Raises:
        InputError: if the frame has more than `max_megapixels` million pixels.
    """
    megapixels = width * height / 1e6
    if megapixels > max_megapixels:
        raise InputError(
            f"{name} is {width}x{height} ({megapixels:.0f} Mpx); the limit is {max_megapixels:g} Mpx (--max-pixels)",
            "raise --max-pixels if the file is genuine",
        )


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
