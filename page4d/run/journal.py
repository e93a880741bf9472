"""The journal of a run: notices and instants for an observer, warnings and timings for `run.json`."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from page4d.errors import Level, Notice, Observer
from page4d.options import in_options


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
