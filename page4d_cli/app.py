"""The `page4d` command: its subcommands, and the exit code of every error."""

import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

import page4d
from page4d.errors import MemoryBudgetError, Page4DError
from page4d_cli import console
from page4d_cli.commands.benchmark import benchmark
from page4d_cli.commands.convert_weights import convert_weights
from page4d_cli.commands.doctor import doctor
from page4d_cli.commands.evaluate import evaluate
from page4d_cli.commands.held_out import held_out
from page4d_cli.commands.inspect_scene import inspect_scene
from page4d_cli.commands.inspect_shapes import inspect_shapes
from page4d_cli.commands.pretrain import pretrain
from page4d_cli.commands.reconstruct import reconstruct
from page4d_cli.commands.synthesize import synthesize
from page4d_cli.commands.train import train

app = typer.Typer(
    name="page4d",
    help="4D reconstruction of synchronized videos: points, depth and cameras for every instant.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print_text(f"page4d {page4d.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    del version


def _help(command: Callable[..., None]) -> str:
    """Return the docstring of a command with one line per paragraph, which the terminal wraps."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _command in (
    reconstruct,
    inspect_scene,
    synthesize,
    evaluate,
    train,
    pretrain,
    held_out,
    benchmark,
    convert_weights,
    inspect_shapes,
    doctor,
):
    app.command(_command.__name__.replace("_", "-"), help=_help(_command))(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error is printed as two lines on stderr."""
    try:
        code = _run_app(list(arguments))
        console.flush_results()
    except Page4DError as error:
        console.print_error(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        console.print_error("interrupted", "")
        return 130
    except MemoryError as error:
        console.print_error(f"out of memory: {error}".rstrip(": "), "try a smaller --size, --chunk or --fps")
        return MemoryBudgetError.exit_code
    except Exception:
        # An internal error: its trace is written to a log file.
        return _report_bug(arguments)
    return code


def _run_app(arguments: list[str]) -> int:
    try:
        app(args=arguments, standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def _report_bug(arguments: Sequence[str]) -> int:
    trace = traceback.format_exc()
    hint = "this is a bug of page4d; please report it with the trace"
    try:
        handle, name = tempfile.mkstemp(prefix="page4d-error-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"page4d {page4d.__version__}, Python {sys.version}\narguments: {list(arguments)}\n\n{trace}")
        hint += f" in {Path(name)}"
    except OSError:
        sys.stderr.write(trace)
    console.print_error(f"internal error: {trace.strip().splitlines()[-1]}", hint)
    return 1


def main() -> None:
    """Run the command line of this process."""
    console.ignore_closed_pipes()
    sys.exit(run(sys.argv[1:]))
