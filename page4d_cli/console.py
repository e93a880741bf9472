"""Console output: messages and progress on stderr, results on stdout."""

import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table
    from rich.text import Text

    from page4d.scene.records import Notice


@dataclass(frozen=True)
class Verbosity:
    """Messages on stderr: `quiet` restricts them to warnings and errors, `verbose` adds informational notices."""

    quiet: bool = False
    verbose: bool = False


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
    from page4d.errors import OutputError

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


def cell(text: str) -> "Text":
    """Return a table cell with a text in which square brackets are not markup."""
    from rich.text import Text

    return Text(visible(text))


def error_console() -> "Console":
    """Return a console on stderr that does not wrap lines, so that scripts can search them."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False)


def print_error(message: str, hint: str) -> None:
    """Print the two lines of an error."""
    console = error_console()
    console.print("[bold red]error:[/] ", end="")
    console.print(visible(message), markup=False)
    if hint:
        console.print("[bold]hint:[/]  ", end="")
        console.print(visible(hint), markup=False)


def print_notice(notice: "Notice", verbosity: Verbosity) -> None:
    """Print a notice: warnings always, long steps unless `quiet`, and all others if `verbose`."""
    from page4d.scene.records import Level

    console = error_console()
    if notice.level is Level.WARNING:
        console.print("[yellow]warning:[/] ", end="")
        console.print(visible(notice.text), markup=False)
    elif notice.level is Level.STEP and not verbosity.quiet:
        console.print(visible(notice.text), markup=False)
    elif verbosity.verbose and not verbosity.quiet:
        console.print(f"info: {visible(notice.text)}", markup=False)


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def human_size(num_bytes: float) -> str:
    """Format a number of bytes with three significant digits."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"


def print_table(table: "Table") -> None:
    """Print a table; if stdout is not a terminal, it is 200 columns wide."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(table)


def print_text(text: str) -> None:
    """Print a line of a result."""
    sys.stdout.write(visible(text) + "\n")


class ProgressObserver:
    """Prints notices and a progress bar with frames per second and remaining time; created by `observed_run`."""

    def __init__(self, verbosity: Verbosity, progress: "Progress | None", task: "TaskID | None") -> None:
        self._verbosity = verbosity
        self._progress = progress
        self._task = task

    def notice(self, notice: "Notice") -> None:
        """Print a notice above the progress bar."""
        print_notice(notice, self._verbosity)

    def progress(self, done: int, total: int) -> None:
        """Update the progress bar."""
        if self._progress is not None and self._task is not None:
            self._progress.start()
            self._progress.update(self._task, completed=done, total=total)


@contextmanager
def observed_run(verbosity: Verbosity) -> Iterator[ProgressObserver]:
    """Show progress on stderr while the body runs."""
    if verbosity.quiet:
        yield ProgressObserver(verbosity, None, None)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.2f} frames/s")

    columns = (TextColumn("reconstruct"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(True))
    progress = Progress(*columns, console=error_console(), transient=False, speed_estimate_period=120)
    try:
        yield ProgressObserver(verbosity, progress, progress.add_task("reconstruct", total=None))
    finally:
        if progress.live.is_started:
            progress.stop()
