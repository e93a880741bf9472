"""Pretraining of an encoder, from folders of videos to a folder with weights and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from page4d.errors import UsageError
from page4d.pretraining.config import PretrainConfig
from page4d.pretraining.figures import draw_pictures
from page4d.pretraining.footage import open_footage
from page4d.pretraining.pretraining_state import PretrainState, begin, read_checkpoint, resume
from page4d.pretraining.release import release_encoder
from page4d.pretraining.run import Pretraining
from page4d.scene.files import DEFAULT_MAX_MEGAPIXELS
from page4d.training.engine.logs import read_metrics
from page4d.training.engine.progress import TrainObserver
from page4d.training.engine.session import RunRequest, Session, find_resumed, open_session
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised.curve import draw_losses

_BUDGET_OPTIONS = "--steps or --until-seconds"
_MEMORY_HINT = "use a smaller --batch, or a smaller encoder"
_CURVES = {
    "mae": {"total": "squared error of masked patches"},
    "dino": {
        "total": "cross entropy",
        "teacher_entropy": "entropy of the teacher, nats",
        "teacher_information": "mutual information of class and image, nats",
    },
}
_MIN_INFORMATION = 0.1
"""Mutual information of class and image in nats below which a teacher has collapsed."""

_DETAIL = 1.5
"""Short side of the frames in memory, in sides of a large crop."""


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
            raise UsageError("a new run without a scene", "give folders of videos, or --resume")
        if not self.resume and self.steps is None and self.seconds is None:
            raise UsageError("a run without an end", f"pass {_BUDGET_OPTIONS}")
        if not all(limit is None or 0 < limit < float("inf") for limit in (self.steps, self.seconds)):
            raise UsageError(f"--steps {self.steps}, --until-seconds {self.seconds}", "give positive numbers")


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
    with open_session(request, observer, stop) as session:
        state, budget = _start(request, session)
        footage = open_footage(
            [Path(scene) for scene in state.config.scenes],
            round(_DETAIL * state.config.crops.size),
            allow_damaged=request.allow_damaged,
            max_megapixels=request.max_megapixels,
        )
        with session.open_context(state, budget, _MEMORY_HINT) as context:
            Pretraining(state, context, footage).train()
        folder, metrics = session.folder, []
        if session.group.is_main:
            metrics = read_metrics(folder.metrics)
            release_encoder(state, folder.encoder, metrics)
            draw_losses(metrics, folder.curve, _CURVES[state.config.method.kind])
            draw_pictures(state.task, footage, state.config, folder.path)
            _warn_of_collapse(metrics, observer)
        session.group.wait()
    losses = [line["losses"]["total"] for line in metrics if line["kind"] == "step"]
    return PretrainOutcome(position=state.position, loss=losses[-1] if losses else None, encoder=folder.encoder)


def _warn_of_collapse(metrics: Sequence[Mapping[str, Any]], observer: TrainObserver) -> None:
    """Report a teacher whose output hardly depends on the image."""
    steps = [line["losses"] for line in metrics if line["kind"] == "step"]
    information = steps[-1].get("teacher_information") if steps else None
    if information is not None and information < _MIN_INFORMATION:
        observer.message(
            f"the teacher has collapsed: its classes carry {information:.2f} nats of information about the image; "
            "try a lower --learning-rate, a larger --batch, more varied footage or --method mae"
        )


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
        stored, budget = find_resumed(
            session.folder, read_checkpoint, lambda stored: requested(stored.config), _BUDGET_OPTIONS
        )
        state = resume(stored, session.device)
    else:
        assert request.config is not None
        state, budget = begin(request.config, session.device), requested(request.config)
    assert budget is not None
    if request.precision is not None:
        state.config = replace(state.config, precision=request.precision)
    return state, budget
