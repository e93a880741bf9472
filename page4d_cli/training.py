"""Options and output that `page4d train` and `page4d pretrain` share."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from page4d import choices
from page4d.errors import counted
from page4d.options import OUTPUT, Option
from page4d_cli import console
from page4d_cli.progress import TrainingProgress, displayed_progress
from page4d_cli.stopping import recorded_stop

if TYPE_CHECKING:
    from page4d.lab.training.logs import TrainObserver
    from page4d.lab.training.schedule import Position

TRAINING = "Training"
LENGTH = "Length"
RUNNING = "Hardware"

Out = Annotated[Path, Option("Folder of the run.", OUTPUT, "FOLDER")]
Sha256 = Annotated[str | None, Option("Refuse initial weights whose SHA-256 is another one.", TRAINING, "HEX")]
LearningRate = Annotated[float | None, Option("Peak learning rate.", TRAINING, "R")]
Seed = Annotated[int | None, Field(ge=0), Option("Random seed.", TRAINING)]
UntilSeconds = Annotated[float | None, Option("Training time in seconds.", LENGTH, "S")]
Resume = Annotated[
    bool, Option("Continue the run in the folder; with another length, from the checkpoint before the decay.", LENGTH)
]
Device = Annotated[str, Option("Device of the computation.", RUNNING, "auto|cpu|cuda|cuda:N")]
Precision = Annotated[choices.Precision | None, Option("auto, fp32 or bf16.", RUNNING, "NAME")]
Threads = Annotated[int | None, Field(ge=1, le=1024), Option("Number of CPU threads.", RUNNING)]
DryRun = Annotated[bool, Option("Print the configuration and exit.", OUTPUT)]


@contextmanager
def running(
    label: str, threads: int | None, quiet: bool
) -> Iterator[tuple["TrainObserver", Callable[[], int | None]]]:
    """Yield an observer, and a function that returns the number of the signal that requests a stop, if any."""
    import torch

    from page4d.lab.training.processes import is_main_process

    if threads is not None:
        torch.set_num_threads(threads)
    quiet = quiet or not is_main_process()
    with recorded_stop() as stop, displayed_progress(label, quiet=quiet) as display:
        yield TrainingProgress(display, quiet=quiet), lambda: stop.number


def report(
    position: "Position",
    files: Mapping[str, Path],
    unit: str,
    use: str,
    *,
    as_json: bool,
    quiet: bool,
    **extra: object,
) -> None:
    """Print the end of a run in the main process, as JSON or as text with the command that uses its last file."""
    from page4d.lab.training.processes import is_main_process

    if not is_main_process():
        return
    progress = {
        "steps": position.step,
        "samples": position.samples,
        "seconds": position.seconds,
        "skipped_steps": position.skipped,
    }
    if as_json:
        console.print_json({name: str(path) for name, path in files.items()} | progress | extra)
    elif not quiet:
        *_, file = files.values()
        done = f"{counted(position.samples, unit)} in {counted(position.step, 'step')}"
        console.print_text(f"trained on {done}: {file}")
        console.print_next(f"{use} {shlex.quote(str(file))}")
