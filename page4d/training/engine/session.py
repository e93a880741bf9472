"""Start and end of a run: its folder, processes and logs, and what a resumed run continues."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from page4d.choices import Precision
from page4d.errors import MemoryBudgetError, UsageError, counted
from page4d.inference.memory_budget import is_out_of_memory
from page4d.io.atomic import claim_output, write_bytes_atomic
from page4d.io.config import config_to_json
from page4d.training.engine.checkpoint import AnyCheckpoint, RunFolder
from page4d.training.engine.distributed import ProcessGroup, local_device, open_process_group
from page4d.training.engine.first_step import FirstStep
from page4d.training.engine.logs import Log, MetricsFile, SilentObserver, TensorBoardLog, TrainObserver
from page4d.training.engine.loop import LoopContext
from page4d.training.engine.step import LoopState
from page4d.training.engine.step_plan import Budget, is_finished
from page4d.weights.loading import choose_device, choose_precision


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run in the folder `out`: a new one, or the one in it. `precision` replaces that of its configuration."""

    out: Path
    resume: bool = False
    precision: Precision | None = None
    device: str = "auto"
    tensorboard: bool = False


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run with its locked folder and connected processes; `stop` returns the number of a signal once one came."""

    folder: RunFolder
    device: torch.device
    group: ProcessGroup
    observer: TrainObserver
    stop: Callable[[], int | None]
    tensorboard: bool
    first_step: FirstStep

    @contextmanager
    def open_context(self, state: LoopState, budget: Budget, memory_hint: str) -> Iterator[LoopContext]:
        """Write the configuration and open the logs while the body trains.

        Raises:
            CapabilityError: if TensorBoard is requested and not installed.
            OutputError: if a file cannot be written.
            MemoryBudgetError: if the body runs out of memory; `memory_hint` is the advice.
        """
        self.group.wait()
        logs = self._open_logs(state) if self.group.is_main else []
        try:
            yield LoopContext(
                folder=self.folder,
                budget=budget,
                device=self.device,
                precision=choose_precision(state.config.precision, self.device),
                group=self.group,
                logs=logs,
                observer=self.observer if self.group.is_main else SilentObserver(),
                stop=self.stop,
                first_step=self.first_step,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryBudgetError(f"out of memory: {error}", memory_hint) from error
        finally:
            for log in logs:
                log.close()

    def _open_logs(self, state: LoopState) -> list[Log]:
        write_bytes_atomic(self.folder.config, (config_to_json(state.config, indent=1) + "\n").encode())
        logs: list[Log] = [MetricsFile(self.folder.metrics, state.position.step)]
        if self.tensorboard:
            logs.append(TensorBoardLog(self.folder.tensorboard, state.position.step))
        return logs


@contextmanager
def open_session(request: RunRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> Iterator[Session]:
    """Lock the folder of a run and join its other processes.

    Raises:
        UsageError: if the folder holds a run that is not to be resumed.
        OutputError: if another run writes to the folder.
    """
    device, folder = local_device(choose_device(request.device)), RunFolder(request.out)
    with ExitStack() as stack:
        stack.enter_context(_flushing_denormals())
        first_step = FirstStep(stop)
        stack.enter_context(first_step.watched())
        group = stack.enter_context(open_process_group(device))
        if group.is_main:
            stack.enter_context(claim_output(folder.path))
        if folder.checkpoint.exists() and not request.resume:
            raise UsageError(f"'{folder.path}' holds a run already", "pass --resume, or choose another folder")
        yield Session(
            folder=folder,
            device=device,
            group=group,
            observer=observer,
            stop=stop,
            tensorboard=request.tensorboard,
            first_step=first_step,
        )


def find_resumed(
    folder: RunFolder,
    read: Callable[[Path], AnyCheckpoint],
    requested: Callable[[AnyCheckpoint], Budget | None],
    options: str,
) -> tuple[AnyCheckpoint, Budget]:
    """Return the checkpoint to resume and its budget; with another budget, the one before the learning rate decay.

    `requested` returns the budget that the user asks for; `options` names the options that set it.

    Raises:
        UsageError: if there is no budget, or if the run has reached its end.
        InputError: if there is no checkpoint.
    """
    stored = read(folder.checkpoint)
    budget = requested(stored) or stored.budget
    if budget is None:
        raise UsageError(f"'{folder.checkpoint}' has no budget", f"pass {options}")
    if stored.position.decay_start is not None and budget != stored.budget:
        stored = read(folder.stable)
    if is_finished(stored.position, budget):
        raise UsageError(
            f"the run in '{folder.path}' is finished: {counted(stored.position.samples, 'sample')}",
            f"give a larger {options} to continue from before the learning rate decay",
        )
    return stored, budget


@contextmanager
def _flushing_denormals() -> Iterator[None]:
    """Flush denormals to zero: gradients contain many, and a CPU takes about 40 times as long for each."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
