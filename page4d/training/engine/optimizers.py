"""Which parameters move how."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from page4d.training.engine.muon import Muon
from page4d.training.supervised.config import OptimizerConfig, OptimizerKind


def build_optimizers(network: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """Return the optimizers of a network: one, or two if Muon moves the matrices inside the trunk.

    Only matrices and kernels decay: norms, biases, scales and tokens do not. Encoders' patch kernels, embeddings and
    the last layers of heads are AdamW's in any case.
    """
    named = [(name, value) for name, value in network.named_parameters() if value.requires_grad]
    hidden: list[Tensor] = []
    if config.kind is OptimizerKind.MUON:
        hidden = [value for name, value in named if value.ndim == 2 and ".blocks." in f".{name}"]
    taken = {id(value) for value in hidden}
    rest = [value for _, value in named if id(value) not in taken]
    decaying = [value for value in rest if _is_matrix(value)]
    others = [value for value in rest if not _is_matrix(value)]
    groups: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizers: list[Optimizer] = [AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=True)]
    if hidden:
        optimizers.append(
            Muon(
                hidden,
                lr=config.muon_learning_rate,
                momentum=config.muon_momentum,
                weight_decay=config.weight_decay,
            )
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return optimizers


def set_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    """Set every step size to a fraction of its height."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["full_lr"]


def gradient_norm(network: nn.Module, limit: float) -> Tensor:
    """Scale gradients down to a norm of at most `limit`; return the norm they had."""
    return torch.nn.utils.clip_grad_norm_(network.parameters(), limit)


def _is_matrix(value: Tensor) -> bool:
    """Tell weights of layers from vectors and from tokens that carry axes of length 1."""
    return sum(side > 1 for side in value.shape) >= 2 and value.shape[0] > 1
