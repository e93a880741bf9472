"""The process of the `page4d` command: signals, and the exit code of every error.

Commands are imported when signals are handled, since imports take most of the time of a short command.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from page4d.errors import InterruptedRunError, Page4DError, Stopped, UsageError
from page4d_cli import console
from page4d_cli.stopping import StopRequest, raising_stop

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
    """Refuse a value without a visible character, which paths would take for the current folder."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        name, equals, value = argument.partition("=") if argument.startswith("--") else (before, "=", argument)
        place = f"the value of {name}" if name.startswith("-") else "an argument"
        if equals and not value.strip():
            raise UsageError(f"{place} is empty", "give a value; a variable of the shell may not be set")
        if "\0" in value:
            raise UsageError(f"{place} contains a NUL character", "give a name without it")


def _run_app(arguments: list[str]) -> int:
    from page4d_cli.command_line import run_command

    try:
        code = run_command(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    console.flush_results()
    return code


def _describe(error: BaseException, stop: StopRequest, arguments: Sequence[str]) -> Failure:
    try:
        from page4d.io.exhaustion import known_error

        known = known_error(error)
        if isinstance(known, InterruptedRunError):
            return _in_options(known)
        if isinstance(error, KeyboardInterrupt | Stopped) or stop.number is not None:
            # Also where a library has replaced the exception of the signal by its own.
            return _in_options(InterruptedRunError(signal_number=stop.number or signal.SIGINT))
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
        _write_plainly("error: interrupted\nhint:  repeat the command\n")
        code = 130
    sys.exit(code)
