"""Train: one call from what is wanted to a folder with weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from page4d.errors import UsageError
from page4d.models.ood import OODLimits
from page4d.training.engine.distributed import Team, own_device
from page4d.training.engine.logs import read_metrics
from page4d.training.engine.progress import SilentObserver, TrainObserver
from page4d.training.engine.run_folder import RunFolder
from page4d.training.engine.session import (
    check_unfinished,
    closing,
    find_resumed,
    interrupted,
    open_logs,
    open_session,
)
from page4d.training.engine.step_plan import Budget
from page4d.training.supervised import training_state as states
from page4d.training.supervised.captures import CaptureSource
from page4d.training.supervised.checkpoint import read_checkpoint
from page4d.training.supervised.config import SYNTHETIC, TrainConfig
from page4d.training.supervised.curve import draw_curve
from page4d.training.supervised.release import release_weights
from page4d.training.supervised.run import Run, RunContext
from page4d.training.supervised.sources import Source, SyntheticSource
from page4d.training.supervised.training_state import RunState
from page4d.training.validation.ood_limits import find_ood_limits
from page4d.weights.placement import Precision, choose_device, choose_precision

_ENDS = "--until-seconds or --until-samples"
_LESS_MEMORY = "use fewer images_per_batch with more accumulation, or checkpoint_blocks, in the configuration"


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A run in the folder `out`: a new one of `config`, `resume`d, or a branch off the run in another folder.

    A new run starts from `weights` if they are given, or its encoder from `encoder_weights`. Whatever is None is that
    of the run that is continued. `workers` and `precision` replace those of the configuration. `half` writes the
    weights as fp16.
    """

    out: Path
    config: TrainConfig | None = None
    weights: Path | None = None
    encoder_weights: Path | None = None
    resume: bool = False
    branch: Path | None = None
    decay_only: bool = False
    budget: Budget | None = None
    workers: int | None = None
    precision: Precision | None = None
    device: str = "auto"
    tensorboard: bool = False
    half: bool = True

    def __post_init__(self) -> None:
        if self.resume and self.branch is not None:
            raise UsageError("--resume and --branch contradict each other", "give one of them")
        if self.weights is not None and (self.resume or self.branch is not None):
            raise UsageError("--weights starts a run, but one is to be continued", "leave --weights out")
        if self.encoder_weights is not None and self.weights is not None:
            raise UsageError("--weights brings its own encoder", "leave --encoder-weights out")
        if self.encoder_weights is not None and (self.resume or self.branch is not None):
            raise UsageError("--encoder-weights start a run, but one is to be continued", "leave them out")
        if self.decay_only and self.branch is None:
            raise UsageError("--decay-only without a run to branch off", "pass --branch RUN")
        if self.config is None and not self.resume and self.branch is None:
            raise UsageError("a new run without a configuration", "give a preset or a configuration")
        if self.budget is None and not self.resume:
            raise UsageError("a run without an end", "pass --until-seconds or --until-samples")


@dataclass(frozen=True, kw_only=True)
class TrainOutcome:
    """Where a finished run ended."""

    steps: int
    samples: int
    seconds: float
    skipped: int
    weights: Path


def train(request: TrainRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> TrainOutcome:
    """Train to the end of the budget and write the weights; `stop` gives the number of a signal once one came.

    Raises:
        UsageError: for requests that contradict each other or what is in the folder.
        InputError: if a checkpoint or a source cannot be used.
        OutputError: if the folder cannot be written.
        InterruptedRunError: if the run was stopped; everything is saved.
    """
    device = own_device(choose_device(request.device))
    folder = RunFolder(request.out)
    with open_session(folder, device, resume=request.resume) as team:
        state, budget = _start(request, folder, device)
        check_unfinished(folder, state.position, budget, _ENDS)
        team.wait()
        precision, sources = choose_precision(state.config.precision, device), _open_sources(state.config)
        text = state.config.to_json(indent=1)
        logs = open_logs(folder, text, state.position.step, team, tensorboard=request.tensorboard)
        with closing(logs, _LESS_MEMORY):
            context = RunContext(
                folder=folder,
                budget=budget,
                device=device,
                precision=precision,
                team=team,
                sources=sources,
                logs=logs,
                observer=observer if team.leads else SilentObserver(),
                stop=lambda: stop() is not None,
            )
            finished = Run(state, context).train()
        if not finished:
            raise interrupted(folder, state.position.step, stop())
        if team.leads:
            _finish(request, folder, state, team, device)
        team.wait()
    at = state.position
    return TrainOutcome(
        steps=at.step, samples=at.samples, seconds=at.seconds, skipped=at.skipped, weights=folder.weights
    )


def _start(request: TrainRequest, folder: RunFolder, device: torch.device) -> tuple[RunState, Budget]:
    """Build or restore what is trained, with the settings that were asked for."""
    state, budget = _resume(request, folder, device) if request.resume else (_begin(request, device), request.budget)
    assert budget is not None
    asked = {"workers": request.workers, "precision": request.precision}
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    state.config = replace(state.config, **changes)
    return state, budget


def _begin(request: TrainRequest, device: torch.device) -> RunState:
    if request.branch is not None:
        origin = read_checkpoint(RunFolder(request.branch).checkpoint)
        return states.branch(origin, device, request.config, decay_only=request.decay_only)
    assert request.config is not None
    if request.weights is None:
        return states.begin(request.config, device, request.encoder_weights)
    return states.begin_from_weights(request.config, request.weights, device)


def _resume(request: TrainRequest, folder: RunFolder, device: torch.device) -> tuple[RunState, Budget]:
    stored, budget = find_resumed(read_checkpoint, folder, request.budget, _ENDS)
    return states.resume(stored, device, request.config), budget


def _open_sources(config: TrainConfig) -> list[Source]:
    """Open everything that the configuration trains on, in its order.

    Raises:
        InputError: if a folder is no capture with truth.
    """
    return [
        SyntheticSource(config.seed) if source.path == SYNTHETIC else CaptureSource(Path(source.path), config.seed)
        for source in config.sources
    ]


def _finish(request: TrainRequest, folder: RunFolder, state: RunState, team: Team, device: torch.device) -> None:
    """Write what a finished run hands out; captures of a user's own have no scenes held out that show a domain."""
    metrics = read_metrics(folder.metrics)
    domain: OODLimits | None = None
    if all(source.path == SYNTHETIC for source in state.config.sources):
        domain = find_ood_limits(state.average.network, state.config.evaluation, device)
    release_weights(state, folder.weights, metrics, domain=domain, processes=team.size, half=request.half)
    draw_curve(metrics, folder.curve)
