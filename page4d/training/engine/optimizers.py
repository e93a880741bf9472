"""Optimizers and their parameter groups; Muon: momentum SGD with orthogonalized matrix updates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from page4d.io.config import config_record

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class OptimizerKind(StrEnum):
    """Optimization algorithm."""

    ADAMW = "adamw"
    MUON = "muon"
    """Muon for the matrices of the trunk, AdamW for all other parameters."""


_Decay = Annotated[float, Field(ge=0, lt=1)]
_Rate = Annotated[float, Field(gt=0, le=1)]
"""AdamW and Muon change a weight by about the rate per step: above 1 nothing trains."""


@config_record("optimizer")
class OptimizerConfig:
    """Learning rates, weight decay, warm-up, gradient clipping and EMA; the Muon settings apply to its matrices."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    learning_rate: _Rate = 1e-3
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    weight_decay: _Decay = 0.02
    muon_learning_rate: _Rate = 0.02
    muon_momentum: _Decay = 0.95
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] = 300
    max_gradient_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    average_decay: _Decay = 0.999
    """Decay of the EMA, whose weights are evaluated and released."""
    max_skipped: Annotated[int, Field(ge=1, le=10**6)] = 50
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


class Muon(Optimizer):
    """Muon for matrices: updates with singular values near 1, scaled by the aspect ratio.

    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024 (Nesterov momentum, five
    iterations, factor sqrt(max(1, rows / columns))).
    """

    def __init__(
        self, parameters: Iterable[Any], *, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                direction = orthogonalize(parameter.grad.lerp(momentum, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                factor = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.add_(direction, alpha=-group["lr"] * factor)
        return loss


def orthogonalize(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Bring all singular values near 1 (0.7 to 1.2) by a quintic Newton-Schulz iteration.

    Source: as above; the coefficients trade exactness for speed.
    """
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    orthogonal: Tensor = wide.T if matrix.shape[0] > matrix.shape[1] else wide
    return orthogonal


def _is_matrix(value: Tensor) -> bool:
    """Return whether a parameter is a weight of a layer, not a vector or a token with axes of length 1."""
    return sum(side > 1 for side in value.shape) >= 2 and value.shape[0] > 1
