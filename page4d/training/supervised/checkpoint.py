"""Checkpoints of supervised training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from page4d.models.config import NetworkConfig
from page4d.training.engine.checkpoint import read_checkpoint_file, write_checkpoint_file
from page4d.training.engine.step_plan import Budget, Position
from page4d.training.supervised.config import TrainConfig

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class TrainCheckpoint:
    """A run at one position."""

    config: TrainConfig
    network_config: NetworkConfig
    position: Position
    network: Mapping[str, Tensor]
    average: Mapping[str, Tensor]
    """EMA of the weights."""
    optimizers: list[dict[str, Any]]
    history: Mapping[str, str]
    """Origin of the run: initial weights, or the run that it continues."""
    budget: Budget | None


def write_checkpoint(path: Path, checkpoint: TrainCheckpoint) -> None:
    """Replace a checkpoint once the new one is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then unchanged.
    """
    content = {
        "config": checkpoint.config.to_json(),
        "network_config": checkpoint.network_config.to_json(),
        "network": dict(checkpoint.network),
        "average": dict(checkpoint.average),
        "optimizers": checkpoint.optimizers,
        "history": dict(checkpoint.history),
    }
    write_checkpoint_file(path, FORMAT, checkpoint.position, checkpoint.budget, content)


def read_checkpoint(path: Path) -> TrainCheckpoint:
    """Read what `write_checkpoint` wrote, into memory of the CPU.

    Raises:
        InputError: if the file is missing, damaged or of another kind.
    """

    def parse(content: dict[str, Any]) -> TrainCheckpoint:
        unchanged = ("position", "network", "average", "optimizers", "history", "budget")
        return TrainCheckpoint(
            config=TrainConfig.from_json(content["config"]),
            network_config=NetworkConfig.from_json(content["network_config"]),
            **{name: content[name] for name in unchanged},
        )

    return read_checkpoint_file(path, FORMAT, parse, "give the folder of a run of page4d train")
