"""State of pretraining, in memory and in checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from page4d.pretraining.config import PretrainConfig
from page4d.pretraining.mae import MAEConfig
from page4d.pretraining.profile import profile_dino, profile_mae
from page4d.pretraining.tasks import PretrainTask, build_task
from page4d.training.engine.checkpoint import read_checkpoint_file, restored_state, write_checkpoint_file
from page4d.training.engine.memory import check_memory
from page4d.training.engine.optimizers import build_optimizers, restore_optimizers
from page4d.training.engine.step_plan import Budget, Position

FORMAT = "pretraining 1"


@dataclass(kw_only=True)
class PretrainState:
    """State that steps change."""

    config: PretrainConfig
    task: PretrainTask
    optimizers: list[Optimizer]
    position: Position = field(default_factory=Position)

    @property
    def network(self) -> nn.Module:
        """Network whose parameters are optimized."""
        return self.task.network


@dataclass(frozen=True, kw_only=True)
class PretrainCheckpoint:
    """A run at one position."""

    config: PretrainConfig
    position: Position
    modules: Mapping[str, Mapping[str, Tensor]]
    optimizers: list[dict[str, Any]]
    budget: Budget | None


def begin(config: PretrainConfig, device: torch.device) -> PretrainState:
    """Start from random weights.

    Raises:
        MemoryBudgetError: if weights or a batch do not fit into memory.
    """
    _check_memory(config, device)
    task = build_task(config, device)
    optimizers = build_optimizers(task.network.train(), config.optimizer)
    return PretrainState(config=config, task=task, optimizers=optimizers)


def _check_memory(config: PretrainConfig, device: torch.device) -> None:
    """Refuse a run whose weights and gradients, or whose outputs of all blocks for a batch, do not fit."""
    crops, batch = config.crops, config.batch
    size = (crops.size, crops.size)
    if isinstance(config.method, MAEConfig):
        profile = profile_mae(config.method, batch=batch, size=size)
    else:
        small = {"small_crops": crops.num_small, "small_side": crops.small_size}
        profile = profile_dino(config.method, batch=batch, size=size, **small)
    hint = "use a smaller --batch, --size or --encoder"
    check_memory(2 * profile.weight_bytes, profile.activation_bytes, device, hint)


def resume(checkpoint: PretrainCheckpoint, device: torch.device) -> PretrainState:
    """Continue from a checkpoint.

    Raises:
        InputError: if the checkpoint does not fit its own configuration.
    """
    state = begin(checkpoint.config, device)
    with restored_state():
        for name, module in state.task.modules().items():
            module.load_state_dict(checkpoint.modules[name])
        restore_optimizers(state.optimizers, checkpoint.optimizers)
    state.position = checkpoint.position
    return state


def write_checkpoint(path: Path, state: PretrainState, position: Position, budget: Budget) -> None:
    """Replace a checkpoint once the new one is complete on disk.

    Raises:
        OutputError: if it cannot be written; the older one is then unchanged.
    """
    content = {
        "config": state.config.to_json(),
        "modules": {name: module.state_dict() for name, module in state.task.modules().items()},
        "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
    }
    write_checkpoint_file(path, FORMAT, position, budget, content)


def read_checkpoint(path: Path) -> PretrainCheckpoint:
    """Read what `write_checkpoint` wrote, into memory of the CPU.

    Raises:
        InputError: if the file is missing, damaged or of another kind.
    """

    def parse(content: dict[str, Any]) -> PretrainCheckpoint:
        unchanged = {name: content[name] for name in ("position", "modules", "optimizers", "budget")}
        return PretrainCheckpoint(config=PretrainConfig.from_json(content["config"]), **unchanged)

    return read_checkpoint_file(path, FORMAT, parse, "give the folder of a run of page4d pretrain")
