"""What a person sees: messages and progress on stderr, results on stdout."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from page4d.scene.records import Notice


@dataclass(frozen=True)
class Verbosity:
    """`quiet` leaves only warnings and errors on stderr, `verbose` adds what is merely good to know."""

    quiet: bool = False
    verbose: bool = False


def error_console() -> "Console":
    """Return a console on stderr that never wraps what a script may want to grep."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False)


def print_error(message: str, hint: str) -> None:
    """Print the two lines of an error."""
    console = error_console()
    console.print("[bold red]error:[/] ", end="")
    console.print(message, markup=False)
    if hint:
        console.print("[bold]hint:[/]  ", end="")
        console.print(hint, markup=False)


def print_notice(notice: "Notice", verbosity: Verbosity) -> None:
    """Print a warning always, and what is merely good to know if `verbose`."""
    from page4d.scene.records import Level

    console = error_console()
    if notice.level is Level.WARNING:
        console.print("[yellow]warning:[/] ", end="")
        console.print(notice.text, markup=False)
    elif verbosity.verbose and not verbosity.quiet:
        console.print(f"info: {notice.text}", markup=False)


def print_json(value: Any) -> None:
    """Print a result for machines."""
    import json

    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_table(table: "Table") -> None:
    """Print a result for people; on a pipe it is not cut to the width of a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(table)


def print_text(text: str) -> None:
    """Print a line of a result."""
    sys.stdout.write(text + "\n")


class ProgressObserver:
    """Shows notices and a progress bar with frames a second and the time left; made by `observed_run`."""

    def __init__(self, verbosity: Verbosity, progress: "Progress | None", task: "TaskID | None") -> None:
        self._verbosity = verbosity
        self._progress = progress
        self._task = task

    def notice(self, notice: "Notice") -> None:
        """Print a notice above the bar."""
        print_notice(notice, self._verbosity)

    def progress(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._progress is not None and self._task is not None:
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
    with Progress(*columns, console=error_console(), transient=False, speed_estimate_period=120) as progress:
        yield ProgressObserver(verbosity, progress, progress.add_task("reconstruct", total=None))
