"""The training loop: from the start or resumption of a run, step by step, to the end of its budget."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from page4d.choices import Precision
from page4d.errors import InputError, InterruptedRunError, MemoryBudgetError, UsageError, counted
from page4d.io.atomic import claim_output, write_bytes_atomic
from page4d.io.json_records import config_to_json
from page4d.lab.training.checkpoint import AnyCheckpoint, RunFolder, RunState, write_checkpoint
from page4d.lab.training.logs import MetricsFile, SilentTrainingObserver, StepReport, TrainObserver
from page4d.lab.training.optimizers import set_rate
from page4d.lab.training.processes import ProcessGroup, local_device, open_process_group
from page4d.lab.training.schedule import Budget, PlannedStep, Position, after, is_finished, remaining_samples
from page4d.run.memory import is_out_of_memory
from page4d.weights.loading import choose_device, choose_precision
from page4d.weights.store import is_finite

Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Measurements of a step; `moved` is False if the gradient was not finite and the weights did not change."""

    losses: Mapping[str, float]
    gradient_norm: float
    moved: bool


def optimize(
    state: RunState,
    step: PlannedStep,
    batches: Sequence[Batch],
    losses: Callable[[Batch], Mapping[str, Tensor]],
    group: ProcessGroup,
) -> StepResult:
    """Descend the mean "total" loss over batches and processes by one step, unless its gradient is not finite.

    The losses that are returned are means over the batches of this process.
    """
    config, network = state.config, state.network
    torch.manual_seed((config.seed * 0x9E3779B1 + step.step) % 2**63)  # for dropout and the like
    set_rate(state.optimizer, step.rate)
    parts: dict[str, list[Tensor]] = {}
    for batch in batches:
        found = losses(batch)
        (found["total"] / len(batches)).backward()  # type: ignore[no-untyped-call]
        for name, value in found.items():
            parts.setdefault(name, []).append(value.detach().float())
    group.average_gradients(network)
    norm = clip_grad_norm_(network.parameters(), config.optimizer.max_gradient_norm)
    moved = bool(torch.isfinite(norm))
    if moved:
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    means = torch.stack([torch.stack(values).mean() for values in parts.values()]).tolist()
    return StepResult(losses=dict(zip(parts, means, strict=True)), gradient_norm=float(norm), moved=moved)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Return the context in which a forward pass runs in a precision."""
    return torch.autocast(device.type, dtype=precision, enabled=precision is not torch.float32)


_SPEED_WINDOW = 100
"""Steps over which the speed is measured."""

_MIN_SPEED_STEPS = 4
"""Steps that are too few to measure the speed."""

_FAILED_AT_END = 5
"""Steps without a finite gradient at the end of a run that make its result useless."""

State = TypeVar("State", bound=RunState)
Step = TypeVar("Step", bound=PlannedStep)


@dataclass(frozen=True, kw_only=True)
class Session:
    """A run with its locked folder and connected processes.

    `stop` is polled between steps; it returns the number of the signal that requests a stop, once one came.
    """

    folder: RunFolder
    device: torch.device
    group: ProcessGroup
    observer: TrainObserver
    stop: Callable[[], int | None]


@dataclass(frozen=True, kw_only=True)
class LoopContext(Session):
    """What a loop needs besides its state. Only the main process has a `log` and an observer that is not silent."""

    budget: Budget
    precision: torch.dtype
    log: MetricsFile | None


class Loop(ABC, Generic[State, Step, Batch]):
    """Trains until the budget is used or a stop is requested."""

    def __init__(self, state: State, context: LoopContext) -> None:
        self.state = state
        self._context = context
        self._planned = state.position
        self._stopping = False
        self._started = time.monotonic() - state.position.seconds
        self._saved = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SPEED_WINDOW)
        self._results: list[StepResult] = []
        self._skipped_in_a_row = 0
        self._first_step = state.position.step

    @abstractmethod
    def _advance(self, position: Position) -> Position:
        """Return the position with the curriculum stage and the decay that begin there."""

    @abstractmethod
    def _plan(self, position: Position) -> Step:
        """Return the step at a position."""

    @abstractmethod
    def _feed(self, steps: Iterator[Step], batches: Sequence[int]) -> Generator[tuple[Step, list[Batch]]]:
        """Yield every step with those of its batches that this process trains on."""

    @abstractmethod
    def _take(self, step: Step, batches: list[Batch]) -> StepResult:
        """Take a step, unless its gradient is not finite."""

    def _begin(self) -> None:
        """Prepare the first step."""

    def _validate(self, *, finished: bool) -> None:
        """Evaluate the network if it is due."""

    def train(self) -> None:
        """Train to the end of the budget and save.

        Raises:
            InterruptedRunError: if a stop was requested; everything is saved.
            UsageError: if too many consecutive steps have no finite gradient, or there is no time for any.
            InputError: if a source cannot be read.
            OutputError: if a file cannot be written.
        """
        state, context = self.state, self._context
        self._begin()
        batches = context.group.batches(state.config.accumulation * context.group.size)
        self._recent.append((self._seconds(), state.position.samples))
        with closing(self._feed(_Steps(self._next_step), batches)) as feed:
            for step, given in feed:
                if step.first_sample == self._planned.decay_start and context.group.is_main:
                    write_checkpoint(context.folder.stable, state, self._position(), context.budget)
                self._finish_step(step, self._take(step, given))
                if self._stopping:
                    break
        taken, failed = state.position.step - self._first_step, self._skipped_in_a_row
        if not taken and not self._stopping:
            raise UsageError(
                f"no step was complete after {self._seconds():.1f} s",
                "give more time, smaller batches or fewer scenes",
            )
        if failed and failed >= min(taken, _FAILED_AT_END):
            raise self._diverged(f"the last {failed} of {taken} steps had no finite gradient")
        self._save()
        if not is_finished(state.position, context.budget):
            raise InterruptedRunError(
                f"interrupted after step {state.position.step}, which is saved in '{context.folder.checkpoint}'",
                "continue with ⟨resume=True⟩",
                context.stop() or 15,
            )
        self._validate(finished=True)

    def _next_step(self) -> Step | None:
        """Plan the next step, which may be a few ahead of the training; None at the end or after a stop request."""
        context = self._context
        clock = (self._seconds(), self._samples_per_second())
        (seconds, speed), stop = context.group.synchronize(clock, context.stop() is not None, context.device)
        self._stopping = self._stopping or stop
        position = replace(self._planned, seconds=seconds, samples_per_second=speed)
        self._planned = position = self._advance(position)
        if self._stopping or is_finished(position, context.budget):
            return None
        step = self._plan(position)
        self._planned = after(position, step)
        return step

    def _position(self) -> Position:
        """Return the position of the training, with the stages and, once it has begun, the decay that are planned."""
        trained, planned = self.state.position, self._planned
        if planned.decay_start is not None and trained.samples <= planned.decay_start:
            planned = replace(planned, decay_start=None, decay_samples=0)
        return replace(
            planned,
            step=trained.step,
            samples=trained.samples,
            skipped=trained.skipped,
            seconds=self._seconds(),
            samples_per_second=self._samples_per_second(),
        )

    def _finish_step(self, step: Step, result: StepResult) -> None:
        state, config = self.state, self.state.config
        state.position = after(state.position, step)
        if result.moved:
            self._skipped_in_a_row = 0
        else:
            self._count_skipped(step)
        state.position = self._position()
        self._recent.append((self._seconds(), state.position.samples))
        self._results.append(result)
        if state.position.step % config.log_every_steps == 0:
            self._report(step)
        self._validate(finished=False)
        if config.save_every_seconds and time.monotonic() - self._saved >= config.save_every_seconds:
            self._save()

    def _count_skipped(self, step: Step) -> None:
        self._skipped_in_a_row += 1
        self.state.position = replace(self.state.position, skipped=self.state.position.skipped + 1)
        self._context.observer.message(f"step {step.step}: the gradient is not finite, the weights are unchanged")
        if self._skipped_in_a_row >= self.state.config.optimizer.max_skipped:
            raise self._diverged(
                f"{self._skipped_in_a_row} steps in a row had no finite gradient, the last one was step {step.step}"
            )

    def _diverged(self, found: str) -> UsageError:
        checkpoint = self._context.folder.checkpoint
        hint = "start again with a lower ⟨learning_rate⟩"
        if checkpoint.is_file():
            hint = (
                f"continue from '{checkpoint}' with ⟨resume=True⟩, ⟨config⟩ and a lower learning rate, or start again"
            )
        return UsageError(f"the training diverged: {found}", hint)

    def _report(self, step: Step) -> None:
        results, self._results = self._results, []
        position, speed = self.state.position, self._samples_per_second()
        left = remaining_samples(replace(position, samples_per_second=speed), self._context.budget)
        report = StepReport(
            step=position.step,
            samples=position.samples,
            seconds=position.seconds,
            samples_per_second=speed,
            eta_s=max(0.0, left / speed) if speed and left is not None else None,
            rate=step.rate,
            stage=position.stage_at(step.first_sample),
            gradient_norm=results[-1].gradient_norm,
            skipped=position.skipped,
            losses=_means(results),
        )
        self._log("step", vars(report))
        if self._context.group.is_main:
            self._context.observer.step(report)

    def _log(self, kind: str, values: Mapping[str, object]) -> None:
        if self._context.log is not None:
            self._context.log.write(kind, values)

    def _save(self) -> None:
        infinite = [name for name, value in self.state.network.named_parameters() if not is_finite(value)]
        if infinite:
            raise self._diverged(f"'{infinite[0]}' is not finite after step {self.state.position.step}")
        if self._context.group.is_main:
            write_checkpoint(self._context.folder.checkpoint, self.state, self._position(), self._context.budget)
        self._saved = time.monotonic()

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _samples_per_second(self) -> float:
        """Return the speed of the latest steps, or the stored one after a start; 0 if neither is known."""
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        if len(self._recent) <= _MIN_SPEED_STEPS:
            return self.state.position.samples_per_second
        return (last - first) / (end - start)


class _Steps(Iterator[Step]):
    """Steps as they are planned; the planning is asked again after the end, to notice late stop requests."""

    def __init__(self, plan: Callable[[], Step | None]) -> None:
        self._plan = plan

    def __next__(self) -> Step:
        if (step := self._plan()) is None:
            raise StopIteration
        return step


def _means(results: Sequence[StepResult]) -> dict[str, float]:
    """Average every loss over the steps that have it."""
    names = dict.fromkeys(name for result in results for name in result.losses)
    values = {name: [result.losses[name] for result in results if name in result.losses] for name in names}
    return {name: math.fsum(items) / len(items) for name, items in values.items()}


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run in the folder `out`: a new one, or the one in it. `precision` replaces that of its configuration."""

    out: Path
    resume: bool = False
    precision: Precision | None = None
    device: str = "auto"


@contextmanager
def open_context(session: Session, state: RunState, budget: Budget, memory_hint: str) -> Iterator[LoopContext]:
    """Write the configuration and open the log while the body trains.

    Raises:
        OutputError: if a file cannot be written.
        MemoryBudgetError: if the body runs out of memory; `memory_hint` is the advice.
    """
    session.group.wait()
    own = dict(vars(session))
    log = None
    if session.group.is_main:
        write_bytes_atomic(session.folder.config, (config_to_json(state.config, indent=1) + "\n").encode())
        log = MetricsFile(session.folder.metrics, state.position.step)
    else:
        own["observer"] = SilentTrainingObserver()
    try:
        precision = choose_precision(state.config.precision, session.device)
        yield LoopContext(**own, budget=budget, precision=precision, log=log)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise MemoryBudgetError(f"out of memory: {error}", memory_hint) from error
    finally:
        if log is not None:
            log.close()


@contextmanager
def open_session(request: RunRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> Iterator[Session]:
    """Lock the folder of a run and join its other processes.

    Raises:
        UsageError: if the folder holds a run that is not to be resumed.
        InputError: if there is no run to resume.
        OutputError: if another run writes to the folder.
    """
    device, folder = local_device(choose_device(request.device)), RunFolder(request.out)
    if request.resume and not folder.checkpoint.exists():
        raise InputError(
            f"there is no checkpoint '{folder.checkpoint}'", "give the folder of a run, or leave out ⟨resume=True⟩"
        )
    with ExitStack() as stack:
        torch.set_flush_denormal(True)  # gradients contain many; a CPU takes about 40 times as long for each
        stack.callback(torch.set_flush_denormal, False)
        group = stack.enter_context(open_process_group(device))
        if group.is_main:
            stack.enter_context(claim_output(folder.path))
        if folder.checkpoint.exists() and not request.resume:
            raise UsageError(f"'{folder.path}' holds a run already", "pass ⟨resume=True⟩, or choose another folder")
        yield Session(folder=folder, device=device, group=group, observer=observer, stop=stop)


def find_resumed(
    folder: RunFolder, kind: type[AnyCheckpoint], requested: Callable[[AnyCheckpoint], Budget | None], options: str
) -> tuple[AnyCheckpoint, Budget]:
    """Return the checkpoint to resume and its budget; with another budget, the one before the learning rate decay.

    `requested` returns the budget that the user asks for; `options` names the options that set it.

    Raises:
        UsageError: if the run has reached its end.
        InputError: if the checkpoint is damaged.
    """
    stored = kind.read(folder.checkpoint)
    budget = requested(stored) or stored.budget
    if stored.position.decay_start is not None and budget != stored.budget:
        stored = kind.read(folder.stable)
    if is_finished(stored.position, budget):
        raise UsageError(
            f"the run in '{folder.path}' is finished: {counted(stored.position.samples, 'sample')}",
            f"give a larger {options} to continue from before the learning rate decay",
        )
    return stored, budget
