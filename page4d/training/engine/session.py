"""What surrounds every run: its folder for one process group, its logs, and how it ends before its time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from page4d.errors import InterruptedRunError, MemoryBudgetError, UsageError
from page4d.inference.memory import is_out_of_memory
from page4d.io.atomic import claim_output, write_bytes_atomic
from page4d.training.engine.distributed import Team, open_team
from page4d.training.engine.logs import Log, MetricsFile, TensorBoardLog
from page4d.training.engine.run_folder import RunFolder
from page4d.training.engine.step_plan import Budget, Position, is_finished


class Stored(Protocol):
    """What a checkpoint of any kind of run says."""

    @property
    def position(self) -> Position:
        """Where the run stands."""
        ...

    @property
    def budget(self) -> Budget | None:
        """When it ends, if it says so."""
        ...


StoredRun = TypeVar("StoredRun", bound=Stored)


@contextmanager
def open_session(folder: RunFolder, device: torch.device, *, resume: bool) -> Iterator[Team]:
    """Join the other processes and keep all others out of the folder.

    Raises:
        UsageError: if the folder holds a run that is not to be resumed.
        OutputError: if another process writes to it.
    """
    with ExitStack() as stack:
        stack.enter_context(flushing_denormals())
        team = stack.enter_context(open_team(device))
        if team.leads:
            stack.enter_context(claim_output(folder.path))
        if folder.checkpoint.exists() and not resume:
            raise UsageError(f"'{folder.path}' holds a run already", "pass --resume, or choose another folder")
        yield team


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Let numbers below 1e-38 be zero: gradients are full of them, and a CPU takes some 40 times as long for each."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def find_resumed(
    read: Callable[[Path], StoredRun], folder: RunFolder, budget: Budget | None, ends: str
) -> tuple[StoredRun, Budget]:
    """Return where a run goes on; one whose rate has begun to fall goes back to before that for another budget.

    `ends` names the options that give a budget.

    Raises:
        UsageError: if nobody says when it ends.
        InputError: if there is no checkpoint.
    """
    stored = read(folder.checkpoint)
    budget = budget or stored.budget
    if budget is None:
        raise UsageError(f"'{folder.checkpoint}' does not say when the run ends", f"pass {ends}")
    if stored.position.decay_start is not None and budget != stored.budget:
        stored = read(folder.stable)
    return stored, budget


def check_unfinished(folder: RunFolder, position: Position, budget: Budget, ends: str) -> None:
    """Refuse to continue a run that has reached its end.

    Raises:
        UsageError: if it has.
    """
    if is_finished(position, budget):
        raise UsageError(
            f"the run in '{folder.path}' is finished: {position.samples} samples",
            f"give it more, and it goes on from before its rate fell: {ends}",
        )


def open_logs(folder: RunFolder, config: str, step: int, team: Team, *, tensorboard: bool) -> list[Log]:
    """Write down the configuration and open what the first process writes while it runs.

    Raises:
        CapabilityError: if TensorBoard is wanted and not installed.
        OutputError: if a file cannot be written.
    """
    if not team.leads:
        return []
    write_bytes_atomic(folder.config, (config + "\n").encode())
    logs: list[Log] = [MetricsFile(folder.metrics, step)]
    if tensorboard:
        logs.append(TensorBoardLog(folder.tensorboard, step))
    return logs


@contextmanager
def closing(logs: list[Log], less_memory: str) -> Iterator[None]:
    """Close the logs in the end, and say with advice where memory does not suffice.

    Raises:
        MemoryBudgetError: if it does not.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryBudgetError(f"out of memory: {error}", less_memory) from error
    finally:
        for log in logs:
            log.close()


def interrupted(folder: RunFolder, step: int, signal_number: int | None) -> InterruptedRunError:
    """Say where a stopped run stands."""
    return InterruptedRunError(
        f"interrupted after step {step}, which is saved in '{folder.checkpoint}'",
        "continue with --resume",
        signal_number or 15,
    )
