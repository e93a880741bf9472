"""The `page4d` command: which commands there are, and how every failure ends."""

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
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
    help="Synchronized videos in, a 4D reconstruction out: points, depth and cameras for every instant.",
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


app.command()(reconstruct)
app.command("inspect-scene")(inspect_scene)
app.command()(synthesize)
app.command()(evaluate)
app.command()(train)
app.command()(pretrain)
app.command("held-out")(held_out)
app.command()(benchmark)
app.command("convert-weights")(convert_weights)
app.command("inspect-shapes")(inspect_shapes)
app.command()(doctor)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error ends in two lines on stderr."""
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
        # The last resort: a bug of ours, written down for the report.
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
    """Enter from the shell."""
    console.survive_closed_pipes()
    sys.exit(run(sys.argv[1:]))
