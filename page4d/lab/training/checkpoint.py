"""Files of a run and its checkpoints, replaced atomically, and the moving average (EMA) of its weights.

Checkpoints are read without executing code from them.
"""

import copy
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from page4d.errors import InputError, shortened
from page4d.io.atomic import open_atomic, output_error
from page4d.io.exhaustion import is_exhausted, is_memory_error
from page4d.lab.training.schedule import MAX_SAMPLES, Budget, Position, RunConfig

_POSITION = TypeAdapter(Position)

_DAMAGED = (RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError, AssertionError, struct.error)
"""Errors of torch on files that were damaged or changed by hand."""


class RunFolder:
    """The folder of a run, with the paths of its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics = path / "config.json", path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.pt"
        self.stable = path / "stable.pt"
        """Checkpoint before the learning rate decay, from which a run with a longer budget continues."""

        self.weights = path / "weights.safetensors"
        """EMA weights of a supervised run."""

        self.encoder = path / "encoder.safetensors"
        """Encoder of a pretraining run."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run at one position.

    It holds no state of random generators: every step and sample has its own seed.
    """

    position: Position
    optimizer: dict[str, Any]
    budget: Budget

    FILE_FORMAT: ClassVar[int | str]
    COMMAND: ClassVar[str]
    """Command that writes it."""

    READERS: ClassVar[Mapping[str, Callable[[str], Any]]]
    """Parsers of its configurations by name."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write_checkpoint` wrote, into memory of the CPU.

        Raises:
            InputError: if the file is damaged or of another kind.
        """
        hint = f"give the folder of a run of page4d {cls.COMMAND}"
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, UnpicklingError, *_DAMAGED) as error:
            if is_exhausted(error) or is_memory_error(error):
                raise
            raise InputError(f"'{path}' is damaged or no checkpoint", hint) from error
        try:
            if content["format"] != cls.FILE_FORMAT:
                found = shortened(str(content["format"]))
                raise InputError(f"'{path}' has format {found}, this command reads {cls.FILE_FORMAT}", hint)
            position = _POSITION.validate_python(content["position"])
            _check_position(position)
            parts = {"history": dict(content.get("history", {})), "position": position}
            parts |= {"budget": Budget(**content["budget"])}
            parts |= {name: read(content[name]) for name, read in cls.READERS.items()}
            return cls(**{part.name: (content | parts)[part.name] for part in fields(cls)})
        except (KeyError, TypeError, ValidationError, ValueError) as error:
            raise InputError(f"'{path}' is damaged or no checkpoint: {error}", hint) from error


AnyCheckpoint = TypeVar("AnyCheckpoint", bound=Checkpoint)


@dataclass(kw_only=True)
class RunState(ABC):
    """State of a run that steps change: the parameters of `network` are optimized."""

    config: RunConfig
    network: nn.Module
    optimizer: Optimizer
    position: Position = field(default_factory=Position)

    checkpoint: ClassVar[type[Checkpoint]]
    """What its checkpoints are read as."""

    @abstractmethod
    def content(self) -> Mapping[str, Any]:
        """Return what a checkpoint holds besides position, budget and optimizer."""


def write_checkpoint(path: Path, state: RunState, position: Position, budget: Budget) -> None:
    """Replace a checkpoint once the new one is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then unchanged.
    """
    head = {"format": state.checkpoint.FILE_FORMAT, "position": asdict(position), "budget": asdict(budget)}
    try:
        with open_atomic(path) as file:
            torch.save({**head, **state.content(), "optimizer": state.optimizer.state_dict()}, file)
    except (OSError, RuntimeError) as error:
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch replaces that of a full disk
        if not isinstance(cause, OSError):
            raise
        raise output_error(cause, path) from error


def _check_position(position: Position) -> None:
    """Refuse counts that no run reaches.

    Raises:
        ValueError: if a number is negative, not finite or too large, or no stage has begun.
    """
    values = [value for value in asdict(position).values() if isinstance(value, int | float)]
    if not all(0 <= value <= MAX_SAMPLES for value in (*values, *position.stage_starts)):
        raise ValueError(f"a position of {position.step} steps and {position.samples} samples, or a part of it")
    if 0 not in position.stage_starts or (position.decay_start is not None and not position.decay_samples):
        raise ValueError("a position outside all stages")


@contextmanager
def restored_state() -> Iterator[None]:
    """Name a checkpoint whose tensors or moments do not fit its own configuration while the body loads them.

    Raises:
        InputError: if they do not.
    """
    try:
        yield
    except _DAMAGED as error:
        if is_exhausted(error) or is_memory_error(error):
            raise
        reason = shortened(" ".join(str(error).split()), 120)
        raise InputError(
            f"the checkpoint does not fit its own configuration: {reason}", "it was changed: start a new run"
        ) from error


Network = TypeVar("Network", bound=nn.Module)


class EMA(Generic[Network]):
    """An averaged copy of a network, with decay warm-up.

    Source: the warm-up min(decay, (1 + n) / (10 + n)) of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, network: Network, decay: float) -> None:
        self.network: Network = copy.deepcopy(network).requires_grad_(False).eval()
        self._decay = decay

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Average in the weights after a step; buffers are copied."""
        decay = min(self._decay, (1 + step) / (10 + step))
        averages: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(averages, list(network.parameters()), 1 - decay)
        for kept, current in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(current)
