"""Console output: messages and progress on stderr, results on stdout."""

import io
import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from page4d.errors import Level, Notice, OutputError, shortened

if TYPE_CHECKING:
    from rich.console import Console


_COLUMNS = 80
"""Width of a terminal that does not report it."""

_MAX_DIGITS = 6


@dataclass(frozen=True)
class Verbosity:
    """What is printed: `quiet` restricts messages to warnings and errors, `verbose` adds other notices.

    `as_json` prints results as JSON.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False


class _LenientFile(io.FileIO):
    """A terminal, pipe or file. A failed write drops its data; its error is kept, except that of a closed pipe."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write data; return its length even if it was dropped."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            pass  # the reader has closed the pipe, as `| head` does
        except OSError as error:
            self.failure = error
        return memoryview(data).nbytes


def ignore_closed_pipes() -> None:
    """Ignore closed pipes on stdout and stderr, and escape characters that their encoding lacks."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # the shell closed it, as with `>&-`
            number = os.open(os.devnull, os.O_WRONLY)
        file = _LenientFile(number, "wb", closefd=False)
        text = io.TextIOWrapper(
            io.BufferedWriter(file),
            encoding=stream.encoding if stream else "utf-8",
            errors="backslashreplace",
            line_buffering=file.isatty() or name == "stderr",
        )
        setattr(sys, name, text)


def flush_results() -> None:
    """Flush standard output.

    Raises:
        OutputError: if it could not be written.
    """
    sys.stdout.flush()
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(file, _LenientFile) and file.failure is not None:
        raise OutputError(f"cannot write to standard output: {file.failure.strerror}", "redirect it to another file")


def visible(text: str) -> str:
    """Escape control characters and line separators, which file names may contain."""
    return "".join(char.encode("unicode_escape").decode() if _is_control(char) else char for char in text)


def _is_control(char: str) -> bool:
    """Return whether a character is a control, a surrogate, a line separator or a change of writing direction."""
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in "\u202a\u202b\u202d\u202e\u2066\u2067"


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal that a stream writes to; None if it writes elsewhere."""
    if not stream.isatty():
        return None
    if given := given_columns():
        return given
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


def given_columns() -> int | None:
    """Return the width that the environment variable COLUMNS states, if any; shells set it, but do not export it."""
    given = os.environ.get("COLUMNS", "")
    return int(given) or None if given.isdecimal() and len(given) <= _MAX_DIGITS else None


def ignore_invalid_columns() -> None:
    """Remove a COLUMNS that states no width: rich prints nothing if it is 0."""
    if given_columns() is None:
        os.environ.pop("COLUMNS", None)


def wrapped(text: str, width: int | None) -> list[str]:
    """Break a text into lines between words; a longer word has a line of its own. Without a width it is one line."""
    if width is None:
        return [text]
    from rich.cells import cell_len

    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        longer = f"{lines[-1]} {word}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def error_console() -> "Console":
    """Return a console on stderr that leaves lines as they are."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def has_live_lines() -> bool:
    """Return whether stderr is a terminal on which a line can be updated."""
    console = error_console()
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


def print_message(text: str, prefix: str = "", style: str = "", target: "Console | None" = None) -> None:
    """Print a message on stderr, or on the console of a live display, after a prefix in a style.

    It is one line, so that scripts can search it; on a terminal lines end between words.
    """
    from rich.text import Text

    width = columns_of(sys.stderr) if target is None else target.width  # a live display replaces stderr
    indent = " " * len(prefix)
    lines = wrapped(visible(text), None if width is None else max(width - len(prefix), 1))
    (target or error_console()).print(Text.assemble((prefix, style), f"\n{indent}".join(lines)))


def print_error(message: str, hint: str) -> None:
    """Print the two lines of an error; the middle of a word beyond the length of file names is left out."""
    message = re.sub(r"\S{300,}", lambda word: shortened(word[0], 200), message)
    print_message(message, "error: ", "bold red")
    if hint:
        print_message(hint, "hint:  ", "bold")


def print_notice(notice: "Notice", verbosity: Verbosity, target: "Console | None" = None) -> None:
    """Print a notice: warnings always, long steps unless `quiet`, and all others if `verbose`."""
    from page4d.options import in_options

    text = in_options(notice.marked_text)
    if notice.level is Level.WARNING:
        print_message(text, "warning: ", "yellow", target)
    elif notice.level is Level.STEP and not verbosity.quiet:
        print_message(text, target=target)
    elif verbosity.verbose and not verbosity.quiet:
        print_message(text, "info: ", target=target)


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """Print a line of a result."""
    sys.stdout.write(visible(text) + "\n")


def print_next(commands: str) -> None:
    """Print what to do next; lines are not wrapped, so that they can be copied."""
    print_text("next step")
    for line in commands.splitlines():
        print_text(line)
