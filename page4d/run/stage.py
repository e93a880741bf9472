"""The protocol of the stages of a run, from the predictions of a chunk to the files of its instants."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import JsonValue
from torch import Tensor

from page4d.errors import Notice
from page4d.geometry.camera import Cameras
from page4d.io.json_records import FileModel, Model
from page4d.output.instant import InstantFiles, InstantOptions
from page4d.output.record import InstantMotion
from page4d.records import Predictions
from page4d.run.state_records import FinishedChunk
from page4d.stereo.consensus import FusedBackground

Decision = TypeVar("Decision", bound=FileModel)


def chunk_name(name: str, index: int) -> str:
    """Return the name of a stage's tensors of a chunk."""
    return f"{name}_{index:05d}"


@dataclass(frozen=True, kw_only=True)
class History:
    """What a run has recorded: decisions of stages by name, finished chunks, and a reader of tensors."""

    states: Mapping[str, JsonValue]
    finished: Sequence[FinishedChunk]
    read_tensors: Callable[[str], dict[str, Tensor]]

    def state(self, name: str, model: type[Model]) -> Model:
        """Return the recorded decision of a stage."""
        return model.model_validate(self.states[name])


@dataclass(frozen=True, kw_only=True)
class Instant:
    """One instant on its way through the stages: its predictions [1, 1, V, H, W], and what stages found.

    At `index` 0 stages decide what holds for the whole run. `chunk` holds all final instants of its chunk, cleaned.
    `before` and `after` are the cameras [V] of the neighbouring instants at the pixels of the original images, None
    where they are unknown. `background` is that of static cameras, None without one; a point of the clouds needs
    `min_views`.
    """

    index: int
    predictions: Predictions
    chunk: Predictions
    before: Cameras | None
    after: Cameras | None
    background: FusedBackground | None = None
    min_views: int = 0
    options: InstantOptions | None = None
    motion: InstantMotion | None = None
    notices: tuple[Notice, ...] = ()
    written: InstantFiles = field(default_factory=InstantFiles)

    def with_notices(self, *notices: Notice) -> "Instant":
        """Return it with more notices for the user."""
        return replace(self, notices=(*self.notices, *notices))


class Stage(ABC, Generic[Decision]):
    """A stage of a run, which instants pass one by one.

    `decided` is what holds for the whole run from its first instant on: it is kept in the state of the run under the
    stage's `name` and restored from there, and its fields that `run.json` has are written there. `decision` is its
    type. `seconds` names the timing that a stage counts to.
    """

    name: ClassVar[str]
    seconds: ClassVar[str] = "write"
    decision: ClassVar[type[FileModel]] = FileModel
    decided: Decision | None = None

    def restore(self, history: History) -> None:
        """Restore the decision of an interrupted run; that of an unfinished first chunk is made anew."""
        if history.finished and self.name in history.states:
            self.decided = cast("Decision", history.state(self.name, self.decision))

    @abstractmethod
    def __call__(self, instant: Instant) -> Instant:
        """Process an instant."""
