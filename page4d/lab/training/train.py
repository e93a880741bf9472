"""Supervised training of a network, from a request to a folder with weights."""

import copy
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import page4d
from page4d.errors import UsageError
from page4d.io.atomic import parse_pin
from page4d.lab.training import engine
from page4d.lab.training import state as states
from page4d.lab.training.config import SYNTHETIC, TrainConfig, TrainedPart
from page4d.lab.training.data import CurriculumStep, Source, advance, feed_batches, open_training_sources, plan_step
from page4d.lab.training.engine import Loop, LoopContext, RunRequest, Session, StepResult
from page4d.lab.training.logs import TrainObserver, read_metrics, summarize_metrics
from page4d.lab.training.losses import losses, motion_losses
from page4d.lab.training.processes import SINGLE_PROCESS, ProcessGroup
from page4d.lab.training.schedule import Budget, Position
from page4d.lab.training.state import TrainCheckpoint, TrainingState
from page4d.lab.training.validation import Validator, find_ood_limits
from page4d.networks.conditioning import Conditioning
from page4d.networks.layers.block import Block
from page4d.networks.network import ViewTimeNetwork
from page4d.networks.ood import OODLimits
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.weights.store import COMMERCIAL, save_network

Forward = Callable[..., NetworkOutput]


def take_step(
    forward: Forward,
    state: TrainingState,
    step: CurriculumStep,
    batches: Sequence[GroundTruth],
    precision: torch.dtype,
    group: ProcessGroup = SINGLE_PROCESS,
) -> StepResult:
    """Descend the mean loss of the batches of all processes by one step, unless its gradient is not finite.

    The losses that are returned are those of this process.
    """
    network = state.network
    if network.config.metric_focal is not None:
        step = replace(step, intrinsics_known=True)  # without them depth is not in metres
    trained: nn.Module = network
    criterion: Callable[[NetworkOutput, GroundTruth], Mapping[str, Tensor]] = partial(
        losses, config=state.config.loss
    )
    if step.trained_part is TrainedPart.MATCHES and network.matching is not None:
        forward = partial(_find_matches, network)
    elif step.trained_part is TrainedPart.MOTION:
        assert network.motion_head is not None
        trained, criterion = network.motion_head, motion_losses

    def measure(truth: GroundTruth) -> Mapping[str, Tensor]:
        return criterion(predict(forward, truth, step, precision), truth)

    with _training_only(network, trained):
        result = engine.optimize(state, step, batches, measure, group)
    if result.moved:
        state.average.update(network, step.step)
    return result


@contextmanager
def _training_only(network: nn.Module, part: nn.Module) -> Iterator[None]:
    """Freeze all parameters outside a part of the network."""
    trained = set(part.parameters())
    frozen = [value for value in network.parameters() if value.requires_grad and value not in trained]
    for value in frozen:
        value.requires_grad_(False)
    try:
        yield
    finally:
        for value in frozen:
            value.requires_grad_(True)


def prepare_forward(network: ViewTimeNetwork, config: TrainConfig) -> Forward:
    """Return the network with recomputed activations, or compiled, as configured."""
    if config.checkpoint_blocks:
        for module in network.modules():
            if isinstance(module, Block):
                module.forward = partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]
    return torch.compile(network) if config.compile else network


def predict(forward: Forward, truth: GroundTruth, step: CurriculumStep, precision: torch.dtype) -> NetworkOutput:
    """Run the network with the known inputs of the step."""
    conditioning = Conditioning(
        world_to_camera=truth.cameras.world_to_camera if step.poses_known else None,
        intrinsics=truth.cameras.intrinsics if step.intrinsics_known else None,
    )
    masks = truth.dynamic.to(truth.images.dtype) if step.masks_known and truth.dynamic is not None else None
    with engine.autocast(truth.images.device, precision):
        return forward(truth.images, masks, conditioning=conditioning)


def _find_matches(
    network: ViewTimeNetwork, images: Tensor, masks: Tensor | None, *, conditioning: Conditioning
) -> NetworkOutput:
    """Compute only encoder and matching, without masks and conditioning."""
    del masks, conditioning
    return network.find_matches(images)


_BUDGET_OPTIONS = "⟨until_seconds⟩ or ⟨until_samples⟩"
_MEMORY_HINT = "use fewer images_per_batch with more accumulation, or checkpoint_blocks, in the configuration"

_MIN_WORKERS = 4
"""Number of workers that any machine can run."""

LICENCE = "Apache-2.0"
"""Licence of weights that were trained from random ones."""


@dataclass(frozen=True, kw_only=True)
class TrainRequest(RunRequest):
    """A new run of `config`, or a resumed one.

    A new run starts from `weights`, whose hash must be `sha256` if that is given, or its encoder from
    `encoder_weights`. None takes the value of the run that is continued. `workers` replaces that of the
    configuration. `half` writes the weights as fp16.
    """

    config: TrainConfig | None = None
    weights: str | Path | None = None
    sha256: str | None = None
    encoder_weights: Path | None = None
    budget: Budget | None = None
    workers: int | None = None
    half: bool = True

    def __post_init__(self) -> None:
        parse_pin(self.weights, self.sha256)
        if self.weights is not None and self.resume:
            raise UsageError("⟨weights⟩ starts a run, but one is to be continued", "leave ⟨weights⟩ out")
        if self.encoder_weights is not None and self.weights is not None:
            raise UsageError("⟨weights⟩ brings its own encoder", "leave ⟨encoder_weights⟩ out")
        if self.encoder_weights is not None and self.resume:
            raise UsageError("⟨encoder_weights⟩ start a run, but one is to be continued", "leave them out")
        if self.config is None and not self.resume:
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
    if request.workers is not None:
        _check_workers(request.workers)
    with engine.open_session(request, observer, stop) as session:
        state, budget = _start(request, session)
        sources = open_training_sources(state.config)
        with engine.open_context(session, state, budget, _MEMORY_HINT) as context:
            SupervisedTraining(state, context, sources).train()
        if session.group.is_main:
            _finish(state, session, half=request.half)
        session.group.wait()
    return TrainOutcome(position=state.position, weights=session.folder.weights)


class SupervisedTraining(Loop[TrainingState, CurriculumStep, GroundTruth]):
    """Trains a network on batches with ground truth."""

    def __init__(self, state: TrainingState, context: LoopContext, sources: Sequence[Source]) -> None:
        super().__init__(state, context)
        self._sources = sources
        self._validator = Validator(state.config.evaluation, context.device, context.precision)
        self._validated_step = -1
        self._forward = prepare_forward(state.network, state.config)

    def _begin(self) -> None:
        """Log the baselines of a new run, unless it was stopped before its first step and has them."""
        position, context = self.state.position, self._context
        if position.samples == 0 and context.group.is_main and not read_metrics(context.folder.metrics):
            self._log("baselines", {"step": position.step, "figures": self._validator.baselines()})

    def _advance(self, position: Position) -> Position:
        return advance(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> CurriculumStep:
        return plan_step(self.state.config, position, self._context.group.size)

    def _feed(
        self, steps: Iterator[CurriculumStep], batches: Sequence[int]
    ) -> Generator[tuple[CurriculumStep, list[GroundTruth]]]:
        return feed_batches(self._sources, steps, batches, self._context.device, self.state.config.workers)

    def _take(self, step: CurriculumStep, batches: list[GroundTruth]) -> StepResult:
        return take_step(self._forward, self.state, step, batches, self._context.precision, self._context.group)

    def _validate(self, *, finished: bool) -> None:
        """Validate the EMA network if it is due, at most once per step."""
        position, config = self.state.position, self.state.config.evaluation
        is_due = finished or (config.every_steps > 0 and position.step % config.every_steps == 0)
        if not is_due or self._validated_step == position.step or not self._context.group.is_main:
            return
        self._validated_step = position.step
        metrics = self._validator.validate(self.state.average.network)
        progress = {"step": position.step, "samples": position.samples, "seconds": position.seconds}
        self._log("evaluation", {**progress, "figures": metrics})
        self._context.observer.evaluation(position.step, metrics)


def release_weights(
    state: TrainingState,
    path: Path,
    metrics: Sequence[Mapping[str, Any]],
    *,
    limits: OODLimits | None,
    processes: int,
    half: bool,
) -> None:
    """Write the EMA weights; `half` stores them as fp16. `metrics` are the lines of the run's metrics file.

    With `limits`, `reconstruct` warns of out-of-distribution footage.

    Raises:
        OutputError: if the file cannot be written.
    """
    network = copy.deepcopy(state.average.network)
    position = state.position
    metadata = {
        "licence": state.history.get("licence", LICENCE),
        **({COMMERCIAL: state.history[COMMERCIAL]} if COMMERCIAL in state.history else {}),
        "description": f"{state.config.model_name} trained on {position.samples} samples",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "command": _command(position, processes),
        "training": _replayed(state.config, position).to_json(),
        "seeds": f"run {state.config.seed}; scenes of training have even seeds, held-out scenes odd ones",
        "samples": str(position.samples),
        "steps": str(position.step),
        "curve": json.dumps(summarize_metrics(metrics), sort_keys=True),
        **({} if limits is None else {"domain": limits.to_json()}),
        **{f"history_{name}": text for name, text in state.history.items()},
    }
    save_network(network.half() if half else network, path, metadata)


def _start(request: TrainRequest, session: Session) -> tuple[TrainingState, Budget]:
    """Build or restore the state, with the settings of the request."""
    device, budget = session.device, request.budget
    if request.resume:
        stored, budget = engine.find_resumed(
            session.folder, TrainCheckpoint, lambda _: request.budget, _BUDGET_OPTIONS
        )
        state = states.resume(stored, device, request.config)
    else:
        assert request.config is not None
        if request.weights is None:
            state = states.begin(request.config, device, request.encoder_weights)
        else:
            state = states.begin_from_weights(request.config, request.weights, device, request.sha256)
    assert budget is not None
    requested = {"workers": request.workers, "precision": request.precision}
    changes: dict[str, Any] = {name: value for name, value in requested.items() if value is not None}
    state.config = replace(state.config, **changes)
    _check_workers(state.config.workers)
    return state, budget


def _check_workers(workers: int) -> None:
    """Refuse more processes than this machine can run at once."""
    most = max(_MIN_WORKERS, 2 * (os.cpu_count() or 1))
    if workers > most:
        raise UsageError(
            f"{workers} workers on a machine with {os.cpu_count()} CPU cores", f"give ⟨workers⟩ up to {most}"
        )


def _finish(state: TrainingState, session: Session, *, half: bool) -> None:
    """Write weights. Only synthetic sources have held-out scenes on which limits can be fitted."""
    folder, metrics = session.folder, read_metrics(session.folder.metrics)
    limits: OODLimits | None = None
    if all(source.path == SYNTHETIC for source in state.config.sources):
        limits = find_ood_limits(state.average.network, state.config.evaluation, session.device)
    release_weights(state, folder.weights, metrics, limits=limits, processes=session.group.size, half=half)


def _command(position: Position, processes: int) -> str:
    """Return the command that reproduces the weights from the configuration under "training"."""
    start = "page4d" if processes == 1 else f"torchrun --nproc-per-node {processes} -m page4d_cli"
    return f"{start} train --config TRAINING.json --until-samples {position.samples} --out RUN"


def _replayed(config: TrainConfig, position: Position) -> TrainConfig:
    """Return the configuration with the starts of stages and decay in samples, as they happened."""
    starts = position.stage_starts
    stages = [replace(stage, start_sample=start) for stage, start in zip(config.stages, starts, strict=False)]
    return replace(config, stages=tuple(stages), decay_start_sample=position.decay_start)
