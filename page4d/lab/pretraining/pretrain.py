"""Pretraining of an encoder, from folders of videos to a folder with weights and pictures."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import page4d
from page4d.errors import UsageError
from page4d.io.input_files import DEFAULT_MAX_MEGAPIXELS
from page4d.lab.pretraining.config import PretrainConfig
from page4d.lab.pretraining.data import Crops, Footage, open_footage, open_pool, read_crops
from page4d.lab.pretraining.mae import MAEConfig
from page4d.lab.pretraining.profiles import profile_dino, profile_mae
from page4d.lab.pretraining.tasks import PretrainStep, PretrainTask, build_task
from page4d.lab.training import engine
from page4d.lab.training.checkpoint import Checkpoint, RunState, restored_state
from page4d.lab.training.engine import Loop, LoopContext, RunRequest, Session, StepResult
from page4d.lab.training.logs import TrainObserver, read_metrics, summarize_metrics
from page4d.lab.training.optimizers import build_optimizer, check_training_memory, restore_optimizer
from page4d.lab.training.schedule import MAX_SAMPLES, Budget, Position, begin_decay, fraction_done, rate_at
from page4d.options import in_options
from page4d.weights.store import save_tensors, specs_of


@dataclass(frozen=True, kw_only=True)
class PretrainCheckpoint(Checkpoint):
    """A pretraining run at one position."""

    config: PretrainConfig
    modules: Mapping[str, Mapping[str, Tensor]]

    FILE_FORMAT, COMMAND = "pretraining 2", PretrainConfig.COMMAND
    READERS = {"config": PretrainConfig.from_json}  # noqa: RUF012


@dataclass(kw_only=True)
class PretrainState(RunState):
    """State of pretraining; the optimized network is that of the task."""

    config: PretrainConfig
    task: PretrainTask

    checkpoint = PretrainCheckpoint

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides position, budget and optimizer."""
        modules = {name: module.state_dict() for name, module in self.task.modules().items()}
        return {"config": self.config.to_json(), "modules": modules}


def begin(config: PretrainConfig, device: torch.device) -> PretrainState:
    """Start from random weights.

    Raises:
        MemoryBudgetError: if weights or a batch do not fit into memory.
    """
    _check_memory(config, device)
    task = build_task(config, device)
    optimizer = build_optimizer(task.network.train(), config.optimizer)
    return PretrainState(config=config, task=task, network=task.network, optimizer=optimizer)


def _check_memory(config: PretrainConfig, device: torch.device) -> None:
    """Refuse a run whose weights and gradients, or whose outputs of all blocks for a batch, do not fit."""
    crops, batch = config.crops, config.batch
    size = (crops.size, crops.size)
    if isinstance(config.method, MAEConfig):
        profile = profile_mae(config.method, batch=batch, size=size)
    else:
        small = {"small_crops": crops.num_small, "small_side": crops.small_size}
        profile = profile_dino(config.method, batch=batch, size=size, **small)
    hint = "use a smaller ⟨batch⟩, ⟨size⟩ or ⟨encoder⟩"
    check_training_memory(2 * profile.weight_bytes, profile.activation_bytes, device, hint)


def resume(checkpoint: PretrainCheckpoint, device: torch.device) -> PretrainState:
    """Continue from a checkpoint.

    Raises:
        InputError: if the checkpoint does not fit its own configuration.
    """
    state = begin(checkpoint.config, device)
    with restored_state():
        for name, module in state.task.modules().items():
            module.load_state_dict(checkpoint.modules[name])
        restore_optimizer(state.optimizer, checkpoint.optimizer)
    state.position = checkpoint.position
    return state


_BUDGET_OPTIONS = "⟨steps⟩ or ⟨until_seconds⟩"
_MEMORY_HINT = "use a smaller ⟨batch⟩, or a smaller encoder"
_MIN_INFORMATION = 0.1
"""Mutual information of class and image in nats below which a teacher has collapsed."""

_DETAIL = 1.5
"""Short side of the frames in memory, in sides of a large crop."""

LICENCE = "that of the footage's owner: these weights were learned from it"


@dataclass(frozen=True, kw_only=True)
class PretrainRequest(RunRequest):
    """A new run of `config`, or a resumed one. The budget is `steps`, `seconds`, or that of the resumed run."""

    config: PretrainConfig | None = None
    steps: int | None = None
    seconds: float | None = None
    allow_damaged: bool = False
    max_megapixels: float = DEFAULT_MAX_MEGAPIXELS

    def __post_init__(self) -> None:
        if self.resume and self.config is not None:
            raise UsageError("a run that is resumed keeps its configuration", "leave the scenes and settings out")
        if not self.resume and (self.config is None or not self.config.scenes):
            raise UsageError("a new run without a scene", "give folders of videos, or ⟨resume=True⟩")
        if not self.resume and self.steps is None and self.seconds is None:
            raise UsageError("a run without an end", f"pass {_BUDGET_OPTIONS}")
        if self.steps is not None and not 0 < self.steps <= MAX_SAMPLES:
            raise UsageError(f"a run of {self.steps:g} steps", f"give ⟨steps⟩ from 1 to {MAX_SAMPLES:,}")
        if self.seconds is not None:
            Budget(seconds=self.seconds)


@dataclass(frozen=True, kw_only=True)
class PretrainOutcome:
    """End of a finished run; `loss` is the mean of its last report."""

    position: Position
    loss: float | None
    encoder: Path


def pretrain(request: PretrainRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> PretrainOutcome:
    """Train to the end of the budget and write the encoder; `stop` returns the number of a signal once one came.

    Raises:
        UsageError: for requests that contradict each other or the run in the folder.
        InputError: if a checkpoint or a video cannot be used.
        OutputError: if the folder cannot be written.
        InterruptedRunError: if the run was stopped; everything is saved.
    """
    with engine.open_session(request, observer, stop) as session:
        state, budget = _start(request, session)
        footage = open_footage(
            [Path(scene) for scene in state.config.scenes],
            round(_DETAIL * state.config.crops.size),
            allow_damaged=request.allow_damaged,
            max_megapixels=request.max_megapixels,
        )
        with engine.open_context(session, state, budget, _MEMORY_HINT) as context:
            Pretraining(state, context, footage).train()
        folder, metrics = session.folder, []
        if session.group.is_main:
            metrics = read_metrics(folder.metrics)
            release_encoder(state, folder.encoder, metrics)
            _warn_of_collapse(metrics, observer)
        session.group.wait()
    losses = [line["losses"]["total"] for line in metrics if line["kind"] == "step"]
    return PretrainOutcome(position=state.position, loss=losses[-1] if losses else None, encoder=folder.encoder)


class Pretraining(Loop[PretrainState, PretrainStep, Crops]):
    """Trains an encoder on crops."""

    def __init__(self, state: PretrainState, context: LoopContext, footage: Footage) -> None:
        super().__init__(state, context)
        self._footage = footage

    def _advance(self, position: Position) -> Position:
        return begin_decay(position, self.state.config, self._context.budget)

    def _plan(self, position: Position) -> PretrainStep:
        config = self.state.config
        return PretrainStep(
            step=position.step,
            first_sample=position.samples,
            batch_size=config.batch,
            num_batches=config.accumulation * self._context.group.size,
            rate=rate_at(config, position),
            done=fraction_done(position, self._context.budget),
        )

    def _feed(
        self, steps: Iterator[PretrainStep], batches: Sequence[int]
    ) -> Generator[tuple[PretrainStep, list[Crops]]]:
        config = self.state.config
        rows, columns = (config.crops.size // side for side in config.encoder.patch)
        patches = rows * columns if isinstance(config.method, MAEConfig) else 0
        with open_pool(self._footage, config.seed, frames=config.pool_frames, repeats=config.repeats) as pool:
            read = partial(read_crops, pool, config.crops, config.seed, patches, device=self._context.device)
            for step in steps:
                yield step, [read(step.samples(batch)) for batch in batches]

    def _take(self, step: PretrainStep, batches: list[Crops]) -> StepResult:
        result = engine.optimize(self.state, step, batches, self._losses, self._context.group)
        self.state.task.after_step(step, self._context.group, moved=result.moved)
        return result

    def _losses(self, crops: Crops) -> Mapping[str, Tensor]:
        with engine.autocast(self._context.device, self._context.precision):
            return self.state.task.losses(crops)


def release_encoder(state: PretrainState, path: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Write the encoder in float32; the metadata name folders of the user without their paths.

    Raises:
        OutputError: if the file cannot be written.
    """
    position, config = state.position, state.config
    names = tuple(Path(scene).name for scene in config.scenes)
    frozen = replace(config, scenes=names, decay_start_sample=position.decay_start)
    tensors = state.task.encoder.state_dict()
    metadata = {
        "licence": LICENCE,
        "description": f"a ViT pretrained by {config.method.kind} on {position.samples} crops of {', '.join(names)}",
        "made_by": f"page4d {page4d.__version__}, torch {torch.__version__}",
        "training": frozen.to_json(),
        "samples": str(position.samples),
        "steps": str(position.step),
        "loss": json.dumps(summarize_metrics(metrics)["loss"]),
    }
    save_tensors(path, config.encoder, metadata, specs_of(tensors), tensors.__getitem__)


def _warn_of_collapse(metrics: Sequence[Mapping[str, Any]], observer: TrainObserver) -> None:
    """Report a teacher whose output hardly depends on the image."""
    steps = [line["losses"] for line in metrics if line["kind"] == "step"]
    information = steps[-1].get("teacher_information") if steps else None
    if information is not None and information < _MIN_INFORMATION:
        text = (
            f"the teacher has collapsed: its classes carry {information:.2f} nats of information about the image; "
            "try a lower ⟨learning_rate⟩, a larger ⟨batch⟩, more varied footage or ⟨method=mae⟩"
        )
        observer.message(in_options(text))


def _start(request: PretrainRequest, session: Session) -> tuple[PretrainState, Budget]:
    """Build or restore the state, with the settings of the request."""

    def requested(config: PretrainConfig) -> Budget | None:
        if request.steps is None and request.seconds is None:
            return None
        samples_per_step = config.batch * config.accumulation * session.group.size
        samples = None if request.steps is None else request.steps * samples_per_step
        return Budget(seconds=request.seconds, samples=samples)

    budget: Budget | None
    if request.resume:
        stored, budget = engine.find_resumed(
            session.folder, PretrainCheckpoint, lambda stored: requested(stored.config), _BUDGET_OPTIONS
        )
        state = resume(stored, session.device)
    else:
        assert request.config is not None
        state, budget = begin(request.config, session.device), requested(request.config)
    assert budget is not None
    if request.precision is not None:
        state.config = replace(state.config, precision=request.precision)
    return state, budget
