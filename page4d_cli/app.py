"""The process of the `page4d` command: signals, and the exit code of every error.

The subcommands of `page4d`. Errors of the parser of command lines in the two lines of all errors.

Commands are imported when signals are handled, since imports take most of the time of a short command.
"""

import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import typer

import page4d
from page4d.errors import Page4DError, Stopped, UsageError, shortened
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
from page4d_cli.console import StopRequest, raising_stop

Failure = tuple[str, str, int]
"""Message, hint and exit code of an error."""

_NO_MEMORY: Failure = ("out of memory", "try a smaller --size, --chunk or --fps", 7)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; an error is printed as two lines on stderr."""
    stop = StopRequest()
    console.ignore_invalid_columns()
    try:
        with raising_stop(stop):
            os.getcwd()  # noqa: PTH109  MKL ends the process if the working folder was deleted
            _refuse_empty(arguments)
            return _run_app(list(arguments))
    except BaseException as error:
        message, hint, code = _describe(error, stop, arguments)
    # Outside the handler: the traceback keeps the memory of every frame.
    _print_error(message, hint)
    return code


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse a value without a visible character, which paths would take for the current folder.

    Raises:
        UsageError: naming the option.
    """
    from page4d.errors import UsageError

    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, equals, value = argument.partition("=") if argument.startswith("--") else (before, "=", argument)
        place = f"the value of {name}" if name.startswith("-") else "an argument"
        if equals and not value.strip():
            raise UsageError(f"{place} is empty", "give a value; a variable of the shell may not be set")
        if "\0" in value:
            raise UsageError(f"{place} contains a NUL character", "give a name without it")


def _run_app(arguments: list[str]) -> int:

    try:
        code = run_command(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    console.flush_results()
    return code


def _describe(error: BaseException, stop: StopRequest, arguments: Sequence[str]) -> Failure:
    """Return what to print about an error."""
    try:
        from page4d.errors import InterruptedRunError
        from page4d.io.limits import known_error

        known = known_error(error)
        if isinstance(known, InterruptedRunError):
            return _in_options(known)
        if isinstance(error, KeyboardInterrupt | Stopped) or stop.number is not None:
            # Also where a library has replaced the exception of the signal by its own.
            return "interrupted", "", 128 + (stop.number or signal.SIGINT)
        return _describe_bug(error, arguments) if known is None else _in_options(known)
    except MemoryError:
        return _NO_MEMORY
    except (ImportError, OSError) as failure:  # no module can be loaded any more
        return f"cannot start: {failure}", "raise the limits of this process, such as 'ulimit -n'", 6


def _in_options(error: Page4DError) -> Failure:
    from page4d.options import in_options

    return in_options(error.marked_message), in_options(error.marked_hint), error.exit_code


def _describe_bug(error: BaseException, arguments: Sequence[str]) -> Failure:
    """Write the trace of an internal error to a log file."""
    import tempfile
    import traceback

    import page4d

    trace = "".join(traceback.format_exception(error))
    hint = "this is a bug of page4d; please report it with the trace"
    try:
        handle, name = tempfile.mkstemp(prefix="page4d-error-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"page4d {page4d.__version__}, Python {sys.version}\narguments: {list(arguments)}\n\n{trace}")
        hint += f" in {name}"
    except OSError:
        sys.stderr.write(trace)
    return f"internal error: {trace.strip().splitlines()[-1]}", hint, 1


def _print_error(message: str, hint: str) -> None:
    """Print the two lines of an error; without colours if memory or files are short."""
    try:
        console.print_error(message, hint)
    except Exception:
        lines = [f"error: {message}", *([f"hint:  {hint}"] if hint else [])]
        _write_plainly("".join(f"{console.visible(line)}\n" for line in lines))


def _write_plainly(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


def main() -> None:
    """Run the command line of this process."""
    try:
        console.ignore_closed_pipes()
        code = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while Python shuts down
    except KeyboardInterrupt:
        _write_plainly("error: interrupted\n")
        code = 130
    sys.exit(code)


ParserError: type[Exception] = typer.BadParameter.__mro__[2]
"""ClickException, the base class of the parser's errors: of click, or of the copy in newer versions of typer."""

_LIMIT = 160


def described(error: Exception, arguments: Sequence[str], commands: Collection[str]) -> UsageError:
    """Return an error of the parser with the values at fault, and with the most similar names in the hint."""
    message = _with_value(" ".join(error.format_message().split()), error.__cause__)  # type: ignore[attr-defined]
    message, similar = _split(message)
    command = next((argument for argument in arguments if argument in commands), "")
    listed_by = f"'page4d {command} --help' lists the options" if command else "'page4d --help' lists the commands"
    suggestion = f"did you mean {similar}? " if similar else ""
    return UsageError(shortened(message.rstrip("."), _LIMIT), suggestion + listed_by)


def _split(message: str) -> tuple[str, str]:
    """Split off the names that resemble a misspelt one."""
    found = re.fullmatch(r"(.*?)\.? (?:\(Possible options: (.*)\)|Did you mean (.*)\?)", message)
    return (found[1], (found[2] or found[3]).replace("'", "")) if found else (message, "")


def _with_value(message: str, cause: BaseException | None) -> str:
    """Put the refused value into a message of pydantic, by which typer checks values."""
    details = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    value = shortened(str(details[0].get("input"))) if details else ""
    message = re.sub(r", unable to parse .*", "", message.replace("Value error, ", ""))
    return message.replace("Input should", f"'{value}' should") if value else message


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
