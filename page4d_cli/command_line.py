"""The subcommands of `page4d`, and the layout of their help."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import page4d
from page4d.errors import UsageError
from page4d_cli import console, options
from page4d_cli.commands.benchmark import benchmark
from page4d_cli.commands.calibrate import calibrate
from page4d_cli.commands.convert_weights import convert_weights
from page4d_cli.commands.demo import demo
from page4d_cli.commands.doctor import doctor
from page4d_cli.commands.evaluate import evaluate
from page4d_cli.commands.export import export
from page4d_cli.commands.inspect_scene import inspect_scene
from page4d_cli.commands.inspect_shapes import inspect_shapes
from page4d_cli.commands.pretrain import pretrain
from page4d_cli.commands.reconstruct import reconstruct
from page4d_cli.commands.register import register
from page4d_cli.commands.report import report
from page4d_cli.commands.synthesize import synthesize
from page4d_cli.commands.train import train
from page4d_cli.commands.validate import validate
from page4d_cli.commands.view import view
from page4d_cli.commands.weights import app as weights_app
from page4d_cli.options import ParserError, described

GROUPS = {
    "Reconstruct and look": (demo, reconstruct, view, report, inspect_scene),
    "Cameras": (register, calibrate),
    "Exchange": (export, evaluate),
    "Networks": (weights_app, convert_weights, inspect_shapes, doctor),
    "Laboratory": (synthesize, train, pretrain, benchmark, validate),
}
"""The commands by heading of the help."""

_COLUMN = 26
"""Width of names and values of options in the help; longer ones have lines of their own."""

_MAX_WIDTH = 100


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    """Write lists under headings, with their second columns below each other."""
    width = min(max(len(name) for rows in sections.values() for name, _ in rows), _COLUMN)
    for heading, rows in sections.items():
        formatter.write(f"\n{typer.style(heading, bold=True)}:\n")
        for name, text in rows:
            text = text.replace("[default: ", "[default:\xa0")  # not broken between two lines
            lines = textwrap.wrap(text, formatter.width - width - 4, break_on_hyphens=False)
            first, *others = [line.replace("\xa0", " ") for line in lines] or [""]
            formatter.write(f"  {name}\n" if len(name) > width else f"  {name.ljust(width)}  {first}\n")
            rest = [first, *others] if len(name) > width else others
            formatter.write("".join(f"{' ' * (width + 4)}{line}\n" for line in rest))


class _Command(TyperCommand):
    """A command whose help has options below headings; those for experts are left out unless `--help-all` asks."""

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that refuses a second list of an option, which would replace the first.

        Raises:
            UsageError: naming the option.
        """
        parser: Any = super().make_parser(ctx)
        parse, lists = parser.parse_args, getattr(self.callback, "lists", ())

        def parse_args(args: list[str]) -> Any:
            values, rest, order = parse(args=args)
            for one in [] if ctx.resilient_parsing else order:
                if one.name in lists and order.count(one) > 1:
                    name = max(one.opts, key=len)
                    raise UsageError(f"{name} is given more than once", f"separate values by commas: {name} A,B")
            return values, rest, order

        parser.parse_args = parse_args
        return parser

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        hidden = () if options.ALL in ctx.meta else getattr(self.callback, "experts", ())
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or parameter.name in hidden:
                continue
            heading = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                heading, record = "Arguments", (record[0].partition(" <")[0], record[1])  # without its type
            elif parameter.name == "help":
                heading = options.GENERAL
            sections.setdefault(heading or "Options", []).append(record)
        _write_sections(formatter, {heading: rows for heading, rows in sections.items() if rows})


class _Group(TyperGroup):
    """A group whose help has the commands below headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  it replaces another one
        """Write the commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(heading, []).append((name, command.short_help or ""))
        _write_sections(formatter, sections)


app = typer.Typer(
    name="page4d",
    help="4D reconstruction of synchronized videos: points, depth and cameras for every instant.",
    cls=_Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH},
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


def _help(command: Callable[..., None]) -> dict[str, Any]:
    """Return the help of a command, its docstring, with one line per paragraph, which the terminal wraps."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return {"help": text, "short_help": text.partition("\n")[0].rstrip(".")}


for _heading, _members in GROUPS.items():
    for _member in _members:
        if isinstance(_member, typer.Typer):
            app.add_typer(
                _member, cls=_Group, short_help=str(_member.info.help).rstrip("."), rich_help_panel=_heading
            )
        else:
            _name = _member.__name__.replace("_", "-")
            app.command(_name, cls=_Command, rich_help_panel=_heading, **_help(_member))(_member)

for _command_info in weights_app.registered_commands:
    assert _command_info.callback is not None
    _command_info.cls = _Command
    vars(_command_info).update(_help(_command_info.callback))


_built = cache(get_command)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; without arguments it is the help and 2.

    Raises:
        UsageError: if the command line cannot be parsed.
    """
    given = list(arguments) or ["--help"]
    try:
        # Typer builds all commands anew for every call of `app`, which takes as long as a short command.
        code = _built(app)(args=given, prog_name="page4d", standalone_mode=False)
    except ParserError as error:
        names = [str(command.name) for command in app.registered_commands] + [str(weights_app.info.name)]
        raise described(error, given, names) from error
    return int(code or 0) if arguments else 2
