"""What a run tells while it goes on, and what adds up to be told at its end."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from page4d.scene.records import Level, Notice


class Observer(Protocol):
    """Hears what a run does."""

    def notice(self, notice: Notice) -> None:
        """Hear something that the user should know."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Hear that so many of the instants are written."""
        ...


class SilentObserver:
    """Ignores everything; `run.json` has the warnings."""

    def notice(self, notice: Notice) -> None:
        """Ignore a notice."""

    def progress(self, done: int, total: int) -> None:
        """Ignore progress."""


class Journal:
    """Passes everything on to an observer, and keeps the warnings and the seconds of every stage for `run.json`."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.warnings: list[str] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def continue_from(self, warnings: list[str], seconds: dict[str, float]) -> None:
        """Take up what an interrupted run had to tell."""
        self.warnings.extend(warnings)
        for stage, spent in seconds.items():
            self.seconds[stage] += spent

    def notice(self, notice: Notice) -> None:
        """Pass a notice on; a warning is kept once."""
        if notice.level is Level.WARNING and notice.text not in self.warnings:
            self.warnings.append(notice.text)
        self._observer.notice(notice)

    def progress(self, done: int, total: int) -> None:
        """Pass progress on."""
        self._observer.progress(done, total)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time that the body takes to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - begin
