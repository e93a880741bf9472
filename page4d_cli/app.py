"""The `page4d` command: which commands there are, and how every failure ends."""

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

import page4d
from page4d.errors import Page4DError
from page4d_cli import console
from page4d_cli.commands.doctor import doctor
from page4d_cli.commands.inspect_scene import inspect_scene
from page4d_cli.commands.reconstruct import reconstruct
from page4d_cli.commands.synthesize import synthesize

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
app.command()(doctor)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error ends in two lines on stderr."""
    try:
        app(args=list(arguments), standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except Page4DError as error:
        console.print_error(error.message, error.hint)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away, as with `| head`: nobody is left to be told. Python must not try either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        console.print_error("interrupted", "")
        return 130
    except Exception:
        # The last resort: a bug of ours, written down for the report.
        return _report_bug()
    return 0


def _report_bug() -> int:
    handle, name = tempfile.mkstemp(prefix="page4d-error-", suffix=".log", text=True)
    with os.fdopen(handle, "w") as log:
        log.write(f"page4d {page4d.__version__}, Python {sys.version}\narguments: {sys.argv[1:]}\n\n")
        traceback.print_exc(file=log)
    last = traceback.format_exc().strip().splitlines()[-1]
    console.print_error(f"internal error: {last}", f"this is a bug of page4d; please report it with {Path(name)}")
    return 1


def main() -> None:
    """Enter from the shell."""
    sys.exit(run(sys.argv[1:]))
