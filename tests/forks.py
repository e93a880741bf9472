"""Processes forked from one that has imported page4d: new interpreters import it anew, for seconds each."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "page4d.batch.jobs", "page4d.lab.training.train", "page4d.run.reconstruct", "page4d_cli.command_line"]
)


class Fork(NamedTuple):
    """A process whose output goes to two files."""

    process: BaseProcess
    out: Path
    err: Path

    def line(self, index: int) -> str:
        """Wait for a line of standard output."""
        while (text := self.out.read_text()).count("\n") <= index:
            assert self.process.is_alive(), self.err.read_text()
            time.sleep(0.02)
        return text.splitlines()[index]

    def ended(self, signal: int | None = None) -> tuple[int | None, str, str]:
        """Send a signal if one is given, wait for the end, and return exit code, standard output and errors."""
        if signal is not None:
            os.kill(self.process.pid, signal)
        self.process.join(timeout=280)
        return self.process.exitcode, self.out.read_text(), self.err.read_text()


def forked(
    folder: Path, call: Callable[..., object], *arguments: object, environment: Mapping[str, str] = os.environ
) -> Fork:
    """Start a function at module level in a new process; `folder` gets its output."""
    out, err = folder / "fork.out", folder / "fork.err"
    for path in (out, err):
        path.write_text("")
    process = CONTEXT.Process(target=_run, args=(out, err, dict(environment), call, arguments))
    process.start()
    return Fork(process, out, err)


def _run(
    out: Path, err: Path, environment: dict[str, str], call: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    call(*arguments)


def command(words: list[str]) -> None:
    """Run a command line as its program does."""
    from page4d_cli.app import main

    sys.argv = ["page4d", *words]
    main()
