"""Processes that a library started and did not end."""

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 5.0
"""Time in which killed processes must end."""


@contextmanager
def ended_if_it_fails() -> Iterator[None]:
    """Kill the processes that the body started, and theirs, if it raises. Without /proc nothing is killed."""
    before = descendants()
    try:
        yield
    except BaseException:
        until = time.monotonic() + _SECONDS
        while (started := descendants() - before) and time.monotonic() < until:
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):  # not a child of this process, or already reaped
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.02)
        raise


def descendants(process: int | None = None) -> set[int]:
    """Return the children of a process, by default of this one, their children, and so on; needs /proc."""
    children = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything; state and parent follow. Source: proc(5).
            state, parent = status.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended
        if state != "Z":
            children[int(parent)].append(int(status.parent.name))
    found: set[int] = set()
    waiting = [os.getpid() if process is None else process]
    while waiting:
        for child in children[waiting.pop()]:
            found.add(child)
            waiting.append(child)
    return found
