"""Progress of a run: notices and instants for an observer, warnings and timings for `run.json`."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from page4d.options import in_options
from page4d.scene.records import Level, Notice


class Observer(Protocol):
    """Receives the notices and the progress of a run."""

    def notice(self, notice: Notice) -> None:
        """Receive a message to the user."""
        ...

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Receive the number of instants written so far, or the steps done of a stage before the first instant."""
        ...


class SilentObserver:
    """Ignores everything; `run.json` holds the warnings."""

    def notice(self, notice: Notice) -> None:
        """Ignore a notice."""

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Ignore progress."""


_INTERVAL_S = 15.0
"""Seconds between lines of progress."""


class StderrObserver:
    """Writes notices, but no informational ones, and a line of progress at intervals to stderr."""

    def __init__(self) -> None:
        self._written_at = time.monotonic()

    def notice(self, notice: Notice) -> None:
        """Write a warning or a step."""
        if notice.level is not Level.INFO:
            self._write(f"{'warning: ' if notice.level is Level.WARNING else ''}{notice.text}")

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Write the instants done, or the steps of a stage, unless a line was written a moment ago."""
        if time.monotonic() - self._written_at >= _INTERVAL_S or (done == total and not stage):
            self._write(f"{stage} {done}/{total}" if stage else f"{done}/{total} instants")

    def _write(self, text: str) -> None:
        self._written_at = time.monotonic()
        if sys.stderr is not None:  # as in an application without a console
            sys.stderr.write(f"page4d: {text}\n")


ON_STDERR = StderrObserver()


class Journal:
    """Forwards everything to an observer, and collects warnings and seconds per stage for `run.json`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.progress = observer.progress
        self.warnings: list[str] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add run times to stages; those of 0 s are none."""
        for stage, spent in seconds.items():
            if spent:
                self.seconds[stage] += spent

    def notice(self, notice: Notice) -> None:
        """Forward a notice; a warning is collected once."""
        text = in_options(notice.marked_text)
        if notice.level is Level.WARNING and text not in self.warnings:
            self.warnings.append(text)
        self._observer.notice(notice)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the run time of the body to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - begin
