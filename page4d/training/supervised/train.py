"""Supervised training of a network, from a request to a folder with weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from page4d.errors import UsageError
from page4d.models.ood import OODLimits
from page4d.training.engine.logs import read_metrics
from page4d.training.engine.progress import TrainObserver
from page4d.training.engine.run_folder import RunFolder
from page4d.training.engine.session import RunRequest, Session, find_resumed, open_session
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised import training_state as states
from page4d.training.supervised.checkpoint import read_checkpoint
from page4d.training.supervised.config import SYNTHETIC, TrainConfig
from page4d.training.supervised.curve import draw_curve
from page4d.training.supervised.release import release_weights
from page4d.training.supervised.run import SupervisedTraining
from page4d.training.supervised.sources import open_sources
from page4d.training.supervised.training_state import TrainingState
from page4d.training.validation.ood_limits import find_ood_limits

_BUDGET_OPTIONS = "--until-seconds or --until-samples"
_MEMORY_HINT = "use fewer images_per_batch with more accumulation, or checkpoint_blocks, in the configuration"


@dataclass(frozen=True, kw_only=True)
class TrainRequest(RunRequest):
    """A new run of `config`, a resumed one, or a `branch` of the run in another folder.

    A new run starts from `weights`, or its encoder from `encoder_weights`, if given. None takes the value of the run
    that is continued. `workers` replaces that of the configuration. `half` writes the weights as fp16.
    """

    config: TrainConfig | None = None
    weights: Path | None = None
    encoder_weights: Path | None = None
    branch: Path | None = None
    decay_only: bool = False
    budget: Budget | None = None
    workers: int | None = None
    half: bool = True

    def __post_init__(self) -> None:
        continues = self.resume or self.branch is not None
        if self.resume and self.branch is not None:
            raise UsageError("--resume and --branch contradict each other", "give one of them")
        if self.weights is not None and continues:
            raise UsageError("--weights starts a run, but one is to be continued", "leave --weights out")
        if self.encoder_weights is not None and self.weights is not None:
            raise UsageError("--weights brings its own encoder", "leave --encoder-weights out")
        if self.encoder_weights is not None and continues:
            raise UsageError("--encoder-weights start a run, but one is to be continued", "leave them out")
        if self.decay_only and self.branch is None:
            raise UsageError("--decay-only without a run to branch off", "pass --branch RUN")
        if self.config is None and not continues:
            raise UsageError("a new run without a configuration", "give a preset or a configuration")
        if self.budget is None and not self.resume:
            raise UsageError("a run without an end", f"pass {_BUDGET_OPTIONS}")


@dataclass(frozen=True, kw_only=True)
class TrainOutcome:
    """End of a finished run."""

    position: Position
    weights: Path


def train(request: TrainRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> TrainOutcome:
    """Train to the end of the budget and write the weights; `stop` returns the number of a signal once one came.

    Raises:
        UsageError: for requests that contradict each other or the run in the folder.
        InputError: if a checkpoint or a source cannot be used.
        OutputError: if the folder cannot be written.
        InterruptedRunError: if the run was stopped; everything is saved.
    """
    with open_session(request, observer, stop) as session:
        state, budget = _start(request, session)
        sources = open_sources(state.config)
        with session.open_context(state, budget, _MEMORY_HINT) as context:
            SupervisedTraining(state, context, sources).train()
        if session.group.is_main:
            _finish(state, session, half=request.half)
        session.group.wait()
    return TrainOutcome(position=state.position, weights=session.folder.weights)


def _start(request: TrainRequest, session: Session) -> tuple[TrainingState, Budget]:
    """Build or restore the state, with the settings of the request."""
    device, budget = session.device, request.budget
    if request.resume:
        stored, budget = find_resumed(session.folder, read_checkpoint, lambda _: request.budget, _BUDGET_OPTIONS)
        state = states.resume(stored, device, request.config)
    elif request.branch is not None:
        origin = read_checkpoint(RunFolder(request.branch).checkpoint)
        state = states.branch(origin, device, request.config, decay_only=request.decay_only)
    else:
        assert request.config is not None
        if request.weights is None:
            state = states.begin(request.config, device, request.encoder_weights)
        else:
            state = states.begin_from_weights(request.config, request.weights, device)
    assert budget is not None
    requested = {"workers": request.workers, "precision": request.precision}
    changes: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
    state.config = replace(state.config, **changes)
    return state, budget


def _finish(state: TrainingState, session: Session, *, half: bool) -> None:
    """Write weights and chart. Only synthetic sources have held-out scenes on which limits can be fitted."""
    folder, metrics = session.folder, read_metrics(session.folder.metrics)
    limits: OODLimits | None = None
    if all(source.path == SYNTHETIC for source in state.config.sources):
        limits = find_ood_limits(state.average.network, state.config.evaluation, session.device)
    release_weights(state, folder.weights, metrics, limits=limits, processes=session.group.size, half=half)
    draw_curve(metrics, folder.curve)
