"""Options and output that `page4d train` and `page4d pretrain` share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from page4d_cli import console, options
from page4d_cli.console import recorded_stop
from page4d_cli.progress import observed_training

if TYPE_CHECKING:
    from page4d.lab.training.logs import TrainObserver
    from page4d.lab.training.schedule import Position

TRAINING = "Training"
LENGTH = "Length"
RUNNING = "Hardware"

Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run.", rich_help_panel=options.OUTPUT)]
Sha256 = Annotated[
    str | None,
    typer.Option(
        "--sha256",
        metavar="HEX",
        help="Refuse initial weights whose SHA-256 is another one.",
        rich_help_panel=TRAINING,
    ),
]
LearningRate = Annotated[
    float | None, typer.Option(metavar="R", help="Peak learning rate.", rich_help_panel=TRAINING)
]
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed.", rich_help_panel=TRAINING)]
UntilSeconds = Annotated[
    float | None, typer.Option(metavar="S", help="Training time in seconds.", rich_help_panel=LENGTH)
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in the folder; with another length, from the checkpoint before the decay.",
        rich_help_panel=LENGTH,
    ),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Device of the computation.", rich_help_panel=RUNNING)
]
Precision = Annotated[str | None, typer.Option(metavar="NAME", help="auto, fp32 or bf16.", rich_help_panel=RUNNING)]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Number of CPU threads.", rich_help_panel=RUNNING)]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.", rich_help_panel=options.OUTPUT)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the configuration and exit.", rich_help_panel=options.OUTPUT)
]


@contextmanager
def running(threads: int | None, quiet: bool) -> Iterator[tuple["TrainObserver", Callable[[], int | None]]]:
    """Yield an observer, and a function that returns the number of the signal that requests a stop, if any."""
    import torch

    from page4d.lab.training.optimizers import is_main_process

    if threads is not None:
        torch.set_num_threads(threads)
    with recorded_stop() as stop, observed_training(quiet or not is_main_process()) as observer:
        yield observer, lambda: stop.number


def report(
    position: "Position", files: Mapping[str, object], text: str, *, as_json: bool, quiet: bool, **extra: object
) -> None:
    """Print the end of a run, in the main process only, as JSON or as a line of text."""
    from page4d.lab.training.optimizers import is_main_process

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
        console.print_text(text)
