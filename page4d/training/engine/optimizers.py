"""Optimizers and their parameter groups."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from page4d.io.config import config_record
from page4d.training.engine.muon import Muon


class OptimizerKind(StrEnum):
    """Optimization algorithm."""

    ADAMW = "adamw"
    MUON = "muon"
    """Muon for the matrices of the trunk, AdamW for all other parameters."""


_Decay = Annotated[float, Field(ge=0, lt=1)]


@config_record("optimizer")
class OptimizerConfig:
    """Learning rates, weight decay, warm-up, gradient clipping and EMA; the Muon settings apply to its matrices."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    learning_rate: PositiveFloat = 1e-3
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    weight_decay: NonNegativeFloat = 0.02
    muon_learning_rate: PositiveFloat = 0.02
    muon_momentum: _Decay = 0.95
    warmup_steps: NonNegativeInt = 300
    max_gradient_norm: PositiveFloat = 1.0
    average_decay: _Decay = 0.999
    """Decay of the EMA, whose weights are evaluated and released."""
    max_skipped: PositiveInt = 50
    """Consecutive steps with a non-finite gradient after which the run aborts."""


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """Build AdamW for all parameters, or Muon for the matrices of the trunk and AdamW for the others.

    Only matrices and kernels have weight decay: norms, biases, scales and tokens do not. Patch kernels of encoders,
    embeddings and the last layers of heads always use AdamW.
    """
    named = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    hidden: list[Tensor] = []
    if config.kind is OptimizerKind.MUON:
        hidden = [value for name, value in named if value.ndim == 2 and ".blocks." in f".{name}"]
    taken = {id(value) for value in hidden}
    rest = [value for _, value in named if id(value) not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [value for value in rest if _is_matrix(value)], "weight_decay": config.weight_decay},
        {"params": [value for value in rest if not _is_matrix(value)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers: list[Optimizer] = [AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)]
    if hidden:
        muon = Muon(
            hidden, lr=config.muon_learning_rate, momentum=config.muon_momentum, weight_decay=config.weight_decay
        )
        optimizers.append(muon)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def restore_optimizers(optimizers: Sequence[Optimizer], saved: Sequence[Mapping[str, Any]]) -> None:
    """Load the moments of saved optimizers; learning rates and weight decay stay those of the configuration."""
    for optimizer, content in zip(optimizers, saved, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": content["state"]})


def set_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    """Set every learning rate to a fraction of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["full_lr"]


def clip_gradients(network: nn.Module, max_norm: float) -> Tensor:
    """Clip gradients to a total norm; return the norm before clipping."""
    return torch.nn.utils.clip_grad_norm_(network.parameters(), max_norm)


def _is_matrix(value: Tensor) -> bool:
    """Return whether a parameter is a weight of a layer, not a vector or a token with axes of length 1."""
    return sum(side > 1 for side in value.shape) >= 2 and value.shape[0] > 1
