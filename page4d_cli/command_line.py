"""The subcommands of `page4d`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer

import page4d
from page4d_cli import console
from page4d_cli.commands.benchmark import benchmark
from page4d_cli.commands.convert_weights import convert_weights
from page4d_cli.commands.doctor import doctor
from page4d_cli.commands.evaluate import evaluate
from page4d_cli.commands.export import export
from page4d_cli.commands.held_out import held_out
from page4d_cli.commands.inspect_scene import inspect_scene
from page4d_cli.commands.inspect_shapes import inspect_shapes
from page4d_cli.commands.pretrain import pretrain
from page4d_cli.commands.reconstruct import reconstruct
from page4d_cli.commands.register import register
from page4d_cli.commands.report import report
from page4d_cli.commands.synthesize import synthesize
from page4d_cli.commands.train import train
from page4d_cli.commands.view import view
from page4d_cli.commands.weights import app as weights_app
from page4d_cli.usage_errors import ParserError, described

_BOXES_FROM = 80
"""Smallest width of a terminal for help in boxes, which truncate names and values on a narrower one."""

app = typer.Typer(
    name="page4d",
    help="4D reconstruction of synchronized videos: points, depth and cameras for every instant.",
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
    view,
    inspect_scene,
    register,
    synthesize,
    export,
    evaluate,
    report,
    train,
    pretrain,
    held_out,
    benchmark,
    convert_weights,
    inspect_shapes,
    doctor,
):
    _text = _help(_command)
    app.command(_command.__name__.replace("_", "-"), help=_text, short_help=_text.partition("\n")[0])(_command)

for _command_info in weights_app.registered_commands:
    assert _command_info.callback is not None
    _command_info.help = _help(_command_info.callback)
    _command_info.short_help = _command_info.help.partition("\n")[0]
app.add_typer(weights_app, short_help=weights_app.info.help)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; without arguments it is the help and 2.

    Raises:
        UsageError: if the command line cannot be parsed.
    """
    given = list(arguments) or ["--help"]
    wants_help = not {"-h", "--help"}.isdisjoint(given)
    layout = _help_layout() if wants_help else {}
    try:
        code = app(args=given, prog_name="page4d", standalone_mode=False, **layout)
    except ParserError as error:
        names = [str(command.name) for command in app.registered_commands] + [str(weights_app.info.name)]
        raise described(error, given, names) from error
    return int(code or 0) if arguments else 2


def _help_layout() -> dict[str, Any]:
    """Choose help in boxes, or plain text on a narrow terminal."""
    from rich.console import Console

    width = Console().width
    app.rich_markup_mode = "rich" if width >= _BOXES_FROM else None
    return {} if width >= _BOXES_FROM else {"terminal_width": width}
