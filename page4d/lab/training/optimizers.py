"""The optimizer and its parameter groups, and the memory that it needs."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn
from torch.optim import AdamW, Optimizer

from page4d.errors import MemoryBudgetError
from page4d.io.json_records import config_record
from page4d.run.memory import usable_bytes

_Decay = Annotated[float, Field(ge=0, lt=1)]
_Rate = Annotated[float, Field(gt=0, le=1)]
"""AdamW changes a weight by about the rate per step: above 1 nothing trains."""


@config_record("optimizer")
class OptimizerConfig:
    """Learning rate, weight decay, warm-up, gradient clipping and EMA of AdamW."""

    learning_rate: _Rate = 1e-3
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    weight_decay: _Decay = 0.02
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 300
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    average_decay: _Decay = 0.999
    """Decay of the EMA, whose weights are evaluated and released."""
    max_skipped: Annotated[int, Field(ge=1, le=10**6)] = 50
    """Consecutive steps with a non-finite gradient after which the run aborts."""


def build_optimizer(network: nn.Module, config: OptimizerConfig) -> AdamW:
    """Build AdamW for all parameters.

    Only matrices and kernels have weight decay: norms, biases, scales and tokens do not.
    """
    values = [value for value in network.parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [value for value in values if _is_matrix(value)], "weight_decay": config.weight_decay},
        {"params": [value for value in values if not _is_matrix(value)], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)
    for group in optimizer.param_groups:
        group["full_lr"] = group["lr"]
    return optimizer


def restore_optimizer(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the moments of a saved optimizer; learning rate and weight decay stay those of the configuration."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": saved["state"]})


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set every learning rate to a fraction of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["full_lr"]


def _is_matrix(value: torch.Tensor) -> bool:
    """Return whether a parameter is a weight of a layer, not a vector or a token with axes of length 1."""
    return sum(side > 1 for side in value.shape) >= 2 and value.shape[0] > 1


FLOAT_BYTES = 4


def check_training_memory(weight_bytes: int, activation_bytes: int, device: torch.device, hint: str) -> None:
    """Refuse a training that cannot fit: both numbers are lower bounds.

    Raises:
        MemoryBudgetError: if the device, or the machine, has less usable memory; `hint` is the advice.
    """
    usable = usable_bytes(device)
    needed = weight_bytes + activation_bytes
    if needed > usable:
        part = "a batch" if activation_bytes > weight_bytes else "weights and optimizer"
        raise MemoryBudgetError(
            f"this training needs {needed / 1e9:,.1f} GB or more, mostly for {part}, and {usable / 1e9:,.1f} GB are "
            f"usable on {device}",
            hint,
        )
