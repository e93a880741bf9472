"""A pretraining run in memory and in one file that is whole or not there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.optim import Optimizer

from page4d.errors import InputError
from page4d.pretraining.config import PretrainConfig
from page4d.pretraining.learners import Learner, build_learner
from page4d.training.engine.optimizers import build_optimizers
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised.checkpoint import load, store

FORMAT = "pretraining 1"
_POSITION = TypeAdapter(Position)
_HINT = "give the folder of a run of page4d pretrain"


@dataclass(kw_only=True)
class PretrainState:
    """What a step changes."""

    config: PretrainConfig
    learner: Learner
    optimizers: list[Optimizer]
    position: Position = field(default_factory=Position)


@dataclass(frozen=True, kw_only=True)
class PretrainCheckpoint:
    """A run at one position. Chance needs no state: every sample and step draws from a seed of its own."""

    config: PretrainConfig
    position: Position
    modules: Mapping[str, Mapping[str, Tensor]]
    optimizers: list[dict[str, Any]]
    budget: Budget | None


def begin(config: PretrainConfig, device: torch.device) -> PretrainState:
    """Start from fresh weights."""
    learner = build_learner(config, device)
    optimizers = build_optimizers(learner.network.train(), config.optimizer)
    return PretrainState(config=config, learner=learner, optimizers=optimizers)


def resume(checkpoint: PretrainCheckpoint, device: torch.device) -> PretrainState:
    """Go on where a checkpoint stands."""
    state = begin(checkpoint.config, device)
    for name, module in state.learner.modules().items():
        module.load_state_dict(checkpoint.modules[name])
    for optimizer, saved in zip(state.optimizers, checkpoint.optimizers, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})
    state.position = checkpoint.position
    return state


def write_pretraining(path: Path, state: PretrainState, position: Position, budget: Budget) -> None:
    """Replace the file by a new one once that is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then still there.
    """
    content = {
        "format": FORMAT,
        "config": state.config.to_json(),
        "position": asdict(position),
        "modules": {name: module.state_dict() for name, module in state.learner.modules().items()},
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
        "budget": asdict(budget),
    }
    store(path, content)


def read_pretraining(path: Path) -> PretrainCheckpoint:
    """Read what `write_pretraining` wrote, into the CPU's memory; nothing in the file is run.

    Raises:
        InputError: if the file is missing, damaged or of another kind.
    """
    content = load(path, _HINT)
    try:
        if content["format"] != FORMAT:
            raise InputError(f"'{path}' has format {content['format']}, not {FORMAT}", _HINT)
        return PretrainCheckpoint(
            config=PretrainConfig.from_json(content["config"]),
            position=_POSITION.validate_python(content["position"]),
            modules=content["modules"],
            optimizers=content["optimizers"],
            budget=Budget(**content["budget"]),
        )
    except (KeyError, TypeError, ValidationError, ValueError) as error:
        raise InputError(f"'{path}' is damaged or no checkpoint: {error}", _HINT) from error
