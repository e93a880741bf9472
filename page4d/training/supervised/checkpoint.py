"""Everything that a run needs to go on as if it had never stopped, in one file that is whole or not there."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from page4d.errors import InputError, OutputError
from page4d.io.atomic import output_error, part_name
from page4d.models.config import NetworkConfig
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised.config import TrainConfig

FORMAT = 1
_POSITION = TypeAdapter(Position)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run at one position. Chance needs no state: every step draws from a seed of its own."""

    config: TrainConfig
    network_config: NetworkConfig
    position: Position
    network: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    optimizers: list[dict[str, Any]]
    history: Mapping[str, str]
    """What came before this run: the weights or the run that it started from."""
    budget: Budget | None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file by a new one once that is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then still there.
    """
    content = {
        "format": FORMAT,
        "config": checkpoint.config.to_json(),
        "network_config": checkpoint.network_config.to_json(),
        "position": asdict(checkpoint.position),
        "network": dict(checkpoint.network),
        "average": dict(checkpoint.average),
        "optimizers": checkpoint.optimizers,
        "history": dict(checkpoint.history),
        "budget": None if checkpoint.budget is None else asdict(checkpoint.budget),
    }
    store(path, content)


def store(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file by a new one once that is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then still there.
    """
    part = part_name(path)
    try:
        with part.open("xb") as file:
            torch.save(dict(content), file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise output_error(error, path) from error
    except RuntimeError as error:  # how torch says that the disk is full
        raise OutputError(f"cannot write to '{path}': {error}", "free space, then repeat with --resume") from error
    finally:
        part.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what `write_checkpoint` wrote, into the CPU's memory; nothing in the file is run.

    Raises:
        InputError: if the file is missing, damaged or of another kind.
    """
    hint = "give the folder of a run of page4d train"
    content = load(path, hint)
    try:
        if content["format"] != FORMAT:
            raise InputError(f"'{path}' has format {content['format']}, this page4d reads {FORMAT}", "update page4d")
        return Checkpoint(
            config=TrainConfig.from_json(content["config"]),
            network_config=NetworkConfig.from_json(content["network_config"]),
            position=_POSITION.validate_python(content["position"]),
            network=content["network"],
            average=content["average"],
            optimizers=content["optimizers"],
            history=content["history"],
            budget=None if content.get("budget") is None else Budget(**content["budget"]),
        )
    except (KeyError, TypeError, ValidationError, ValueError) as error:
        raise InputError(f"'{path}' is damaged or no checkpoint: {error}", hint) from error


def load(path: Path, hint: str) -> dict[str, Any]:
    """Read what `store` wrote, into the CPU's memory; nothing in the file is run.

    Raises:
        InputError: if the file is missing or damaged.
    """
    if not path.is_file():
        raise InputError(f"there is no checkpoint '{path}'", hint)
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
        raise InputError(f"'{path}' is damaged or no checkpoint", hint) from error
    return content
