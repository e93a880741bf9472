"""Pretrain: one call from folders of videos to a folder with an encoder and pictures of what it has learned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from page4d.errors import UsageError
from page4d.pretraining.config import PretrainConfig
from page4d.pretraining.figures import draw_pictures
from page4d.pretraining.footage import Footage, open_footage
from page4d.pretraining.pretraining_state import PretrainState, begin, read_pretraining, resume
from page4d.pretraining.release import release_encoder
from page4d.pretraining.run import PretrainContext, Pretraining
from page4d.scene.files import DEFAULT_MAX_MEGAPIXELS
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
from page4d.training.supervised.curve import draw_losses
from page4d.weights.placement import Precision, choose_device, choose_precision

ENDS = "--steps or --until-seconds"
_LESS_MEMORY = "use a smaller --batch, or a smaller encoder"
_CURVES = {
    "mae": {"total": "squared error of hidden patches"},
    "dino": {
        "total": "cross entropy",
        "teacher_entropy": "entropy of the teacher, nats",
        "teacher_information": "what it tells of the image, nats",
    },
}
_LEAST_INFORMATION = 0.1
"""Nats that a teacher tells of an image, below which it has collapsed."""

_DETAIL = 1.5
"""Short side of the frames in memory, in sides of a large crop."""


@dataclass(frozen=True, kw_only=True)
class PretrainRequest:
    """A run in the folder `out`: a new one of `config`, or the one that is there.

    Whatever is None is taken as the run that is resumed has it. `precision` replaces that of the configuration.
    """

    out: Path
    config: PretrainConfig | None = None
    resume: bool = False
    steps: int | None = None
    seconds: float | None = None
    precision: Precision | None = None
    device: str = "auto"
    tensorboard: bool = False
    allow_damaged: bool = False
    max_megapixels: float = DEFAULT_MAX_MEGAPIXELS

    def __post_init__(self) -> None:
        if self.resume and self.config is not None:
            raise UsageError("a run that is resumed keeps what it learns", "leave the scenes and settings out")
        if not self.resume and (self.config is None or not self.config.scenes):
            raise UsageError("a new run without a scene", "give folders of videos, or --resume")
        if not self.resume and self.steps is None and self.seconds is None:
            raise UsageError("a run without an end", f"pass {ENDS}")
        if not all(limit is None or 0 < limit < float("inf") for limit in (self.steps, self.seconds)):
            raise UsageError(f"--steps {self.steps}, --until-seconds {self.seconds}", "give positive numbers")


@dataclass(frozen=True, kw_only=True)
class PretrainOutcome:
    """Where a finished run ended; `loss` is the mean of its last report."""

    steps: int
    samples: int
    seconds: float
    skipped: int
    loss: float | None
    encoder: Path


def encoder_file(folder: RunFolder) -> Path:
    """Return where a run leaves its encoder."""
    return folder.path / "encoder.safetensors"


def pretrain(request: PretrainRequest, observer: TrainObserver, stop: Callable[[], int | None]) -> PretrainOutcome:
    """Learn to the end of the budget and write the encoder; `stop` gives the number of a signal once one came.

    Raises:
        UsageError: for requests that contradict each other or what is in the folder.
        InputError: if a checkpoint or a video cannot be used.
        OutputError: if the folder cannot be written.
        InterruptedRunError: if the run was stopped; everything is saved.
    """
    device = own_device(choose_device(request.device))
    folder = RunFolder(request.out)
    with open_session(folder, device, resume=request.resume) as team:
        state, budget = _start(request, folder, team, device)
        check_unfinished(folder, state.position, budget, ENDS)
        precision = choose_precision(state.config.precision, device)
        footage = _open(request, state.config)
        team.wait()
        text = state.config.to_json(indent=1)
        logs = open_logs(folder, text, state.position.step, team, tensorboard=request.tensorboard)
        with closing(logs, _LESS_MEMORY):
            context = PretrainContext(
                folder=folder,
                budget=budget,
                device=device,
                precision=precision,
                team=team,
                logs=logs,
                observer=observer if team.leads else SilentObserver(),
                stop=lambda: stop() is not None,
                footage=footage,
            )
            finished = Pretraining(state, context).train()
        if not finished:
            raise interrupted(folder, state.position.step, stop())
        metrics = read_metrics(folder.metrics) if team.leads else []
        if team.leads:
            release_encoder(state, encoder_file(folder), metrics)
            draw_losses(metrics, folder.curve, _CURVES[state.config.method.kind])
            draw_pictures(state.learner, footage, state.config, folder.path)
            _warn_of_collapse(metrics, observer)
        team.wait()
    at = state.position
    losses = [line["losses"]["total"] for line in metrics if line["kind"] == "step"]
    return PretrainOutcome(
        steps=at.step,
        samples=at.samples,
        seconds=at.seconds,
        skipped=at.skipped,
        loss=losses[-1] if losses else None,
        encoder=encoder_file(folder),
    )


def _warn_of_collapse(metrics: Sequence[Mapping[str, Any]], observer: TrainObserver) -> None:
    """Say it if a teacher says the same of every image."""
    steps = [line["losses"] for line in metrics if line["kind"] == "step"]
    told = steps[-1].get("teacher_information") if steps else None
    if told is not None and told < _LEAST_INFORMATION:
        observer.message(
            f"the teacher tells images apart by {told:.2f} nats: it has collapsed, and the encoder is of little use; "
            "try a lower --learning-rate, a larger --batch, more varied footage or --method mae"
        )


def _start(
    request: PretrainRequest, folder: RunFolder, team: Team, device: torch.device
) -> tuple[PretrainState, Budget]:
    """Build or restore what learns, and say when it ends."""
    if request.resume:
        # Steps are counted in samples, of which the stored configuration says how many a step has.
        batch = read_pretraining(folder.checkpoint).config
        stored, budget = find_resumed(read_pretraining, folder, _budget(request, batch, team), ENDS)
        state = resume(stored, device)
    else:
        assert request.config is not None
        state = begin(request.config, device)
        asked = _budget(request, request.config, team)
        assert asked is not None
        budget = asked
    if request.precision is not None:
        state.config = replace(state.config, precision=request.precision)
    return state, budget


def _budget(request: PretrainRequest, config: PretrainConfig, team: Team) -> Budget | None:
    if request.steps is None and request.seconds is None:
        return None
    each = config.batch * config.accumulation * team.size
    return Budget(seconds=request.seconds, samples=None if request.steps is None else request.steps * each)


def _open(request: PretrainRequest, config: PretrainConfig) -> Footage:
    return open_footage(
        [Path(scene) for scene in config.scenes],
        round(_DETAIL * config.crops.size),
        allow_damaged=request.allow_damaged,
        max_megapixels=request.max_megapixels,
    )
